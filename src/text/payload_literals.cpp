// Tool sections in literals of their own: calls as Python writes them, and Gemma's. Read, never evaluated.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/payload_text.h"

namespace verbund::text::payload {
namespace {

constexpr int kDepthMax = 64;

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

std::string_view take_word(Cursor& cursor, std::string_view also = "") {
  const std::string_view text = cursor.rest();
  const auto end = std::find_if_not(text.begin(), text.end(), [&](char c) { return is_word(c) || also.find(c) != std::string_view::npos; });
  const std::string_view word = text.substr(0, static_cast<size_t>(end - text.begin()));
  cursor.skip(word.size());
  return word;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

bool take_hex(Cursor& cursor, size_t digits, std::string& out) {
  const std::string_view text = cursor.rest().substr(0, digits);
  uint32_t code = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
  if (text.size() != digits || problem != std::errc() || end != text.data() + digits) return false;
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  append_utf8(out, code);
  cursor.skip(digits);
  return true;
}

bool take_escape(Cursor& cursor, std::string& out) {
  if (cursor.done()) return false;
  const char c = cursor.rest().front();
  cursor.skip(1);
  switch (c) {
    case 'n': out += '\n'; return true;
    case 't': out += '\t'; return true;
    case 'r': out += '\r'; return true;
    case 'b': out += '\b'; return true;
    case 'f': out += '\f'; return true;
    case '\n': return true;
    case 'x': return take_hex(cursor, 2, out);
    case 'u': return take_hex(cursor, 4, out);
    case 'U': return take_hex(cursor, 8, out);
    case '\\':
    case '\'':
    case '"':
    case '/': out += c; return true;
    default: out += '\\', out += c; return true;  // as Python keeps what it does not know
  }
}

bool take_quoted(Cursor& cursor, Json& value) {
  const char quote = cursor.rest().front();
  const std::string mark = cursor.rest().starts_with(std::string(3, quote)) ? std::string(3, quote) : std::string(1, quote);
  cursor.skip(mark.size());
  std::string text;
  while (!cursor.take(mark)) {
    if (cursor.done()) return false;
    if (cursor.take("\\")) {
      if (!take_escape(cursor, text)) return false;
      continue;
    }
    text += cursor.rest().front();
    cursor.skip(1);
  }
  value = std::move(text);
  return true;
}

bool take_number(Cursor& cursor, Json& value) {
  const std::string_view text = cursor.rest();
  const size_t length = std::min(text.size(), text.find_first_not_of("+-0123456789.eE_"));
  std::string digits(text.substr(0, length));
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  int64_t whole = 0;
  const char* const end = digits.data() + digits.size();
  if (const auto r = std::from_chars(digits.data(), end, whole); r.ec == std::errc() && r.ptr == end) {
    value = whole;
  } else {
    double number = 0;
    const auto f = std::from_chars(digits.data(), end, number);
    if (f.ec != std::errc() || f.ptr != end || !std::isfinite(number)) return false;
    value = number;
  }
  cursor.skip(length);
  return true;
}

// Items up to `close`, separated by commas; a comma may end them.
template <class Item>
bool take_items(Cursor& cursor, std::string_view close, Item&& item) {
  for (;;) {
    cursor.skip_blank();
    if (cursor.take(close)) return true;
    if (!item()) return false;
    cursor.skip_blank();
    if (cursor.take(",")) continue;
    return cursor.take(close);
  }
}

bool take_python(Cursor& cursor, Json& value, int depth);

bool take_list(Cursor& cursor, std::string_view close, Json& value, int depth) {
  value = Json::array();
  return take_items(cursor, close, [&] { return take_python(cursor, value.emplace_back(), depth + 1); });
}

bool take_dict(Cursor& cursor, Json& value, int depth) {
  value = Json::object();
  return take_items(cursor, "}", [&] {
    Json key;
    if (!take_python(cursor, key, depth + 1)) return false;
    cursor.skip_blank();
    if (!cursor.take(":")) return false;
    return take_python(cursor, value[key.is_string() ? key.get<std::string>() : dumped(key)], depth + 1);
  });
}

bool take_python(Cursor& cursor, Json& value, int depth) {
  cursor.skip_blank();
  if (cursor.done() || depth > kDepthMax) return false;
  const char c = cursor.rest().front();
  if (c == '"' || c == '\'') return take_quoted(cursor, value);
  if (cursor.take("[")) return take_list(cursor, "]", value, depth);
  if (cursor.take("(")) return take_list(cursor, ")", value, depth);
  if (cursor.take("{")) return take_dict(cursor, value, depth);
  if (c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9')) return take_number(cursor, value);
  const std::string_view word = take_word(cursor);
  if (word == "True" || word == "true" || word == "False" || word == "false")
    value = word == "True" || word == "true";
  else if (word == "None" || word == "null")
    value = nullptr;
  else
    return false;
  return true;
}

bool take_python_call(Cursor& cursor, const Tools& tools, std::vector<ParsedCall>& calls) {
  const std::string_view name = take_word(cursor, ".-");
  cursor.skip_blank();
  if (name.empty() || !cursor.take("(")) return false;
  Json arguments = Json::object();
  const bool whole = take_items(cursor, ")", [&] {
    const std::string key(take_word(cursor));
    cursor.skip_blank();
    return !key.empty() && cursor.take("=") && take_python(cursor, arguments[key], 0);
  });
  return whole && add_call({}, name, arguments, tools, calls);
}

bool take_gemma(Cursor& cursor, Json& value, int depth);

// {k:v, ...} after its bracket.
bool take_gemma_object(Cursor& cursor, Json& value, int depth) {
  value = Json::object();
  return take_items(cursor, "}", [&] {
    std::string_view key;
    if (std::string_view quoted;
        cursor.take("<|\"|>") ? cursor.take_until("<|\"|>", quoted) : cursor.take("<escape>") && cursor.take_until("<escape>", quoted))
      key = quoted;
    else
      key = take_word(cursor, "-.$ ");
    cursor.skip_blank();
    key = trimmed(key);
    return !key.empty() && cursor.take(":") && take_gemma(cursor, value[std::string(key)], depth + 1);
  });
}

bool take_gemma(Cursor& cursor, Json& value, int depth) {
  cursor.skip_blank();
  if (cursor.done() || depth > kDepthMax) return false;
  for (const std::string_view mark : {"<|\"|>", "<escape>"}) {
    if (!cursor.take(mark)) continue;
    std::string_view text;
    if (!cursor.take_until(mark, text)) return false;
    value = std::string(text);
    return true;
  }
  if (cursor.rest().front() == '"') return take_quoted(cursor, value);
  if (cursor.take("{")) return take_gemma_object(cursor, value, depth);
  if (cursor.take("[")) {
    value = Json::array();
    return take_items(cursor, "]", [&] { return take_gemma(cursor, value.emplace_back(), depth + 1); });
  }
  const std::string_view text = cursor.rest();
  const std::string_view bare = trimmed(text.substr(0, text.find_first_of(",}]")));
  if (bare.empty()) return false;
  cursor.skip(static_cast<size_t>(bare.data() - text.data()) + bare.size());
  const Json parsed = Json::parse(bare, nullptr, false);
  value = parsed.is_discarded() ? Json(std::string(bare)) : parsed;
  return true;
}

}  // namespace

bool python(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(trimmed(text));
  if (cursor.rest().starts_with('{')) return json_lines(cursor.rest(), tools, calls);
  const bool list = cursor.take("[");
  bool any = false;
  const auto one = [&] {
    any = true;
    return take_python_call(cursor, tools, calls);
  };
  if (list) {
    const bool whole = take_items(cursor, "]", one);
    cursor.skip_blank();
    return whole && any && cursor.done();
  }
  for (;;) {  // one a line
    cursor.skip_blank();
    if (cursor.done()) return any;
    if (!one()) return false;
  }
}

bool python_begins(std::string_view text) {
  Cursor cursor(text);
  cursor.skip_blank();
  if (cursor.rest().starts_with('{')) return true;
  cursor.take("[");
  cursor.skip_blank();
  if (cursor.done()) return true;
  const std::string_view name = take_word(cursor, ".-");
  cursor.skip_blank();
  return !name.empty() && (cursor.done() || cursor.rest().starts_with('('));
}

bool gemma(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(text);
  for (bool any = false;; any = true) {
    cursor.skip_blank();
    if (cursor.done()) return any;
    if (!cursor.take("call:")) return false;
    const std::string_view name = take_word(cursor, ".-");
    cursor.skip_blank();
    Json arguments;
    if (!cursor.take("{") || !take_gemma_object(cursor, arguments, 0) || !add_call({}, name, arguments, tools, calls)) return false;
  }
}

}  // namespace verbund::text::payload
