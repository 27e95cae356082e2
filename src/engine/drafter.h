// Speculative decoding: guesses of the next tokens, which a step then computes beside the last one and the sampler checks one by one.
// What is sampled at a position depends on the logits, the parameters, the history and the position alone, and logits do not depend on
// how rows are put together (docs/DESIGN.md section 4.1): so an answer is the same to the bit with any guesses, and guesses cost time only.
//
// At rank 0, in the rank loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace verbund::engine {

constexpr uint32_t kDraftMax = 64;  // tokens of one guess

// Of one sequence that decodes.
struct DraftWish {
  uint64_t request = 0;
  std::span<const int32_t> tokens;  // prompt and output so far
  uint32_t max = 0;                 // at least 1
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // One guess a wish, of at most its maximum; empty: none.
  virtual std::vector<std::vector<int32_t>> draft(std::span<const DraftWish> wishes) = 0;
  virtual void forget(uint64_t request) = 0;  // it is over
};

// How long the guesses of a sequence should be, from what became of those before: as many tokens as were right, twice as many if all
// were, and none for ever more steps while none is.
class DraftPace {
 public:
  uint32_t next(uint32_t max) {
    if (pause_ > 0) return --pause_, 0;
    return std::min(length_, max);
  }
  void observe(uint32_t drafted, uint32_t accepted) {
    if (drafted == 0) return;
    if (accepted == 0) {
      misses_ = std::min(misses_ + 1, 5u);
      pause_ = (1u << misses_) - 2;  // 0, 2, 6, 14, 30
      length_ = 1;
    } else {
      misses_ = 0;
      length_ = accepted == drafted ? std::min(std::max(length_, drafted) * 2, kDraftMax) : accepted;
    }
  }

 private:
  uint32_t length_ = 4, pause_ = 0, misses_ = 0;
};

}  // namespace verbund::engine
