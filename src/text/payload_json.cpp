// Tool sections whose arguments are JSON.
#include <algorithm>

#include "text/payload_text.h"

namespace verbund::text::payload {
namespace {

// Where the object or array that begins at 0 ends; npos if it does not. Strings are skipped, brackets are only counted.
size_t json_end(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

}  // namespace

bool Cursor::take_json(Json& value) {
  if (!rest_.starts_with('{') && !rest_.starts_with('[')) return false;
  const size_t end = json_end(rest_);
  if (end == std::string_view::npos) return false;
  value = Json::parse(rest_.substr(0, end), nullptr, false);
  rest_.remove_prefix(end);
  return !value.is_discarded();
}

bool add_call(std::string id, std::string_view name, const Json& arguments, const Tools& tools, std::vector<ParsedCall>& calls) {
  if (!tools.find(name)) return false;
  if (arguments.is_string()) return add_call(std::move(id), name, std::string_view(arguments.get_ref<const std::string&>()), tools, calls);
  if (!arguments.is_object() && !arguments.is_null()) return false;
  calls.push_back({std::move(id), std::string(name), arguments.is_null() ? "{}" : dumped(arguments)});
  return true;
}

bool add_call(std::string id, std::string_view name, std::string_view arguments, const Tools& tools, std::vector<ParsedCall>& calls) {
  const std::string_view text = trimmed(arguments);
  const Json value = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
  return value.is_object() && add_call(std::move(id), name, value, tools, calls);
}

bool add_call(const Json& call, const Tools& tools, std::vector<ParsedCall>& calls) {
  if (!call.is_object()) return false;
  if (const auto function = call.find("function"); function != call.end() && function->is_object())
    return add_call(*function, tools, calls);
  const auto name = call.find("name");
  if (name == call.end() || !name->is_string()) return false;
  auto arguments = call.find("arguments");
  if (arguments == call.end()) arguments = call.find("parameters");
  const auto id = call.find("id");
  return add_call(id != call.end() && id->is_string() ? id->get<std::string>() : "", name->get_ref<const std::string&>(),
                  arguments == call.end() ? Json() : *arguments, tools, calls);
}

bool json_begins(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos || text[first] == '{' || text[first] == '[';
}

bool json_lines(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(text);
  Json value;
  bool any = false;
  for (;;) {
    cursor.skip_blank();
    while (cursor.take(";") || cursor.take(",")) cursor.skip_blank();
    if (cursor.done()) return any;
    if (!cursor.take_json(value)) return false;
    if (value.is_array()) {
      for (const Json& call : value)
        if (!add_call(call, tools, calls)) return false;
      any = any || !value.empty();
    } else {
      if (!add_call(value, tools, calls)) return false;
      any = true;
    }
  }
}

bool json_array(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) { return json_lines(text, tools, calls); }

// <|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>{...}<|tool_call_end|>, repeated.
bool kimi(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(text);
  bool any = false;
  for (;; any = true) {
    cursor.skip_blank();
    if (cursor.done()) return any;
    std::string_view id, arguments;
    if (!cursor.take("<|tool_call_begin|>") || !cursor.take_until("<|tool_call_argument_begin|>", id)) return false;
    if (!cursor.take_until("<|tool_call_end|>", arguments)) arguments = cursor.rest(), cursor.skip(arguments.size());
    id = trimmed(id);
    std::string_view name = id.substr(0, id.rfind(':'));
    if (name.starts_with("functions.")) name.remove_prefix(10);
    if (!add_call(std::string(id), name, arguments, tools, calls)) return false;
  }
}

// function<sep>N, a fence of JSON (V3, R1), or N<sep>JSON (V3.1), each between marks of a call.
bool deepseek(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(text);
  bool any = false;
  for (;; any = true) {
    cursor.skip_blank();
    if (cursor.done()) return any;
    std::string_view body, head;
    if (!cursor.take("<｜tool▁call▁begin｜>")) return false;
    if (!cursor.take_until("<｜tool▁call▁end｜>", body)) body = cursor.rest(), cursor.skip(body.size());
    Cursor call(body);
    if (!call.take_until("<｜tool▁sep｜>", head)) return false;
    std::string_view name = trimmed(head), arguments = call.rest();
    if (std::string_view fenced; name == "function" && call.take_until("```json", fenced)) {
      name = trimmed(fenced);
      arguments = call.rest().substr(0, call.rest().rfind("```"));
    }
    if (!add_call({}, name, arguments, tools, calls)) return false;
  }
}

// [{"name", "arguments", "id"}, ...], or N[CALL_ID]id[ARGS]{...} behind each mark.
bool mistral(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) {
  Cursor cursor(text);
  cursor.skip_blank();
  if (cursor.rest().starts_with('[') && !cursor.rest().starts_with("[TOOL_CALLS]")) return json_lines(cursor.rest(), tools, calls);
  bool any = false;
  for (;; any = true) {
    cursor.skip_blank();
    if (cursor.take("[TOOL_CALLS]")) cursor.skip_blank();
    if (cursor.done()) return any;
    const size_t end = cursor.rest().find_first_of("[{");
    if (end == std::string_view::npos) return false;
    const std::string_view name = trimmed(cursor.rest().substr(0, end));
    cursor.skip(end);
    std::string_view id;
    if (cursor.take("[CALL_ID]")) {
      const size_t id_end = cursor.rest().find_first_of("[{");
      if (id_end == std::string_view::npos) return false;
      id = trimmed(cursor.rest().substr(0, id_end));
      cursor.skip(id_end);
    }
    cursor.take("[ARGS]");
    cursor.skip_blank();
    Json arguments;
    if (!cursor.take_json(arguments) || !add_call(std::string(id), name, arguments, tools, calls)) return false;
  }
}

}  // namespace verbund::text::payload
