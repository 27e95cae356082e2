#include "serve/structured.h"

namespace verbund::serve {

engine::Grammar json_grammar(const Json& schema, bool strict) {
  Json bounded = schema.is_boolean() ? Json::object() : schema;
  // Small models put white space without end wherever it is allowed.
  bounded["x-guidance"] = {{"whitespace_pattern", "[\\x20\\x0A\\x0D\\x09]{0,16}"}, {"coerce_one_of", true}, {"lenient", !strict}};
  return {text::GrammarKind::json_schema, bounded.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

void force_call(const Json& tools, GenerateRequest& request) {
  Json calls = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    if (!request.tool_name.empty() && function.at("name") != request.tool_name) continue;
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", function.at("name")}}}, {"arguments", function.at("parameters")}}},
                     {"required", {"name", "arguments"}},
                     {"additionalProperties", false}});
  }
  request.grammar = json_grammar(calls.size() == 1 ? calls[0] : Json{{"anyOf", calls}}, false);
  request.grammar_field = "tools";
  request.answer_is_call = true;
}

void read_response_format(Fields& body, GenerateRequest& request) {
  const Json* value = body.object("response_format");
  if (!value) return;
  Fields format(*value, "response_format");
  const std::string type = format.required_text("type");
  request.grammar_field = "response_format";
  if (type == "json_object") {
    const Json* schema = format.object("schema");  // as llama.cpp
    request.grammar = json_grammar(schema ? *schema : Json{{"type", "object"}}, false);
  } else if (type == "json_schema") {
    const Json* inner = format.object("json_schema");
    if (!inner) refuse("response_format.json_schema", "is required");
    Fields fields(*inner, "response_format.json_schema");
    fields.text("name");
    const Json* schema = fields.object("schema");
    if (!schema) refuse("response_format.json_schema.schema", "is required");
    request.grammar = json_grammar(*schema, fields.flag("strict", false));
  } else if (type == "regex" || type == "lark") {  // extension: {"type": "regex", "grammar": "..."}
    request.grammar =
        engine::Grammar{type == "regex" ? text::GrammarKind::regex : text::GrammarKind::lark, format.required_text("grammar")};
  } else if (type != "text") {
    refuse("response_format.type", "must be text, json_object or json_schema, got " + brief(type));
  }
}

}  // namespace verbund::serve
