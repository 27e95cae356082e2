// What one choice's engine events mean: pieces of content with their log-probabilities, and at the end the whole result.
// One per choice; I/O thread.
#pragma once

#include <deque>
#include <span>

#include "engine/instance.h"
#include "serve/generate.h"

namespace verbund::serve {

class ChoiceReader {
 public:
  ChoiceReader(const ServedModel& model, const GenerateRequest& request, uint32_t choice, std::span<const int32_t> prompt);

  std::vector<Delta> push(const engine::InstanceEvent& event);
  bool finished() const { return finished_; }
  const ChoiceResult& result() const { return result_; }
  const nlohmann::json& figures() const { return figures_; }

 private:
  void hold_logprobs(const engine::InstanceEvent& event);
  std::vector<TokenLogprobs> release_logprobs(bool at_end);
  void finish(const engine::InstanceEvent& event);
  std::vector<Delta> read_call();  // of an answer that is one
  TokenInfo info(int32_t id, float logprob) const;

  const ServedModel& model_;
  const GenerateRequest& request_;
  std::span<const int32_t> prompt_;
  ChoiceResult result_;
  nlohmann::json figures_ = nlohmann::json::object();
  bool finished_ = false;
  // A token is reported with the piece that completes its text; one whose text a stop string swallows is not.
  struct Held {
    TokenLogprobs logprobs;
    size_t begin, end;  // bytes of the answer
  };
  std::deque<Held> held_;
  size_t token_bytes_ = 0;
};

}  // namespace verbund::serve
