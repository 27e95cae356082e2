// How the families of models write tool calls and reasoning into their text: one table (docs/serving.md has it for people), and what a
// section of such text says. Immutable; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_schema.h"

namespace verbund::text {

struct ParsedCall {
  std::string id;  // as the model wrote it; empty: it has none
  std::string name;
  std::string arguments;  // JSON text of an object
};

// Text between two marks that holds calls.
struct ToolSection {
  std::string_view open;
  std::string_view close;  // empty: it goes on to the end of the answer
  size_t keep = 0;         // so many last bytes of `open` belong to the section's text
};

struct ToolFormat {
  std::string_view name;
  std::vector<ToolSection> sections;
  // What opens a section if it is the first thing in an answer, as in `{"name": ...`; 0: nothing does.
  char whole_answer = 0;
  // Whether a section may begin like this: false ends the attempt at once. Only asked of marks that are plain text.
  bool (*begins)(std::string_view text) = nullptr;
  // The calls of a section. False if it is malformed anywhere or calls a tool that is not offered; `calls` then has those before.
  bool (*parse)(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls) = nullptr;
  bool nine_letter_ids = false;  // calls without an id get one of nine letters and digits
  bool harmony = false;          // channels and recipients (harmony.h); has no sections
};

struct ReasoningFormat {
  std::string_view name, open, close;
  std::string_view open_tail;  // plain text that belongs to the opening mark behind its token
};

std::span<const ToolFormat> tool_formats();
std::span<const ReasoningFormat> reasoning_formats();

// By name (aliases too): the format, nullptr for "none". Throws invalid_argument that lists the names.
const ToolFormat* tool_format(std::string_view name);
const ReasoningFormat* reasoning_format(std::string_view name);
// What the model's chat template uses; nullptr: nothing that is known.
const ToolFormat* detect_tool_format(std::string_view chat_template);
const ReasoningFormat* detect_reasoning_format(std::string_view chat_template);

// The texts of sections, by kind of payload.
namespace payload {
bool tool_call_tag(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);  // JSON, functions, or keys and values
bool tool_call_tag_begins(std::string_view text);
bool json_array(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);  // [{"name", "arguments"}, ...], or one
bool json_lines(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);  // {"name", "parameters"}; {...}
bool json_begins(std::string_view text);
bool kimi(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);
bool deepseek(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);
bool mistral(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);
bool invokes(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);  // <invoke name="N"><parameter name="K">V
bool dsml(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);
bool python(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);  // [f(a=1), g()]
bool python_begins(std::string_view text);
bool gemma(std::string_view text, const Tools& tools, std::vector<ParsedCall>& calls);  // call:N{k:v}
}  // namespace payload

}  // namespace verbund::text
