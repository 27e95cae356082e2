#include "engine/answer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace verbund::engine {
namespace {

nlohmann::json to_json(const std::vector<TokenLogprob>& top) {
  nlohmann::json list = nlohmann::json::array();
  for (const TokenLogprob& t : top) list.push_back({t.id, t.logprob});
  return list;
}

}  // namespace

Answer::Answer(const Request& request, bool hash_logits, std::shared_ptr<const text::Tokenizer> tokenizer, size_t vocabulary)
    : eos_(request.eos),
      ignore_eos_(request.ignore_eos),
      min_tokens_(request.min_tokens),
      vocabulary_(vocabulary),
      detokenizer_(std::move(tokenizer)),
      stop_(request.stop) {
  if (hash_logits) hash_.emplace();
}

void Answer::hash(std::span<const float> logits) {
  if (hash_) hash_->update(std::as_bytes(logits));
}

void Answer::score(std::span<const float> logits, int32_t token) {
  check_logits(logits);
  const double largest = *std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(largest)) throw Error(Code::internal, "the model gave no token a finite logit", "prompt logprobs");
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  prompt_logprobs_.push_back(logits[static_cast<size_t>(token)] - largest - std::log(sum));
}

void Answer::score(const Logprobs& logprobs) {
  prompt_logprobs_.push_back(logprobs.chosen);
  prompt_top_.push_back(to_json(logprobs.top));
}

std::span<const uint32_t> Answer::allowed() {
  const bool too_early = tokens_ < min_tokens_;
  if (!matcher_ && !too_early) return {};
  mask_.assign((vocabulary_ + 31) / 32, ~uint32_t{0});
  if (matcher_) matcher_->allowed(mask_);
  if (too_early)
    for (const int32_t id : eos_)
      if (static_cast<size_t>(id) < vocabulary_) mask_[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32));
  return mask_;
}

void Answer::push(int32_t token, const std::optional<Logprobs>& logprobs) {
  last_ = Clock::now();
  if (tokens_++ == 0) first_ = last_;
  Piece piece;
  if (logprobs) piece.logprobs = {logprobs->chosen, to_json(logprobs->top)};
  if (ignore_eos_ || std::find(eos_.begin(), eos_.end(), token) == eos_.end()) {
    if (matcher_) {
      matcher_->accept(token);
      fulfilled_ = matcher_->finished();
    }
    piece.text = stop_.push(detokenizer_.push(token));
  }
  piece.stopped = stopped();
  pieces_.push_back(std::move(piece));
}

Answer::Piece Answer::take() {
  Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  return piece;
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
  if (usage.drafted_tokens > 0) {
    j["drafted_tokens"] = usage.drafted_tokens;
    j["accepted_tokens"] = usage.accepted_tokens;
  }
  j["prefill_s"] = tokens_ > 0 ? seconds(begun_, first_) : 0.0;
  j["decode_s"] = tokens_ > 1 ? seconds(first_, last_) : 0.0;
  if (stop_.stopped()) j["stop_string"] = stop_.matched();
  if (!prompt_logprobs_.empty()) j["prompt_logprobs"] = prompt_logprobs_;
  if (!prompt_top_.empty()) j["prompt_top_logprobs"] = prompt_top_;
  if (hash_) j["logits_sha256"] = hash_->hex();
  return j;
}

}  // namespace verbund::engine
