#include "engine/answer.h"

#include <algorithm>
#include <cmath>

namespace verbund::engine {

Answer::Answer(const Request& request, bool hash_logits, std::shared_ptr<const text::Tokenizer> tokenizer)
    : eos_(request.eos), ignore_eos_(request.ignore_eos), detokenizer_(std::move(tokenizer)), stop_(request.stop) {
  if (hash_logits) hash_.emplace();
}

void Answer::hash(std::span<const float> logits) {
  if (hash_) hash_->update(std::as_bytes(logits));
}

void Answer::score(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  prompt_logprobs_.push_back(logits[static_cast<size_t>(token)] - largest - std::log(sum));
}

std::string Answer::push(int32_t token) {
  last_ = Clock::now();
  if (tokens_++ == 0) first_ = last_;
  if (!ignore_eos_ && std::find(eos_.begin(), eos_.end(), token) != eos_.end()) return {};
  return stop_.push(detokenizer_.push(token));
}

std::string Answer::finish() {
  if (stop_.stopped()) return {};
  std::string text = stop_.push(detokenizer_.finish());
  return text + stop_.flush();
}

nlohmann::json Answer::figures(const Usage& usage) {
  const auto seconds = [](Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); };
  nlohmann::json j{{"prompt_tokens", usage.prompt_tokens},
                   {"cached_tokens", usage.cached_tokens},
                   {"output_tokens", usage.output_tokens},
                   {"preemptions", usage.preemptions}};
  j["prefill_s"] = tokens_ > 0 ? seconds(begun_, first_) : 0.0;
  j["decode_s"] = tokens_ > 1 ? seconds(first_, last_) : 0.0;
  if (!prompt_logprobs_.empty()) j["prompt_logprobs"] = prompt_logprobs_;
  if (hash_) j["logits_sha256"] = hash_->hex();
  return j;
}

}  // namespace verbund::engine
