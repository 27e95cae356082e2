#include "text/chat_template.h"

#include "text/border.h"

namespace verbund::text {
namespace {

constexpr std::string_view kWhere = "chat template";

std::string variables_of(const ChatTemplate::Input& input) {
  nlohmann::ordered_json variables = input.extra.is_null() ? nlohmann::ordered_json::object() : input.extra;
  if (!variables.is_object()) throw Error(Code::invalid_argument, "chat template variables must be an object", std::string(kWhere));
  variables["messages"] = input.messages;
  variables["tools"] = input.tools;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  variables["bos_token"] = input.bos_token;
  variables["eos_token"] = input.eos_token;
  if (!variables.contains("documents")) variables["documents"] = nullptr;  // none, not undefined, as transformers passes it
  try {
    return variables.dump();
  } catch (const nlohmann::json::exception& error) {
    throw Error(Code::invalid_argument, std::string("messages are not valid UTF-8: ") + error.what(), std::string(kWhere));
  }
}

}  // namespace

struct ChatTemplate::Impl {
  ~Impl() { vbt_template_free(chat_template); }
  vbt_template* chat_template = nullptr;
};

ChatTemplate::ChatTemplate(std::string_view source) : impl_(std::make_unique<Impl>()) {
  vbt_text error{};
  check(vbt_template_new(view_of(source), &impl_->chat_template, &error), error, {});
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const Input& input) const {
  const std::string variables = variables_of(input);
  vbt_text text{}, error{};
  check(vbt_template_render(impl_->chat_template, view_of(variables), &text, &error), error, {});
  return take(text);
}

}  // namespace verbund::text
