// Takes a model's text apart while it streams: content, reasoning, tool calls. Total: any input gives a result, in linear time, and what is
// no call after all is content; only marks themselves and blanks around calls and reasoning are left out. How the text is cut into pieces
// never changes the result. One stream, one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_formats.h"

namespace verbund::text {

struct OutputPiece {
  enum class Kind { content, reasoning, call };
  Kind kind = Kind::content;
  std::string text;  // of content and reasoning
  ParsedCall call;
  size_t begin = 0, end = 0;  // bytes of the stream's text that became this; marks count nothing
};

struct OutputFormat {
  const ToolFormat* tools = nullptr;           // null: calls are content
  const ReasoningFormat* reasoning = nullptr;  // null: so is reasoning
  // Whether a mark is one token of the model. Then only that token is the mark, and the same characters from others are text.
  std::function<bool(std::string_view)> is_token;
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Text, without marks that are tokens. Valid UTF-8.
  virtual std::vector<OutputPiece> push(std::string_view text) = 0;
  // A special token, known or not; unknown ones are dropped from content.
  virtual std::vector<OutputPiece> mark(std::string_view token) = 0;
  // The end; cut: by a limit, so that a call that is not whole is dropped.
  virtual std::vector<OutputPiece> finish(bool cut) = 0;
  virtual size_t decided() const = 0;  // bytes of text that belong to pieces given out, or to none
};

// tools: those offered; empty: calls are content. in_reasoning: the prompt has opened the reasoning.
std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, Tools tools, bool in_reasoning);

}  // namespace verbund::text
