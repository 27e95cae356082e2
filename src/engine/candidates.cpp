#include "engine/candidates.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"

namespace verbund::engine {

void refuse(const Candidate& unusable) {
  throw Error(Code::internal,
              "the model gave a logit of " + std::to_string(unusable.logit) + " for token id " + std::to_string(unusable.id), "sampler");
}

void check_logits(std::span<const float> logits) {
  bool bad = false;
  for (const float l : logits) bad |= !usable(l);
  if (!bad) return;
  const auto first = std::find_if_not(logits.begin(), logits.end(), usable);
  refuse({*first, static_cast<int32_t>(first - logits.begin())});
}

uint64_t key_of(float logit, int32_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(id);
}

int32_t id_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

float logit_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

void keep_best(std::vector<uint64_t>& keys, size_t k) {
  if (keys.size() <= k) return;
  std::nth_element(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(k - 1), keys.end(), std::greater<>());
  keys.resize(k);
}

std::optional<Candidate> select_best(std::span<const float> logits, int32_t first_id, size_t k, std::vector<uint64_t>& keys) {
  constexpr size_t kBlock = 16;  // fixed trip count: the compiler vectorises it at -O2
  keys.clear();
  // The worst of k that were kept: an equal one that comes later has a higher id and is worse. Nothing is <= NaN.
  float floor = std::numeric_limits<float>::quiet_NaN();
  const auto take = [&](size_t at) {
    keys.push_back(key_of(logits[at], first_id + static_cast<int32_t>(at)));
    if (keys.size() < 2 * k + kSelectSlack) return;
    keep_best(keys, k);
    floor = logit_of(keys[k - 1]);
  };
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    const size_t size = std::min(kBlock, logits.size() - i);
    if (size == kBlock) {
      const float* block = logits.data() + i;
      uint32_t hits = 0;
      for (size_t j = 0; j < kBlock; ++j) hits |= !(block[j] <= floor);
      if (hits == 0) continue;
    }
    for (size_t at = i; at < i + size; ++at) {
      if (logits[at] <= floor) continue;
      if (!usable(logits[at])) return Candidate{logits[at], first_id + static_cast<int32_t>(at)};
      take(at);
    }
  }
  keep_best(keys, k);
  return std::nullopt;
}

}  // namespace verbund::engine
