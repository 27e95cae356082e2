// Typed access to config.json and GGUF metadata: one clear Error instead of a library exception, and no silent default
// for a value of the wrong kind.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace verbund::model {

class Fields {
 public:
  explicit Fields(const nlohmann::json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {
    if (!object.is_object()) throw Error(Code::invalid_argument, "the model's description is not an object");
  }

  bool has(const std::string& key) const { return value(key) != nullptr; }

  size_t size(const std::string& key) const {
    const nlohmann::json* v = value(key);
    if (!v) throw Error(Code::invalid_argument, "'" + prefix_ + key + "' is missing in the model's description");
    return as_size(*v, key);
  }
  size_t size(const std::string& key, size_t otherwise) const {
    const auto* v = value(key);
    return v ? as_size(*v, key) : otherwise;
  }

  double number(const std::string& key, double otherwise) const {
    const auto* v = value(key);
    if (!v) return otherwise;
    if (!v->is_number() || !std::isfinite(v->get<double>())) throw wrong(key, "a number");
    return v->get<double>();
  }
  bool flag(const std::string& key, bool otherwise) const {
    const auto* v = value(key);
    if (!v) return otherwise;
    if (!v->is_boolean()) throw wrong(key, "true or false");
    return v->get<bool>();
  }
  std::string text(const std::string& key, const std::string& otherwise) const {
    const auto* v = value(key);
    if (!v) return otherwise;
    if (!v->is_string()) throw wrong(key, "a string");
    return v->get<std::string>();
  }
  const nlohmann::json* object(const std::string& key) const {
    const auto* v = value(key);
    if (v && !v->is_object()) throw wrong(key, "an object");
    return v;
  }
  // A number or a list of numbers.
  std::vector<int32_t> ids(const std::string& key) const {
    const auto* v = value(key);
    std::vector<int32_t> out;
    if (!v) return out;
    const auto push = [&](const nlohmann::json& n) {
      if (!n.is_number_integer() || n.get<int64_t>() < 0 || n.get<int64_t>() > INT32_MAX) throw wrong(key, "a token id or a list of them");
      out.push_back(static_cast<int32_t>(n.get<int64_t>()));
    };
    if (v->is_array())
      for (const auto& n : *v) push(n);
    else
      push(*v);
    return out;
  }
  std::vector<std::string> texts(const std::string& key) const {
    const auto* v = value(key);
    std::vector<std::string> out;
    if (!v) return out;
    if (!v->is_array()) throw wrong(key, "a list of strings");
    for (const auto& s : *v) {
      if (!s.is_string()) throw wrong(key, "a list of strings");
      out.push_back(s.get<std::string>());
    }
    return out;
  }

 private:
  const nlohmann::json* value(const std::string& key) const {  // null counts as missing
    const auto it = object_.find(prefix_ + key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  size_t as_size(const nlohmann::json& v, const std::string& key) const {
    if (!v.is_number_integer() || (!v.is_number_unsigned() && v.get<int64_t>() < 0)) throw wrong(key, "a whole number");
    return v.get<size_t>();
  }
  Error wrong(const std::string& key, const char* kind) const {
    return Error(Code::invalid_argument, "'" + prefix_ + key + "' in the model's description is not " + kind);
  }

  const nlohmann::json& object_;
  std::string prefix_;
};

}  // namespace verbund::model
