// What the readers of tool sections share. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tool_formats.h"

namespace verbund::text::payload {

using Json = nlohmann::ordered_json;

inline constexpr std::string_view kBlank = " \t\r\n";

inline std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos ? std::string_view() : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}
inline std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// A text that is read from its front.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}
  std::string_view rest() const { return rest_; }
  bool done() const { return rest_.empty(); }
  void skip_blank() { rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of(kBlank))); }
  void skip(size_t n) { rest_.remove_prefix(std::min(n, rest_.size())); }
  // Takes `word` if the text goes on with it.
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  // The text up to `mark`, which is taken too; false, and nothing is taken, if it does not come.
  bool take_until(std::string_view mark, std::string_view& text) {
    const size_t at = rest_.find(mark);
    if (at == std::string_view::npos) return false;
    text = rest_.substr(0, at);
    rest_.remove_prefix(at + mark.size());
    return true;
  }
  // The JSON object or array that comes next; false if there is none that is whole.
  bool take_json(Json& value);

 private:
  std::string_view rest_;
};

// Adds a call of an offered tool; arguments must be an object (absent: without any) or a text that holds one.
bool add_call(std::string id, std::string_view name, const Json& arguments, const Tools& tools, std::vector<ParsedCall>& calls);
bool add_call(std::string id, std::string_view name, std::string_view arguments, const Tools& tools, std::vector<ParsedCall>& calls);
bool add_call(const Json& call, const Tools& tools, std::vector<ParsedCall>& calls);  // {"name", "arguments" or "parameters", "id"}

}  // namespace verbund::text::payload
