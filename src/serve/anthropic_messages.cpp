#include "serve/anthropic_messages.h"

#include "serve/openai_common.h"
#include "serve/openai_messages.h"
#include "serve/structured.h"

namespace verbund::serve {
namespace {

// Claude Code puts a block with changing content first, which would keep every prompt out of the prefix cache.
constexpr std::string_view kBillingBlock = "x-anthropic-billing-header:";

std::string document_text(Fields& block, const std::string& path) {
  std::string text;
  if (const auto title = block.text("title")) text += *title + "\n";
  const Json* source = block.any("source");
  if (const Json* content = block.any("content"); !source && content && content->is_array())
    for (const Json& part : *content)
      if (part.is_object()) text += part.value("text", "");
  if (source && source->is_object() && source->value("type", "") == "text") return text + source->value("data", "");
  if (source && source->is_object())
    throw ApiError(Fault::invalid, path + " is a document that is no text; this model takes text only", path);
  return text;
}

// Text of a string or of blocks; what is no text is refused.
std::string text_of(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(path, "must be a string or an array of blocks, got " + brief(content));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    Fields block(content[i], at);
    const std::string type = block.text("type").value_or("text");
    if (type == "text")
      text += block.text("text").value_or("");
    else if (type == "document" || type == "search_result")
      text += document_text(block, at);
    else if (type == "image")
      throw ApiError(Fault::invalid, at + " is an image; this model takes text only", at);
    else
      refuse(at + ".type", "must be text, got " + brief(type));
  }
  return text;
}

std::string system_text(const Json& system) {
  if (!system.is_array()) return text_of(system, "system");
  Json blocks = system;
  if (!blocks.empty() && blocks[0].is_object() && blocks[0].value("text", "").starts_with(kBillingBlock)) blocks.erase(0);
  std::string text;
  for (size_t i = 0; i < blocks.size(); ++i) text += (i > 0 ? "\n\n" : "") + text_of(Json::array({blocks[i]}), "system");
  return text;
}

// Collects messages; neighbours of one role become one.
class Conversation {
 public:
  void add_text(const std::string& role, const std::string& text) {
    if (messages_.empty() || messages_.back()["role"] != role || messages_.back().contains("tool_calls"))
      messages_.push_back({{"role", role}, {"content", text}});
    else
      messages_.back()["content"] = messages_.back()["content"].get<std::string>() + (separate_ ? "\n\n" : "") + text;
    separate_ = false;
  }
  void add_thinking(const std::string& text) { assistant()["reasoning_content"] = text; }
  void add_call(Json call) { assistant()["tool_calls"].push_back(std::move(call)); }
  void add_result(const std::string& id, const std::string& text) {
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
  }
  void next_message() { separate_ = true; }
  Json take() { return std::move(messages_); }

 private:
  Json& assistant() {
    if (messages_.empty() || messages_.back()["role"] != "assistant") messages_.push_back({{"role", "assistant"}, {"content", ""}});
    return messages_.back();
  }
  Json messages_ = Json::array();
  bool separate_ = false;
};

void read_block(const Json& value, const std::string& role, const std::string& path, Conversation& out) {
  Fields block(value, path);
  const std::string type = block.required_text("type");
  if (type == "text" || type == "mid_conv_system") {
    out.add_text(type == "text" ? role : "system", block.text("text").value_or(""));
  } else if (type == "tool_use") {
    const Json* input = block.object("input");
    out.add_call({{"id", block.required_text("id")},
                  {"type", "function"},
                  {"function", {{"name", block.required_text("name")}, {"arguments", input ? *input : Json::object()}}}});
  } else if (type == "tool_result") {
    const Json* content = block.any("content");
    const std::string text = content ? text_of(*content, path + ".content") : "";
    const bool error = block.flag("is_error", false);
    out.add_result(block.required_text("tool_use_id"), error ? "Error: " + text : text);
  } else if (type == "thinking") {
    out.add_thinking(block.text("thinking").value_or(""));
  } else if (type == "document" || type == "search_result") {
    out.add_text(role, document_text(block, path));
  } else if (type == "image") {
    throw ApiError(Fault::invalid, path + " is an image; this model takes text only", path);
  } else if (type != "redacted_thinking" && !type.starts_with("server_tool") && !type.ends_with("_tool_result")) {
    refuse(path + ".type", "is " + brief(type) + ", which is not known here");
  }
}

void read_conversation(Fields& body, ChatPrompt& chat) {
  Conversation conversation;
  if (const Json* system = body.any("system"))
    if (const std::string text = system_text(*system); !text.empty()) conversation.add_text("system", text);
  const Json* messages = body.array("messages");
  if (!messages || messages->empty()) refuse("messages", "must have at least one message");
  std::string role;
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    Fields message((*messages)[i], path);
    role = message.required_text("role");
    if (role != "user" && role != "assistant" && role != "system") refuse(path + ".role", "must be user or assistant, got " + brief(role));
    const Json* content = message.any("content");
    if (!content) refuse(path + ".content", "is required");
    conversation.next_message();
    if (!content->is_array()) {
      conversation.add_text(role, text_of(*content, path + ".content"));
      continue;
    }
    for (size_t k = 0; k < content->size(); ++k)
      read_block((*content)[k], role, path + ".content[" + std::to_string(k) + "]", conversation);
  }
  chat.messages = conversation.take();
  chat.continue_final = role == "assistant" && !chat.messages.back().contains("tool_calls");
}

