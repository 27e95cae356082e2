#include "engine/request.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/bytes.h"
#include "base/error.h"

namespace verbund::engine {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& problem) {
  throw Error(Code::invalid_argument, field + " " + problem);
}

std::string number(double value) {
  std::string text = std::to_string(value);
  return text;
}

// NaN fails both comparisons and is refused with the rest.
void check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high)) refuse(field, "must be from " + number(low) + " to " + number(high) + ", got " + number(value));
}

void check_finite(const std::string& field, double value) {
  if (!std::isfinite(value)) refuse(field, "must be a finite number, got " + number(value));
}

void check_ids(const std::string& field, const std::vector<int32_t>& ids, size_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= vocabulary)
      refuse(field + "[" + std::to_string(i) + "]",
             "is token id " + std::to_string(ids[i]) + ", ids go from 0 to " + std::to_string(vocabulary - 1));
}

void check_stops(const std::vector<std::string>& stops) {
  if (stops.size() > kStopsMax)
    refuse("stop", "has " + std::to_string(stops.size()) + " strings, at most " + std::to_string(kStopsMax) + " are allowed");
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string field = "stop[" + std::to_string(i) + "]";
    if (stops[i].empty()) refuse(field, "is empty");
    if (stops[i].size() > kStopBytesMax)
      refuse(field, "has " + std::to_string(stops[i].size()) + " bytes, at most " + std::to_string(kStopBytesMax) + " are allowed");
    if (find_invalid_utf8(stops[i])) refuse(field, "is not valid UTF-8");
  }
}

}  // namespace

void SamplingParams::validate(size_t vocabulary) const {
  check_finite("temperature", temperature);
  if (temperature < 0) refuse("temperature", "must not be negative, got " + number(temperature));
  if (top_k < 0) refuse("top_k", "must not be negative, got " + std::to_string(top_k));
  check_range("top_p", top_p, 0, 1);
  check_range("min_p", min_p, 0, 1);
  check_finite("repetition_penalty", repetition_penalty);
  if (repetition_penalty <= 0) refuse("repetition_penalty", "must be above 0, got " + number(repetition_penalty));
  check_finite("frequency_penalty", frequency_penalty);
  check_finite("presence_penalty", presence_penalty);
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || static_cast<size_t>(id) >= vocabulary)
      refuse("logit_bias", "names token id " + std::to_string(id) + ", ids go from 0 to " + std::to_string(vocabulary - 1));
    check_finite("logit_bias of token " + std::to_string(id), bias);
  }
}

uint64_t ensure_seed(SamplingParams& params) {
  if (!params.seed) {
    std::random_device source;
    params.seed = uint64_t{source()} << 32 | source();
  }
  return *params.seed;
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "error";
}

void Request::validate(size_t vocabulary, size_t context_max) const {
  if (prompt.empty()) refuse("prompt", "is empty; it needs at least one token");
  // A prompt that fills the context leaves no position for a first token: refused alike.
  const size_t first_token = max_tokens > 0 ? 1 : 0;
  if (prompt.size() + first_token > context_max)
    throw Error(Code::invalid_argument,
                "prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " + std::to_string(context_max) +
                    (first_token ? " tokens together with the answer" : " tokens"),
                {}, "shorten the prompt or start the model with a larger context");
  if (prompt.size() + generated.size() > context_max)
    refuse("generated", "and prompt have " + std::to_string(prompt.size() + generated.size()) + " tokens, the context holds " +
                            std::to_string(context_max));
  check_ids("prompt", prompt, vocabulary);
  check_ids("generated", generated, vocabulary);
  check_stops(stop);
  if (score_from > prompt.size())
    refuse("score_from", "is position " + std::to_string(score_from) + " of a prompt of " + std::to_string(prompt.size()) + " tokens");
  if (logprobs && *logprobs > kLogprobsMax)
    refuse("logprobs", "must be at most " + std::to_string(kLogprobsMax) + ", got " + std::to_string(*logprobs));
  if (grammar && grammar->source.size() > kGrammarBytesMax)
    refuse("grammar",
           "has " + std::to_string(grammar->source.size()) + " bytes, at most " + std::to_string(kGrammarBytesMax) + " are allowed");
  params.validate(vocabulary);
}

}  // namespace verbund::engine
