#include "serve/responses_input.h"

#include "serve/openai_common.h"
#include "serve/openai_messages.h"
#include "serve/responses_items.h"
#include "serve/structured.h"

namespace verbund::serve {
namespace {

// Tools become chat completions' ones; what runs on the vendor's servers is left out and named.
Json functions_of(const Json& tools, ResponsesRequest& r, const std::string& before, const std::string& space) {
  Json list = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = before + "[" + std::to_string(i) + "]";
    Fields tool(tools[i], path);
    const std::string type = tool.required_text("type");
    if (type == "namespace") {
      const Json* inner = tool.array("tools");
      const std::string name = tool.required_text("name");
      if (inner)
        for (Json& function : functions_of(*inner, r, path + ".tools", name)) list.push_back(std::move(function));
      continue;
    }
    if (type != "function" && type != "custom") {
      r.generate.ignored.push_back(type);
      continue;
    }
    const std::string name = tool.required_text("name");
    const std::string known = space.empty() ? name : space + "__" + name;
    Json function{{"name", known}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    if (type == "custom") {
      function["parameters"] = {
          {"type", "object"}, {"properties", {{"input", {{"type", "string"}}}}}, {"required", {"input"}}, {"additionalProperties", false}};
    } else if (const Json* parameters = tool.object("parameters")) {
      function["parameters"] = *parameters;
    }
    r.tools[known] = {type == "custom", name, space};
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

void read_response_tools(Fields& body, ChatPrompt& chat, ResponsesRequest& r) {
  const Json* tools = body.array("tools");
  Json as_chat{{"tools", tools ? functions_of(*tools, r, "tools", "") : Json::array()}};
  if (const Json* choice = body.any("tool_choice")) {
    Json translated = *choice;
    if (choice->is_object()) {
      Fields fields(*choice, "tool_choice");
      const std::string type = fields.required_text("type");
      if (type == "function" || type == "custom")
        translated = {{"type", "function"}, {"function", {{"name", fields.required_text("name")}}}};
      else if (type == "allowed_tools")
        translated = *choice;
      else
        throw ApiError(Fault::unsupported, "tool_choice asks for " + brief(type) + ", which is not offered here", "tool_choice");
    } else if (as_chat["tools"].empty() && choice->is_string() && *choice == "auto") {
      translated = nullptr;
    }
    as_chat["tool_choice"] = std::move(translated);
  }
  as_chat["parallel_tool_calls"] = body.flag("parallel_tool_calls", true);
  Fields fields(as_chat);
  read_tools(fields, chat, r.generate);
  if (r.generate.tool_use == ToolUse::required || r.generate.tool_use == ToolUse::named) {
    if (r.generate.grammar) throw ApiError(Fault::unsupported, "text.format together with a forced tool is not supported", "text.format");
    force_call(chat.tools, r.generate);
  }
}

// {"type": "json_schema", "name", "schema", "strict"}: chat completions' form has them one level deeper.
void read_text(Fields& body, ResponsesRequest& r) {
  const Json* text = body.object("text");
  r.echo["text"] = {{"format", {{"type", "text"}}}};
  if (!text) return;
  Fields fields(*text, "text");
  fields.accept({"verbosity"});
  const Json* format = fields.object("format");
  if (!format) return;
  r.echo["text"]["format"] = *format;
  Fields inner(*format, "text.format");
  const std::string type = inner.required_text("type");
  r.generate.grammar_field = "text.format";
  if (type == "json_object") {
    r.generate.grammar = json_grammar({{"type", "object"}}, false);
  } else if (type == "json_schema") {
    const Json* schema = inner.object("schema");
    if (!schema) refuse("text.format.schema", "is required");
    r.generate.grammar = json_grammar(*schema, inner.flag("strict", false));
  } else if (type != "text") {
    refuse("text.format.type", "must be text, json_object or json_schema, got " + brief(type));
  }
}

void read_reasoning(Fields& body, ChatPrompt& chat, ResponsesRequest& r) {
  r.echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* reasoning = body.object("reasoning");
  if (!reasoning) return;
  Fields fields(*reasoning, "reasoning");
  if (const auto effort = fields.text("effort")) {
    apply_effort(*effort, chat);
    r.echo["reasoning"]["effort"] = *effort;
  }
  if (const auto summary = fields.text("summary")) {
    r.summary = true;
    r.echo["reasoning"]["summary"] = *summary;
  }
}

void read_conversation(Fields& body, ResponseStore& store, ChatPrompt& chat, ResponsesRequest& r) {
  if (body.any("messages")) throw ApiError(Fault::invalid, "messages is not a field of this API; the field is called input", "messages");
  r.input = Json::array();
  if (const auto previous = body.text("previous_response_id")) {
    const auto stored = store.get(*previous);
    if (!stored) {
      ApiError error(Fault::invalid, "there is no stored response with id " + brief(*previous), "previous_response_id");
      error.code = "previous_response_not_found";
      throw error;
    }
    r.input = stored->input;
    for (const Json& item : stored->response["output"]) r.input.push_back(item);
  }
  const Json* input = body.any("input");
  if (!input) refuse("input", "is required");
  if (input->is_string())
    r.input.push_back({{"type", "message"}, {"role", "user"}, {"content", *input}});
  else if (input->is_array())
    for (const Json& item : *input) r.input.push_back(item);
  else
    refuse("input", "must be a string or an array of items, got " + brief(*input));
  if (const auto instructions = body.text("instructions"); instructions && !instructions->empty())
    chat.messages.push_back({{"role", "system"}, {"content", *instructions}});
  append_items(r.input, chat, r.generate.ignored);
  if (chat.messages.empty()) refuse("input", "has nothing to answer");
}

std::optional<float> as_float(std::optional<double> value) { return value ? std::optional(static_cast<float>(*value)) : std::nullopt; }

}  // namespace

ResponsesRequest read_responses(const ServedModel& model, ResponseStore& store, const Json& json) {
  Fields body(json);
  ResponsesRequest r;
  GenerateRequest& g = r.generate;
  ChatPrompt chat;
  require_model(model, body);
  read_conversation(body, store, chat, r);
  if (body.flag("background", false)) throw ApiError(Fault::unsupported, "background is not supported; use stream", "background");
  body.not_offered({"conversation", "prompt"});
  const auto or_null = [&](const char* key) {
    const Json* value = body.any(key);
    return value ? *value : Json(nullptr);
  };
  for (const char* key : {"instructions", "max_output_tokens", "previous_response_id", "user", "metadata", "top_logprobs"})
    r.echo[key] = or_null(key);
  if (r.echo["metadata"].is_null()) r.echo["metadata"] = Json::object();

  g.stream = body.flag("stream", false);
  if (const auto limit = body.integer("max_output_tokens", 1, INT32_MAX)) g.max_tokens = static_cast<uint32_t>(*limit);
  g.temperature = as_float(body.number("temperature", 0, 2));
  g.top_p = as_float(body.number("top_p", 0, 1));
  r.echo["temperature"] = g.temperature.value_or(model.defaults.temperature.value_or(1.0f));
  r.echo["top_p"] = g.top_p.value_or(model.defaults.top_p.value_or(1.0f));
  if (const auto seed = body.integer("seed", INT64_MIN, INT64_MAX)) g.seed = static_cast<uint64_t>(*seed);
  r.store = body.flag("store", true);
  r.echo["store"] = r.store;
  const auto truncation = body.text("truncation").value_or("disabled");
  if (truncation != "disabled" && truncation != "auto") refuse("truncation", "must be disabled or auto, got " + brief(truncation));
  chat.truncate = truncation == "auto";
  r.echo["truncation"] = truncation;
  const auto top = body.integer("top_logprobs", 0, 20);
  if (const Json* include = body.array("include"))
    for (const Json& value : *include) r.output_logprobs |= value == "message.output_text.logprobs";
  if (r.output_logprobs || top) g.logprobs = static_cast<uint32_t>(top.value_or(0));
  read_reasoning(body, chat, r);
  read_text(body, r);
  read_response_tools(body, chat, r);
  r.echo["tools"] = body.any("tools") ? *body.any("tools") : Json::array();
  r.echo["tool_choice"] = body.any("tool_choice") ? *body.any("tool_choice") : Json("auto");
  r.echo["parallel_tool_calls"] = g.parallel_tool_calls;
  body.not_offered({"max_tool_calls"});
  body.accept({"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "client_metadata", "stream_options"});
  for (const std::string& name : body.unknown()) g.ignored.push_back(name);
  g.prompts.emplace_back(std::move(chat));
  return r;
}

}  // namespace verbund::serve
