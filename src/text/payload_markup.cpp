// Tool sections that write each parameter between tags. Their values have no type but the tool's schema.
#include <algorithm>

#include "text/payload_text.h"

namespace verbund::text::payload {
namespace {

// How a family spells a call: <function=N>, <parameter=K>V</parameter>, </function>.
struct Tags {
  std::string_view call, call_end;            // the name stands between `call` and `open_end`
  std::string_view parameter, parameter_end;  // likewise the key
  std::string_view open_end;                  // what ends an opening tag
  bool attributes;                            // an opening tag goes on after the name: ` string="true">`, or `>`
  bool whole_lines;                           // a value's text is lines of its own: one line break on each side is not part of it
};

constexpr Tags kFunctions{"<function=", "</function>", "<parameter=", "</parameter>", ">", false, true};
constexpr Tags kInvokes{"<invoke name=\"", "</invoke>", "<parameter name=\"", "</parameter>", "\">", false, false};
constexpr Tags kDsml{
    "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"", "</｜DSML｜parameter>", "\"", true, false};

std::string_view without_line_breaks(std::string_view value) {
  if (value.starts_with("\r\n"))
    value.remove_prefix(2);
  else if (value.starts_with('\n'))
    value.remove_prefix(1);
  if (value.ends_with("\r\n"))
    value.remove_suffix(2);
  else if (value.ends_with('\n'))
    value.remove_suffix(1);
  return value;
}

// A value may hold tags, its own end tag too: it ends where after the end tag another parameter, the call's end or nothing comes.
bool take_value(Cursor& cursor, const Tags& tags, std::string_view& value) {
  const std::string_view text = cursor.rest();
  for (size_t at = text.find(tags.parameter_end); at != std::string_view::npos; at = text.find(tags.parameter_end, at + 1)) {
    Cursor after(text.substr(at + tags.parameter_end.size()));
    after.skip_blank();
    if (!after.done() && !after.rest().starts_with(tags.parameter) && !after.rest().starts_with(tags.call_end)) continue;
    value = text.substr(0, at);
    cursor.skip(at + tags.parameter_end.size());
    return true;
  }
  return false;
}

bool take_call(Cursor& cursor, const Tags& tags, const Tools& tools, std::vector<ParsedCall>& calls) {
  std::string_view name, key, value;
  if (!cursor.take(tags.call) || !cursor.take_until(tags.open_end, name)) return false;
  if (tags.attributes) cursor.take(">");
  const Tool* tool = tools.find(trimmed(name));
  if (!tool) return false;
  Json arguments = Json::object();
  for (;;) {
    cursor.skip_blank();
    if (cursor.take(tags.call_end) || cursor.done()) return add_call({}, tool->name, arguments, tools, calls);
    if (!cursor.take(tags.parameter) || !cursor.take_until(tags.open_end, key)) return false;
    key = trimmed(key);
    const bool is_json = tags.attributes && cursor.take(" string=\"false\">");
    const bool is_text = tags.attributes && !is_json && cursor.take(" string=\"true\">");
    if (tags.attributes && !is_json && !is_text) cursor.take(">");
    if (!take_value(cursor, tags, value)) return false;
    if (tags.whole_lines) value = without_line_breaks(value);
    if (is_json) {
      const Json parsed = Json::parse(value, nullptr, false);
      arguments[std::string(key)] = parsed.is_discarded() ? Json(std::string(value)) : parsed;
    } else {
      arguments[std::string(key)] = is_text ? Json(std::string(value)) : Tools::typed(*tool, key, value);
    }
  }
}

bool take_calls(std::string_view text, const Tags& tags, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(text);
  for (bool any = false;; any = true) {
    cursor.skip_blank();
    if (cursor.done()) return any;
    if (!take_call(cursor, tags, tools, calls)) return false;
  }
}

// N, then <arg_key>K</arg_key> and <arg_value>V</arg_value> by turns.
bool keys_and_values(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  constexpr std::string_view kKey = "<arg_key>", kValue = "<arg_value>";
  Cursor cursor(text);
  const size_t name_end = std::min(text.find(kKey), text.size());
  const Tool* tool = tools.find(trimmed(text.substr(0, name_end)));
  if (!tool) return false;
  cursor.skip(name_end);
  Json arguments = Json::object();
  for (;;) {
    cursor.skip_blank();
    if (cursor.done()) return add_call({}, tool->name, arguments, tools, calls);
    std::string_view key, value;
    if (!cursor.take(kKey) || !cursor.take_until("</arg_key>", key)) return false;
    cursor.skip_blank();
    if (!cursor.take(kValue) || !cursor.take_until("</arg_value>", value)) return false;
    arguments[std::string(trimmed(key))] = Tools::typed(*tool, trimmed(key), value);
  }
}

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

}  // namespace

bool tool_call_tag(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  text = trimmed(text);
  if (text.starts_with('{')) return json_lines(text, tools, calls);
  if (text.starts_with(kFunctions.call)) return take_calls(text, kFunctions, tools, calls);
  return !text.empty() && keys_and_values(text, tools, calls);
}

bool tool_call_tag_begins(std::string_view text) {
  text = text.substr(std::min(text.size(), text.find_first_not_of(kBlank)));
  if (text.empty() || text.front() == '{') return true;
  if (text.front() == '<') return text.substr(0, kFunctions.call.size()) == kFunctions.call.substr(0, text.size());
  // A tool's name, and then nothing but keys and values, or the section's end.
  const auto end = std::find_if_not(text.begin(), text.end(), is_name);
  if (end == text.begin()) return false;
  const std::string_view after = trimmed(text.substr(static_cast<size_t>(end - text.begin())));
  constexpr std::string_view kKey = "<arg_key>";
  return after.substr(0, kKey.size()) == kKey.substr(0, after.size()) || after.starts_with("</");
}

bool invokes(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) { return take_calls(text, kInvokes, tools, calls); }
bool dsml(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) { return take_calls(text, kDsml, tools, calls); }

}  // namespace verbund::text::payload
