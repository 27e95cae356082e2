// Guesses by prompt lookup: what came last time after the tokens at the end, where most of them agree. Good for answers that repeat what
// they were given: code that is edited, summaries, JSON. Costs microseconds a step and 8-12 bytes a token of the sequence.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/drafter.h"

namespace verbund::engine {

class NgramDrafter : public Drafter {
 public:
  std::vector<std::vector<int32_t>> draft(std::span<const DraftWish> wishes) override;
  void forget(uint64_t request) override { histories_.erase(request); }

  static uint64_t bytes_max(size_t tokens, size_t sequences);  // of all sequences together

 private:
  // Positions of a sequence by the two tokens that end there: the last one of each hash value, and for each the one before it.
  struct History {
    std::vector<uint32_t> head;    // by hash; a power of two
    std::vector<uint32_t> before;  // by position
  };
  void learn(History& history, std::span<const int32_t> tokens) const;
  std::vector<int32_t> guess(const History& history, std::span<const int32_t> tokens, uint32_t max) const;

  std::unordered_map<uint64_t, History> histories_;
};

}  // namespace verbund::engine
