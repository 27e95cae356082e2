// One answer as it leaves the engine: token ids become text piece by piece, stop strings end it, the logits it was
// sampled from are hashed on request, and its times are taken. Lives at rank 0, one a request, in the rank loop's thread.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/scheduler.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

namespace verbund::engine {

class Answer {
 public:
  Answer(const Request& request, bool hash_logits, std::shared_ptr<const text::Tokenizer> tokenizer);

  void hash(std::span<const float> logits);
  // The token at the next prompt position, which these logits speak of.
  void score(std::span<const float> logits, int32_t token);
  // Text that is certain after this token. End tokens add none.
  std::string push(int32_t token);
  bool stopped() const { return stop_.stopped(); }
  // The last text, and what the finish event says beside it.
  std::string finish();
  nlohmann::json figures(const Usage& usage);

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<int32_t> eos_;
  bool ignore_eos_;
  text::Detokenizer detokenizer_;
  StopMatcher stop_;
  std::optional<Sha256> hash_;
  std::vector<double> prompt_logprobs_;
  Clock::time_point begun_ = Clock::now(), first_, last_;
  uint32_t tokens_ = 0;
};

}  // namespace verbund::engine
