#include "serve/chat_prompt.h"

#include <cstdio>

#include "serve/fields.h"

namespace verbund::serve {
namespace {

// Noncharacters: no text for interchange has them, and one that all the same does leaves others free.
constexpr char32_t kGuardFirst = 0xfdd0, kGuardLast = 0xfdef;

std::string utf8(char32_t c) {
  return {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
}

char32_t free_guard(const Json& messages) {
  const std::string text = messages.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (char32_t guard = kGuardFirst; guard <= kGuardLast; ++guard)
    if (text.find(utf8(guard)) == std::string::npos) return guard;
  throw ApiError(Fault::invalid, "messages use every character that is kept free for the server", "messages");
}

void guard_texts(const text::Tokenizer& tokenizer, char32_t guard, Json& value) {
  if (value.is_string()) {
    value = tokenizer.guard(value.get_ref<const std::string&>(), guard);
  } else if (value.is_structured()) {
    for (Json& inner : value) guard_texts(tokenizer, guard, inner);
  }
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
}

// A template without a developer role gets it as system, which is what such models know.
void rename_developer(const ServedModel& model, Json& messages) {
  if (model.template_source.find("developer") != std::string::npos) return;
  for (Json& message : messages)
    if (message.value("role", "") == "developer") message["role"] = "system";
}

// Cuts what the template writes after the last message's text, so that the model goes on with it.
void cut_after_final(std::string& prompt, const std::string& content) {
  const size_t last = content.find_last_not_of(" \t\r\n");
  const std::string end = last == std::string::npos ? std::string() : content.substr(0, last + 1);
  const size_t at = prompt.rfind(end);
  if (!end.empty() && at != std::string::npos) prompt.resize(at + end.size());
}

}  // namespace

std::vector<int32_t> encode_chat(const ServedModel& model, const ChatPrompt& chat) {
  if (!model.chat_template)
    throw ApiError(Fault::invalid, "the model '" + model.id + "' has no chat template; use /v1/completions", "messages");
  const char32_t guard = free_guard(chat.messages);
  text::ChatTemplate::Input input;
  input.messages = chat.messages;
  rename_developer(model, input.messages);
  for (Json& message : input.messages)
    if (const std::string role = message.value("role", ""); role == "user" || role == "tool")
      if (message.contains("content")) guard_texts(*model.tokenizer, guard, message["content"]);
  input.tools = chat.tools;
  input.extra = chat.kwargs;
  input.add_generation_prompt = !chat.continue_final;
  input.bos_token = model.bos_token;
  input.eos_token = model.eos_token;
  try {
    std::string prompt = model.chat_template->render(input);
    char escaped[8];  // as a template's tojson(ensure_ascii=true) writes it
    std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(guard));
    replace_all(prompt, escaped, utf8(guard));
    if (chat.continue_final) {
      const Json& last = input.messages.back();
      cut_after_final(prompt, last.contains("content") && last["content"].is_string() ? last["content"].get<std::string>() : "");
    }
    return model.tokenizer->encode_guarded(prompt, guard);
  } catch (const Error& e) {
    if (e.code() != Code::invalid_argument) throw;
    throw ApiError(Fault::invalid, e.parts().what, "messages");
  }
}

}  // namespace verbund::serve
