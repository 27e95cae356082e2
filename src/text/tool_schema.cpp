#include "text/tool_schema.h"

#include <algorithm>

namespace verbund::text {
namespace {

using Json = nlohmann::ordered_json;

// The types a schema allows, as far as it says: through anyOf and oneOf, not through references.
void collect_types(const Json& schema, std::vector<std::string>& types, int depth = 0) {
  if (!schema.is_object() || depth > 8) return;
  if (const auto it = schema.find("type"); it != schema.end()) {
    if (it->is_string()) types.push_back(it->get<std::string>());
    if (it->is_array())
      for (const Json& type : *it)
        if (type.is_string()) types.push_back(type.get<std::string>());
  }
  for (const char* key : {"anyOf", "oneOf"})
    if (const auto it = schema.find(key); it != schema.end() && it->is_array())
      for (const Json& inner : *it) collect_types(inner, types, depth + 1);
  if (const auto it = schema.find("enum"); types.empty() && it != schema.end() && it->is_array()) {
    const bool strings = std::all_of(it->begin(), it->end(), [](const Json& v) { return v.is_string(); });
    if (strings && !it->empty()) types.emplace_back("string");
  }
}

bool is_of(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "null") return value.is_null();
  return false;
}

}  // namespace

Tools Tools::from_json(const Json& tools) {
  std::vector<Tool> list;
  if (!tools.is_array()) return {};
  for (const Json& tool : tools) {
    if (!tool.is_object() || !tool.contains("function")) continue;
    const Json& function = tool["function"];
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) continue;
    list.push_back({function["name"].get<std::string>(), function.value("parameters", Json())});
  }
  return Tools(std::move(list));
}

const Tool* Tools::find(std::string_view name) const {
  const auto it = std::find_if(list_.begin(), list_.end(), [name](const Tool& tool) { return tool.name == name; });
  return it == list_.end() ? nullptr : &*it;
}

Json Tools::typed(const Tool& tool, std::string_view parameter, std::string_view text) {
  std::vector<std::string> types;
  if (tool.parameters.is_object())
    if (const auto properties = tool.parameters.find("properties"); properties != tool.parameters.end() && properties->is_object())
      if (const auto it = properties->find(std::string(parameter)); it != properties->end()) collect_types(*it, types);
  Json value = Json::parse(text, nullptr, false);
  const auto allows = [&](const Json& v) { return std::any_of(types.begin(), types.end(), [&](const auto& t) { return is_of(v, t); }); };
  if (types.empty()) return value.is_discarded() ? Json(std::string(text)) : value;
  if (!value.is_discarded() && !value.is_null() && allows(value)) return value;
  const bool text_allowed = std::find(types.begin(), types.end(), "string") != types.end();
  if (!value.is_discarded() && value.is_null() && allows(value) && !text_allowed) return value;
  if (text == "True" || text == "False")
    if (const Json flag = text == "True"; allows(flag)) return flag;  // as Python writes them
  return Json(std::string(text));
}

}  // namespace verbund::text