// Typed tools without a schema run on the vendor's servers: nobody here can, so the model does not hear of them.
void read_client_tools(Fields& body, ChatPrompt& chat, GenerateRequest& r) {
  const Json* tools = body.array("tools");
  Json list = Json::array();
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    Fields tool((*tools)[i], path);
    const Json* schema = tool.object("input_schema");
    if (tool.has("type") && tool.text("type") != "custom" && !schema) {
      r.ignored.push_back(path);
      continue;
    }
    Json function{{"name", tool.required_text("name")}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    function["parameters"] = schema ? *schema : Json{{"type", "object"}, {"properties", Json::object()}};
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  // The rest is as in chat completions.
  Json as_openai{{"tools", std::move(list)}};
  if (const Json* choice = body.object("tool_choice")) {
    Fields fields(*choice, "tool_choice");
    const std::string type = fields.required_text("type");
    if (type == "tool")
      as_openai["tool_choice"] = {{"type", "function"}, {"function", {{"name", fields.required_text("name")}}}};
    else if (type == "auto" || type == "any" || type == "none")
      as_openai["tool_choice"] = type == "any" ? "required" : type;
    else
      refuse("tool_choice.type", "must be auto, any, tool or none, got " + brief(type));
    as_openai["parallel_tool_calls"] = !fields.flag("disable_parallel_tool_use", false);
  }
  Fields fields(as_openai);
  serve::read_tools(fields, chat, r);
}

void read_thinking(Fields& body, ChatPrompt& chat) {
  if (const Json* thinking = body.object("thinking")) {
    Fields fields(*thinking, "thinking");
    const std::string type = fields.required_text("type");
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      refuse("thinking.type", "must be enabled, disabled or adaptive, got " + brief(type));
    if (type == "enabled") fields.integer("budget_tokens", 1, INT32_MAX);
    if (type != "adaptive") chat.kwargs["enable_thinking"] = type == "enabled";
    if (type == "disabled") chat.kwargs["thinking"] = false;
  }
}

void read_output_config(Fields& body, ChatPrompt& chat, GenerateRequest& r) {
  const Json* config = body.object("output_config");
  if (!config) return;
  Fields fields(*config, "output_config");
  if (const auto effort = fields.text("effort")) apply_effort(*effort, chat);
  const Json* format = fields.object("format");
  if (!format) return;
  Fields inner(*format, "output_config.format");
  if (inner.required_text("type") != "json_schema") refuse("output_config.format.type", "must be json_schema");
  const Json* schema = inner.object("schema");
  if (!schema) refuse("output_config.format.schema", "is required");
  r.grammar = json_grammar(*schema, true);
  r.grammar_field = "output_config.format";
}

std::optional<float> as_float(std::optional<double> value) { return value ? std::optional(static_cast<float>(*value)) : std::nullopt; }

}  // namespace

GenerateRequest read_anthropic(const ServedModel& model, const Json& json, bool counting) {
  Fields body(json);
  GenerateRequest r;
  ChatPrompt chat;
  require_model(model, body);
  const auto limit = body.integer("max_tokens", 1, INT32_MAX);
  if (!limit && !counting) refuse("max_tokens", "is required");
  if (limit) r.max_tokens = static_cast<uint32_t>(*limit);
  read_conversation(body, chat);
  read_client_tools(body, chat, r);
  read_thinking(body, chat);
  read_output_config(body, chat, r);
  r.stop = read_stop(body, "stop_sequences");
  r.temperature = as_float(body.number("temperature", 0, 2));
  r.top_p = as_float(body.number("top_p", 0, 1));
  r.top_k = body.integer("top_k", 0, INT32_MAX);
  r.stream = body.flag("stream", false);
  if (r.tool_use == ToolUse::required || r.tool_use == ToolUse::named) {
    if (r.grammar)
      throw ApiError(Fault::unsupported, "output_config.format together with a forced tool is not supported", "output_config.format");
    force_call(chat.tools, r);
  }
  for (const std::string& name : body.unknown()) r.ignored.push_back(name);
  r.prompts.emplace_back(std::move(chat));
  return r;
}

}  // namespace verbund::serve
