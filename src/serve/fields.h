// Reads a JSON object of a request field by field: types and ranges are checked, errors name the field's path, null equals
// absent, and what nobody asked for is known afterwards. One per object, on the stack; not for sharing.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace verbund::serve {

using Json = nlohmann::ordered_json;

// Throws invalid: not JSON, not UTF-8, nested deeper than 64, not an object.
Json parse_body(std::string_view body);

[[noreturn]] void refuse(const std::string& path, const std::string& problem);  // "PATH PROBLEM", invalid
std::string brief(const Json& value);                                           // a short form, for messages

class Fields {
 public:
  // path: "" for a body, else as "messages[2]".
  Fields(const Json& object, std::string path = {});

  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  std::string required_text(std::string_view key);
  const Json* any(std::string_view key);     // nullptr: absent or null
  const Json* object(std::string_view key);  // as above; refused if it is something else
  const Json* array(std::string_view key);
  bool flag(std::string_view key, bool otherwise) { return boolean(key).value_or(otherwise); }

  void accept(std::initializer_list<std::string_view> keys);       // known, and without effect on the text
  void not_offered(std::initializer_list<std::string_view> keys);  // refused if present
  std::vector<std::string> unknown() const;                        // never asked for
  std::string path(std::string_view key) const;

 private:
  const Json* find(std::string_view key) const;
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// The elements of an array of strings. Throws naming the index.
std::vector<std::string> texts(const Json& array, const std::string& path);

}  // namespace verbund::serve
