// What every dialect asks for and gets back, in nobody's words: the one type between the API translators and the engine.
//
//   body --translate--> GenerateRequest --prepare--> engine::Request per choice --> ChoiceReader --> Delta, ChoiceResult
//        <--ReplyWriter-----------------------------------------------------------
//
// A dialect is two pieces without I/O: a function that translates a body into a GenerateRequest, and a ReplyWriter that turns
// deltas and results into its frames and objects (answer.h runs both).
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "serve/api_error.h"
#include "serve/served_model.h"

namespace verbund::serve {

// A conversation in the form chat templates read: {"role": system|developer|user|assistant|tool, "content": string, ...};
// assistant messages may have "tool_calls" [{"id", "type": "function", "function": {"name", "arguments": object or string}}]
// and "reasoning_content", tool messages "tool_call_id" and "name".
struct ChatPrompt {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;  // [{"type": "function", "function": {"name", "description", "parameters"}}] or null
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();  // chat_template_kwargs
  bool continue_final = false;                                       // the last message is the assistant's and goes on
  bool truncate = false;  // leave out the oldest messages (not the system's) of a conversation that does not fit
};
using Prompt = std::variant<ChatPrompt, std::string, std::vector<int32_t>>;

enum class ToolUse { none, automatic, required, named };

struct GenerateRequest {
  std::vector<Prompt> prompts;  // each is answered n times; choice = prompt * n + i
  std::vector<int32_t> before;  // tokens in front of each prompt
  uint32_t n = 1;

  // Absent: the model's own recommendation, then 1 (temperature, top_p) or off.
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  float frequency_penalty = 0, presence_penalty = 0;
  std::map<int32_t, float> logit_bias;
  std::optional<uint64_t> seed;

  std::optional<uint32_t> max_tokens;  // absent: up to the end of the context
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::optional<uint32_t> logprobs;  // with so many alternatives
  bool echo = false;                 // the prompt's text and its log-probabilities come first

  std::optional<engine::Grammar> grammar;
  std::string grammar_field;  // for messages about it: "response_format"

  ToolUse tool_use = ToolUse::none;
  std::string tool_name;  // if named
  bool parallel_tool_calls = true;
  bool answer_is_call = false;  // the grammar makes the whole answer {"name": ..., "arguments": {...}}

  bool stream = false;
  int32_t priority = 0;
  std::vector<std::string> ignored;  // fields nobody knows: named in the header x-verbund-ignored
};

struct TokenInfo {
  int32_t id = 0;
  std::string text;  // decoded by itself; U+FFFD for a part of a character
  std::string bytes;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenInfo chosen;
  std::vector<TokenInfo> top;  // best first
};

struct ToolCall {
  std::string id, name, arguments;  // arguments: a JSON text
};

// A piece of an answer, in the order of generation.
struct Delta {
  enum class Kind { content, reasoning, tool_begin, tool_arguments };
  uint32_t choice = 0;
  Kind kind = Kind::content;
  std::string text;                     // content, reasoning, or a part of the arguments
  size_t tool = 0;                      // index of the call
  std::string tool_id, tool_name;       // with tool_begin
  std::vector<TokenLogprobs> logprobs;  // of the tokens whose text is complete with this piece
};

enum class Finish { stop, length, tool_calls };

struct ChoiceResult {
  uint32_t choice = 0;
  std::string content, reasoning;
  std::vector<ToolCall> tool_calls;
  std::vector<TokenLogprobs> logprobs;
  Finish finish = Finish::stop;
  std::string stop_string;  // the one that ended it
  uint32_t output_tokens = 0, reasoning_tokens = 0;
  std::vector<int32_t> tokens;  // as sampled
  // With echo: what the prompt's tokens are and how likely each was; the first has none.
  std::vector<TokenLogprobs> prompt_logprobs;
};

struct ReplyUsage {
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, reasoning_tokens = 0;
  double prefill_s = 0, decode_s = 0;
};

// What a reply is told before its first piece.
struct ReplyStart {
  size_t choices = 1;
  uint64_t prompt_tokens = 0;
  std::vector<std::string> prompt_texts;  // with echo: one a prompt
  std::vector<int32_t> first_prompt;      // token ids
};

class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  // Streams: each returns whole frames, or nothing.
  virtual std::string content_type() const { return "text/event-stream; charset=utf-8"; }
  virtual std::string begin(const ReplyStart& start) = 0;
  virtual std::string delta(const Delta& delta) = 0;
  virtual std::string finish(const ChoiceResult& result) = 0;  // of each choice, when it ends
  virtual std::string end(const ReplyUsage& usage) = 0;        // the terminal form
  virtual std::string failure(const ApiError& error) = 0;      // the other terminal form
  virtual std::string keep_alive() { return ": keep-alive\n\n"; }
  // The answer in one object; results in the order of choices.
  virtual nlohmann::ordered_json whole(const ReplyStart& start, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) = 0;
};

// "data: {...}\n\n", with "event: NAME\n" before it if there is a name.
std::string sse(const nlohmann::ordered_json& data, std::string_view event = {});
std::string random_id(std::string_view prefix, size_t length = 24);  // letters and digits
int64_t unix_seconds();

}  // namespace verbund::serve
