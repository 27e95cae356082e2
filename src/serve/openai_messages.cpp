#include "serve/openai_messages.h"

namespace verbund::serve {
namespace {

constexpr size_t kToolsMax = 512;

// Text parts are joined; what a text model cannot take is refused.
std::string part_text(const Json& part, const std::string& path) {
  Fields fields(part, path);
  const std::string type = fields.text("type").value_or("text");
  if (type == "text" || type == "input_text" || type == "output_text") return fields.text("text").value_or("");
  if (type == "refusal") return fields.text("refusal").value_or("");
  if (type == "image_url") throw ApiError(Fault::invalid, path + " is an image; this model takes text only", path);
  if (type == "input_audio" || type == "file")
    throw ApiError(Fault::unsupported, path + " is of type " + type + "; this model takes text only", path);
  refuse(path + ".type", "must be text, got " + brief(type));
}

std::string content_text(Fields& message, bool may_be_absent) {
  const Json* content = message.any("content");
  const std::string path = message.path("content");
  if (!content) {
    if (may_be_absent) return {};
    refuse(path, "is required");
  }
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse(path, "must be a string or an array of parts, got " + brief(*content));
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) text += part_text((*content)[i], path + "[" + std::to_string(i) + "]");
  return text;
}

// Arguments arrive as a JSON text; templates want the object. What does not parse stays a text.
Json arguments_of(const Json& arguments) {
  if (!arguments.is_string()) return arguments;
  Json parsed = Json::parse(arguments.get<std::string>(), nullptr, false);
  return parsed.is_object() ? parsed : arguments;
}

Json tool_calls_of(const Json& calls, const std::string& path) {
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    Fields call(calls[i], at);
    const Json* function = call.object("function");
    if (!function) refuse(at + ".function", "is required");
    Fields fields(*function, at + ".function");
    Json inner{{"name", fields.required_text("name")}};
    const Json* arguments = fields.any("arguments");
    inner["arguments"] = arguments ? arguments_of(*arguments) : Json::object();
    out.push_back({{"id", call.text("id").value_or("")}, {"type", "function"}, {"function", std::move(inner)}});
  }
  return out;
}

Json message_of(const Json& value, const std::string& path) {
  Fields message(value, path);
  const std::string role = message.required_text("role");
  Json out{{"role", role}};
  if (role == "assistant") {
    const Json* calls = message.array("tool_calls");
    const bool has_calls = calls && !calls->empty();
    out["content"] = content_text(message, true);
    if (has_calls) out["tool_calls"] = tool_calls_of(*calls, path + ".tool_calls");
    for (const char* key : {"reasoning_content", "reasoning"})
      if (const auto text = message.text(key)) out["reasoning_content"] = *text;
  } else if (role == "tool" || role == "function") {
    out["role"] = "tool";
    if (role == "tool") out["tool_call_id"] = message.required_text("tool_call_id");
    out["content"] = content_text(message, true);
  } else if (role == "system" || role == "developer" || role == "user") {
    out["content"] = content_text(message, false);
  } else {
    refuse(path + ".role", "must be system, developer, user, assistant or tool, got " + brief(role));
  }
  if (const auto name = message.text("name")) out["name"] = *name;
  return out;
}

bool valid_name(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  for (const char c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') return false;
  return true;
}

Json function_of(const Json& value, const std::string& path) {
  Fields fields(value, path);
  const std::string name = fields.required_text("name");
  if (!valid_name(name)) refuse(path + ".name", "must be 1 to 64 letters, digits, _ or -, got " + brief(name));
  Json function{{"name", name}};
  if (const auto description = fields.text("description")) function["description"] = *description;
  const Json* parameters = fields.object("parameters");
  function["parameters"] = parameters ? *parameters : Json{{"type", "object"}, {"properties", Json::object()}};
  if (fields.flag("strict", false)) function["strict"] = true;
  return {{"type", "function"}, {"function", std::move(function)}};
}

bool offered(const Json& tools, const std::string& name) {
  for (const Json& tool : tools)
    if (tool["function"]["name"] == name) return true;
  return false;
}

std::string name_in(const Json& choice, const std::string& path) {
  Fields fields(choice, path);
  const Json* function = fields.object("function");
  if (!function) return fields.required_text("name");
  return Fields(*function, path + ".function").required_text("name");
}

void choose_named(const Json& tools, std::string name, const std::string& path, GenerateRequest& request) {
  if (!offered(tools, name)) refuse(path, "names " + brief(name) + ", which is not among the tools");
  request.tool_use = ToolUse::named;
  request.tool_name = std::move(name);
}

void choose_word(const std::string& word, const std::string& path, GenerateRequest& request) {
  if (word == "none") return void(request.tool_use = ToolUse::none);
  if (word == "auto") return void(request.tool_use = ToolUse::automatic);
  if (word == "required") return void(request.tool_use = ToolUse::required);
  refuse(path, "must be none, auto, required or an object, got " + brief(word));
}

// Only these tools may be called, so only they are shown.
void read_allowed(const Json& choice, ChatPrompt& chat, GenerateRequest& request) {
  Fields outer(choice, "tool_choice");
  const Json* inner = outer.object("allowed_tools");
  Fields fields(inner ? *inner : choice, "tool_choice.allowed_tools");
  choose_word(fields.text("mode").value_or("auto"), "tool_choice.allowed_tools.mode", request);
  const Json* list = fields.array("tools");
  Json kept = Json::array();
  for (size_t i = 0; list && i < list->size(); ++i) {
    const std::string path = "tool_choice.allowed_tools.tools[" + std::to_string(i) + "]";
    const std::string name = name_in((*list)[i], path);
    if (!offered(chat.tools, name)) refuse(path, "names " + brief(name) + ", which is not among the tools");
    for (const Json& tool : chat.tools)
      if (tool["function"]["name"] == name) kept.push_back(tool);
  }
  chat.tools = std::move(kept);
}

}  // namespace

