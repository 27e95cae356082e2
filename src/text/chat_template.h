// Chat templates (Jinja) as Hugging Face renders them: minijinja with Python string methods, `raise_exception`,
// `strftime_now`, `tojson`, loop controls. Immutable after creation; any thread. The number of instructions and the depth of
// recursion are limited; the memory of a template that doubles a string over and over is not.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace verbund::text {

class ChatTemplate {
 public:
  // Throws invalid_argument with the line of a syntax error.
  explicit ChatTemplate(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  struct Input {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // [{"role", "content", ...}]
    nlohmann::ordered_json tools;                                       // array or null
    bool add_generation_prompt = true;
    std::string bos_token, eos_token;
    nlohmann::ordered_json extra = nlohmann::ordered_json::object();  // further variables (chat_template_kwargs)
  };
  // Throws invalid_argument with the template's own text when it calls raise_exception, or when it runs out of fuel.
  std::string render(const Input& input) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbund::text
