#include "serve/responses_items.h"

namespace verbund::serve {
namespace {

std::string part_text(const Json& part, const std::string& path) {
  Fields fields(part, path);
  const std::string type = fields.text("type").value_or("input_text");
  if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" || type == "summary_text")
    return fields.text("text").value_or("");
  if (type == "refusal") return fields.text("refusal").value_or("");
  if (type == "input_image" || type == "input_file" || type == "input_audio")
    throw ApiError(Fault::invalid, path + " is of type " + type + "; this model takes text only", path);
  refuse(path + ".type", "is " + brief(type) + ", which is not known here");
}

std::string text_of(const Json* content, const std::string& path) {
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse(path, "must be a string or an array of parts, got " + brief(*content));
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) text += part_text((*content)[i], path + "[" + std::to_string(i) + "]");
  return text;
}

// Reasoning, text and calls of one turn are items of their own here and one message to a template.
Json& assistant(ChatPrompt& chat) {
  if (chat.messages.empty() || chat.messages.back()["role"] != "assistant")
    chat.messages.push_back({{"role", "assistant"}, {"content", ""}});
  return chat.messages.back();
}

void add_message(Fields& item, const std::string& path, ChatPrompt& chat) {
  const std::string role = item.required_text("role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    refuse(path + ".role", "must be user, assistant, system or developer, got " + brief(role));
  const std::string text = text_of(item.any("content"), path + ".content");
  if (role != "assistant") return chat.messages.push_back({{"role", role}, {"content", text}});
  Json& message = assistant(chat);
  message["content"] = message["content"].get<std::string>() + text;
}

void add_call(Fields& item, Json arguments, ChatPrompt& chat) {
  assistant(chat)["tool_calls"].push_back({{"id", item.required_text("call_id")},
                                           {"type", "function"},
                                           {"function", {{"name", item.required_text("name")}, {"arguments", std::move(arguments)}}}});
}

Json parsed(const std::string& arguments) {
  Json json = Json::parse(arguments, nullptr, false);
  return json.is_object() ? json : Json(arguments);
}

}  // namespace

void append_items(const Json& items, ChatPrompt& chat, std::vector<std::string>& skipped) {
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string path = "input[" + std::to_string(i) + "]";
    Fields item(items[i], path);
    const std::string type = item.text("type").value_or("message");
    if (type == "message") {
      add_message(item, path, chat);
    } else if (type == "function_call") {
      add_call(item, parsed(item.text("arguments").value_or("{}")), chat);
    } else if (type == "custom_tool_call") {
      add_call(item, {{"input", item.text("input").value_or("")}}, chat);
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      const Json* output = item.any("output");
      chat.messages.push_back(
          {{"role", "tool"}, {"tool_call_id", item.required_text("call_id")}, {"content", text_of(output, path + ".output")}});
    } else if (type == "reasoning") {
      std::string text = text_of(item.array("content"), path + ".content");
      if (text.empty()) text = text_of(item.array("summary"), path + ".summary");
      if (!text.empty()) assistant(chat)["reasoning_content"] = text;
    } else if (type == "item_reference") {
      throw ApiError(Fault::invalid, path + " refers to an item that is not stored", path);
    } else if (type.ends_with("_call") || type.ends_with("_call_output") || type.starts_with("mcp_") || type == "compaction" ||
               type == "compaction_summary") {
      skipped.push_back(path);
    } else {
      refuse(path + ".type", "is " + brief(type) + ", which is not known here");
    }
  }
}

}  // namespace verbund::serve