void apply_effort(const std::string& effort, ChatPrompt& chat) {
  for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"})
    if (effort == known) {
      chat.kwargs["enable_thinking"] = effort != "none";
      if (effort == "none") chat.kwargs["thinking"] = false;
      if (effort != "none")
        chat.kwargs["reasoning_effort"] = effort == "minimal" ? "low" : effort == "xhigh" || effort == "max" ? "high" : effort;
      return;
    }
  refuse("reasoning_effort", "must be none, minimal, low, medium, high, xhigh or max, got " + brief(effort));
}

void read_messages(Fields& body, ChatPrompt& chat) {
  const Json* messages = body.array("messages");
  if (!messages) refuse("messages", "is required");
  if (messages->empty()) refuse("messages", "must have at least one message");
  for (size_t i = 0; i < messages->size(); ++i) chat.messages.push_back(message_of((*messages)[i], "messages[" + std::to_string(i) + "]"));
  if (const Json* kwargs = body.object("chat_template_kwargs")) chat.kwargs = *kwargs;
  for (const char* ours : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) chat.kwargs.erase(ours);
  if (const auto effort = body.text("reasoning_effort")) apply_effort(*effort, chat);
  chat.continue_final = body.flag("continue_final_message", false);
  if (chat.continue_final && chat.messages.back()["role"] != "assistant")
    refuse("continue_final_message", "needs a last message of role assistant");
  body.boolean("add_generation_prompt");
}

void read_tools(Fields& body, ChatPrompt& chat, GenerateRequest& request) {
  const Json* tools = body.array("tools");
  const Json* functions = body.array("functions");
  chat.tools = Json::array();
  if (tools && tools->size() > kToolsMax) refuse("tools", "has " + std::to_string(tools->size()) + " entries, at most 512 are allowed");
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    Fields tool((*tools)[i], path);
    if (const std::string type = tool.text("type").value_or("function"); type != "function")
      throw ApiError(Fault::invalid, path + ".type must be function, got " + brief(type), path + ".type");
    const Json* function = tool.object("function");
    if (!function) refuse(path + ".function", "is required");
    chat.tools.push_back(function_of(*function, path + ".function"));
  }
  for (size_t i = 0; functions && i < functions->size(); ++i)
    chat.tools.push_back(function_of((*functions)[i], "functions[" + std::to_string(i) + "]"));

  request.tool_use = chat.tools.empty() ? ToolUse::none : ToolUse::automatic;
  const char* key = body.any("tool_choice") ? "tool_choice" : "function_call";
  const Json* choice = body.any(key);
  body.any("function_call");
  if (choice && choice->is_string()) {
    choose_word(choice->get<std::string>(), key, request);
  } else if (choice) {
    Fields fields(*choice, key);
    if (fields.text("type").value_or("function") == "allowed_tools")
      read_allowed(*choice, chat, request);
    else
      choose_named(chat.tools, name_in(*choice, key), key, request);
  }
  if (chat.tools.empty() && request.tool_use == ToolUse::required) refuse(key, "is required, but there are no tools");
  if (chat.tools.empty()) request.tool_use = ToolUse::none;
  if (request.tool_use == ToolUse::none) chat.tools = nullptr;
  request.parallel_tool_calls = body.flag("parallel_tool_calls", true);
}

}  // namespace verbund::serve
