// What is asked of the engine: token ids in, how to choose the next ones, when to end. Plain data; any thread.
//
// Everything here can come from outside (an API body), so validate() checks each field and names the one that is wrong.
// API dialects may be narrower (OpenAI: temperature at most 2); the limits here are what the sampler defines a result for.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"

namespace verbund::engine {

struct SamplingParams {
  float temperature = 1;         // 0: greedy, ties to the lowest id
  int64_t top_k = 0;             // 0, or at least the vocabulary: off
  float top_p = 1;               // 1: off; 0: the best token only
  float min_p = 0;               // 0: off
  float repetition_penalty = 1;  // 1: off; each distinct token of prompt and output
  float frequency_penalty = 0;   // times the token's count in the output
  float presence_penalty = 0;    // once if the token is in the output
  std::map<int32_t, float> logit_bias{};
  std::optional<uint64_t> seed{};  // must be set before sampling (ensure_seed); reported to the user
  uint32_t choice = 0;             // index among the n choices of one API request: they share a seed, not the draws

  bool greedy() const { return temperature == 0; }
  bool needs_history() const { return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0; }
  // Throws invalid_argument naming the field. Ids of logit_bias must be below `vocabulary`.
  void validate(size_t vocabulary) const;
};

// Draws 64 bits from the operating system if no seed was given; returns the seed in use.
uint64_t ensure_seed(SamplingParams& params);

// stop: an end token or a stop string. length: max_tokens reached or context full.
enum class FinishReason { stop, length, cancelled, error };
std::string_view to_string(FinishReason reason);

constexpr uint32_t kNoTokenLimit = std::numeric_limits<uint32_t>::max();
constexpr size_t kStopsMax = 256;       // each piece of text is searched for each of them
constexpr size_t kStopBytesMax = 4096;  // longest text that may be held back

// What an answer must look like from its first token on (text/grammar.h).
struct Grammar {
  text::GrammarKind kind = text::GrammarKind::json_schema;
  std::string source;
};
constexpr size_t kGrammarBytesMax = 256 << 10;
constexpr uint32_t kLogprobsMax = 20;

struct Request {
  uint64_t id = 0;  // unique among live requests; chosen by the caller
  std::vector<int32_t> prompt;
  // Tokens of this answer that an earlier life of the instance has sampled: they are replayed and never sampled again,
  // count as output for penalties and max_tokens, and are not reported again.
  std::vector<int32_t> generated;
  SamplingParams params;
  uint32_t max_tokens = kNoTokenLimit;  // 0: ends without a step
  std::vector<int32_t> eos;
  bool ignore_eos = false;        // end tokens are ordinary tokens
  uint32_t min_tokens = 0;        // no end token is sampled before
  std::vector<std::string> stop;  // applied to text by whoever detokenises (stop_strings.h)
  // Report how likely each token of the prompt from this position on was, given those before it (finish figures:
  // prompt_logprobs); 0: of none. From there on all is computed: blocks that other requests have left serve only before it.
  uint32_t score_from = 0;
  std::optional<uint32_t> logprobs;  // report each token's log-probability and those of the best so many
  std::optional<Grammar> grammar;    // a token that it does not allow is never sampled; the answer ends where only an end may follow
  int32_t priority = 0;              // higher goes first and is preempted last; equals go by arrival

  // Throws invalid_argument naming the field. `vocabulary`: ids below it exist.
  void validate(size_t vocabulary, size_t context_max) const;
};

}  // namespace verbund::engine
