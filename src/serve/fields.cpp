#include "serve/fields.h"

#include <fmt/format.h>

#include <cmath>

namespace verbund::serve {
namespace {

constexpr int kDepthMax = 64;
constexpr size_t kQuotedMax = 64;

}  // namespace

void refuse(const std::string& path, const std::string& problem) { throw ApiError(Fault::invalid, path + " " + problem, path); }

std::string brief(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kQuotedMax) return text;
  size_t end = kQuotedMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "...";
}

Json parse_body(std::string_view body) {
  if (body.empty()) throw ApiError(Fault::invalid, "the request has no body; a JSON object is expected");
  bool too_deep = false;
  Json json;
  try {
    json = Json::parse(body.begin(), body.end(), [&](int depth, Json::parse_event_t, Json&) {
      if (depth <= kDepthMax) return true;
      too_deep = true;
      throw ApiError(Fault::invalid, "the body is nested deeper than " + std::to_string(kDepthMax) + " levels");
    });
  } catch (const Json::exception& e) {
    // The library quotes what it read last; the place says enough and cannot break this message's encoding.
    const std::string what = e.what();
    const size_t at = what.find(" at line ");
    const size_t end = at == std::string::npos ? at : what.find(':', at);
    throw ApiError(Fault::invalid,
                   "the body is not valid JSON in UTF-8" + (end == std::string::npos ? "" : ", " + what.substr(at + 1, end - at - 1)));
  }
  if (!json.is_object()) throw ApiError(Fault::invalid, "the body must be a JSON object, got " + brief(json));
  return json;
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) refuse(path_, "must be an object, got " + brief(object));
}

std::string Fields::path(std::string_view key) const { return path_.empty() ? std::string(key) : path_ + "." + std::string(key); }

const Json* Fields::find(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json* Fields::any(std::string_view key) {
  known_.emplace(key);
  return find(key);
}

std::optional<double> Fields::number(std::string_view key, double low, double high) {
  const Json* v = any(key);
  if (!v) return std::nullopt;
  if (!v->is_number()) refuse(path(key), "must be a number, got " + brief(*v));
  const double value = v->get<double>();
  if (!(value >= low && value <= high)) refuse(path(key), fmt::format("must be from {} to {}, got {}", low, high, brief(*v)));
  return value;
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) {
  const Json* v = any(key);
  if (!v) return std::nullopt;
  // 5.0 is an integer to JavaScript; 2^70 has been read as a number that is none.
  const bool whole = v->is_number_integer() || (v->is_number_float() && std::floor(v->get<double>()) == v->get<double>() &&
                                                std::abs(v->get<double>()) < 9007199254740992.0);
  if (!whole)
    refuse(path(key),
           "must be an integer" + (v->is_number() ? fmt::format(" from {} to {}", low, high) : std::string()) + ", got " + brief(*v));
  const bool huge = v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t value = v->is_number_float() ? static_cast<int64_t>(v->get<double>()) : v->get<int64_t>();
  if (huge || value < low || value > high) refuse(path(key), fmt::format("must be from {} to {}, got {}", low, high, brief(*v)));
  return value;
}

std::optional<bool> Fields::boolean(std::string_view key) {
  const Json* v = any(key);
  if (!v) return std::nullopt;
  if (!v->is_boolean()) refuse(path(key), "must be true or false, got " + brief(*v));
  return v->get<bool>();
}

std::optional<std::string> Fields::text(std::string_view key) {
  const Json* v = any(key);
  if (!v) return std::nullopt;
  if (!v->is_string()) refuse(path(key), "must be a string, got " + brief(*v));
  return v->get<std::string>();
}

std::string Fields::required_text(std::string_view key) {
  auto value = text(key);
  if (!value) refuse(path(key), "is required");
  return std::move(*value);
}

const Json* Fields::object(std::string_view key) {
  const Json* v = any(key);
  if (v && !v->is_object()) refuse(path(key), "must be an object, got " + brief(*v));
  return v;
}

const Json* Fields::array(std::string_view key) {
  const Json* v = any(key);
  if (v && !v->is_array()) refuse(path(key), "must be an array, got " + brief(*v));
  return v;
}

void Fields::accept(std::initializer_list<std::string_view> keys) { known_.insert(keys.begin(), keys.end()); }

void Fields::not_offered(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys)
    if (any(key)) throw ApiError(Fault::unsupported, path(key) + " is not supported here", path(key));
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_.items())
    if (!value.is_null() && !known_.contains(key)) names.push_back(key);
  return names;
}

std::vector<std::string> texts(const Json& array, const std::string& path) {
  std::vector<std::string> out;
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_string()) refuse(path + "[" + std::to_string(i) + "]", "must be a string, got " + brief(array[i]));
    out.push_back(array[i].get<std::string>());
  }
  return out;
}

}  // namespace verbund::serve
