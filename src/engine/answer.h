// One answer as it leaves the engine: token ids become text piece by piece, stop strings and a fulfilled grammar end it, the
// logits it was sampled from are hashed on request, and its times are taken. Lives at rank 0, one a request, in the rank loop's thread.
#pragma once

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/stop_strings.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace verbund::engine {

class Answer {
 public:
  Answer(const Request& request, bool hash_logits, std::shared_ptr<const text::Tokenizer> tokenizer, size_t vocabulary);

  // Whether the next token is chosen from the whole row of logits, whatever the sampling parameters.
  bool needs_whole_row() const { return hash_ || matcher_ || tokens_ < min_tokens_; }
  void hash(std::span<const float> logits);
  // The token at the next prompt position, which these logits speak of. Throws internal if they hold NaN or +infinity.
  void score(std::span<const float> logits, int32_t token);
  void score(const Logprobs& logprobs);  // the same, with the best alternatives
  // Which tokens may come next, as a bit mask; empty: all. Throws invalid_argument if the grammar cannot go on.
  std::span<const uint32_t> allowed();
  void constrain(std::unique_ptr<text::Matcher> matcher) { matcher_ = std::move(matcher); }

  // What came with one token.
  struct Piece {
    std::string text;         // that is certain after it; end tokens add none
    nlohmann::json logprobs;  // [chosen, [[id, logprob], ...]] or null
    bool stopped = false;     // a stop string or the grammar ends the answer with it
  };
  // The sampled token, before the next one is; its piece waits for take(). A step may give several.
  void push(int32_t token, const std::optional<Logprobs>& logprobs = {});
  Piece take();
  bool stopped() const { return stop_.stopped() || fulfilled_; }
  // The last text, and what the finish event says beside it.
  std::string finish();
  nlohmann::json figures(const Usage& usage);

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<int32_t> eos_;
  bool ignore_eos_;
  uint32_t min_tokens_;
  size_t vocabulary_;
  text::Detokenizer detokenizer_;
  StopMatcher stop_;
  std::optional<Sha256> hash_;
  std::vector<double> prompt_logprobs_;
  nlohmann::json prompt_top_ = nlohmann::json::array();
  std::unique_ptr<text::Matcher> matcher_;
  std::vector<uint32_t> mask_;
  std::deque<Piece> pieces_;
  bool fulfilled_ = false;  // the grammar allows nothing more
  Clock::time_point begun_ = Clock::now(), first_, last_;
  uint32_t tokens_ = 0;
};

}  // namespace verbund::engine
