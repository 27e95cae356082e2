#include "engine/ngram_drafter.h"

#include <bit>

namespace verbund::engine {
namespace {

constexpr uint32_t kNone = ~0u;
constexpr size_t kLeast = 2;        // tokens that must agree
constexpr size_t kLongest = 16;     // more of them say nothing more
constexpr size_t kCandidates = 32;  // places that are compared, the latest ones
constexpr size_t kHeadLeast = 256;

// Of the tokens that end at `at`.
size_t slot(std::span<const int32_t> tokens, size_t at, size_t slots) {
  const uint64_t pair = (uint64_t{static_cast<uint32_t>(tokens[at - 1])} << 32) | static_cast<uint32_t>(tokens[at]);
  return (pair * 0x9E3779B97F4A7C15u) >> (64 - std::countr_zero(slots));
}

// How many tokens that end at `a` and at `b` > a agree, going backwards.
size_t agreement(std::span<const int32_t> tokens, size_t a, size_t b) {
  size_t n = 0;
  while (n < kLongest && n <= a && tokens[a - n] == tokens[b - n]) ++n;
  return n;
}

}  // namespace

uint64_t NgramDrafter::bytes_max(size_t tokens, size_t sequences) {
  return 4 * (tokens * 3 + sequences * kHeadLeast);  // `before` may have grown to half as much again
}

// All positions but the last, of which nobody knows yet what comes after it.
void NgramDrafter::learn(History& history, std::span<const int32_t> tokens) const {
  auto& [head, before] = history;
  if (head.size() < tokens.size()) {
    head.assign(std::bit_ceil(std::max(tokens.size(), kHeadLeast)), kNone);
    before.clear();
  }
  if (before.empty()) before.push_back(kNone);
  for (size_t at = before.size(); at + 1 < tokens.size(); ++at) {
    uint32_t& last = head[slot(tokens, at, head.size())];
    before.push_back(last);
    last = static_cast<uint32_t>(at);
  }
}

std::vector<int32_t> NgramDrafter::guess(const History& history, std::span<const int32_t> tokens, uint32_t max) const {
  const size_t end = tokens.size() - 1;
  size_t best = 0, after = 0;
  uint32_t at = history.head[slot(tokens, end, history.head.size())];
  for (size_t n = 0; at != kNone && n < kCandidates && best < kLongest; ++n, at = history.before[at])
    if (const size_t agree = agreement(tokens, at, end); agree > best) best = agree, after = at + 1;
  if (best < kLeast) return {};
  std::vector<int32_t> draft;
  // What agrees in few tokens is not believed for long. Beyond the end the guess goes on with itself: a loop.
  const size_t length = std::min<size_t>(max, 2 * best);
  while (draft.size() < length) {
    const size_t from = after + draft.size();
    draft.push_back(from < tokens.size() ? tokens[from] : draft[from - tokens.size()]);
  }
  return draft;
}

std::vector<std::vector<int32_t>> NgramDrafter::draft(std::span<const DraftWish> wishes) {
  std::vector<std::vector<int32_t>> drafts;
  for (const DraftWish& wish : wishes) {
    std::vector<int32_t>& draft = drafts.emplace_back();
    if (wish.tokens.size() <= kLeast) continue;
    History& history = histories_[wish.request];
    learn(history, wish.tokens);
    draft = guess(history, wish.tokens, wish.max);
  }
  return drafts;
}

}  // namespace verbund::engine
