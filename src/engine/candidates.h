// The best tokens of a row of logits, and the one order in which logits are compared: value descending, then id ascending.
// Every rank of the last stage selects among its own columns, rank 0 among what they send and the sampler among whole rows,
// all by the same code. Free functions of their arguments; any thread.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace verbund::engine {

struct Candidate {
  float logit;
  int32_t id;
};

// Most candidates of a row that a step plan may ask for. Above, a whole row is little more.
constexpr uint32_t kCandidatesMax = 256;

// A token can be drawn next to any other unless its logit is NaN (which fails the comparison too) or +infinity.
inline bool usable(float logit) { return logit <= FLT_MAX; }
// Throws internal naming both.
[[noreturn]] void refuse(const Candidate& unusable);
// Throws internal naming the first logit of a row that is not usable.
void check_logits(std::span<const float> logits);

// The greater key is the better token. The logit is not NaN; -0 counts as 0.
uint64_t key_of(float logit, int32_t id);
int32_t id_of(uint64_t key);
float logit_of(uint64_t key);

// keys = those of the k best of a row whose first logit is that of token `first_id` (of all if there are fewer), unordered.
// Returns the first logit that is not usable, if there is one; the keys mean nothing then. The row is read once, and what
// cannot be among the best any more costs a comparison in vectors. keys grows to at most the row or 2 k + kSelectSlack.
std::optional<Candidate> select_best(std::span<const float> logits, int32_t first_id, size_t k, std::vector<uint64_t>& keys);
constexpr size_t kSelectSlack = 256;

// Keeps the k best keys, unordered.
void keep_best(std::vector<uint64_t>& keys, size_t k);

}  // namespace verbund::engine
