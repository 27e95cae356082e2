// One step as every rank executes it: rank 0 plans, encodes and broadcasts it; the others decode and run it and keep no
// scheduling state of their own (docs/DESIGN.md section 5.4). Plain data; any thread.
//
// Wire form, little-endian, no padding:
//   u32 magic "VSP2"   u32 segments   u64 sequence   u32 rows   u32 ids
//   per segment: u64 request   u32 first_position   u32 tokens   u32 blocks   u32 sample_rows   u32 candidates   i32[tokens]   u32[blocks]
//   u64 checksum of everything before it (base/bytes.h)
// The checksum guards against ranks that diverge, not against attackers; decode() trusts no number either way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbund::engine {

// The consecutive tokens of one sequence inside a step.
struct PlanSegment {
  uint64_t request = 0;
  uint32_t first_position = 0;   // of its first token in the sequence
  uint32_t sample_rows = 0;      // logits of this many last rows are wanted: 0 or 1; more when speculating
  uint32_t candidates = 0;       // of each of them so many of the best are enough (at most kCandidatesMax); 0: the whole row
  std::vector<int32_t> tokens;   // at least one
  std::vector<uint32_t> blocks;  // KV blocks of positions [0, first_position + tokens.size()), no more
  bool operator==(const PlanSegment&) const = default;
};

struct StepPlan {
  uint64_t sequence = 0;              // 1, 2, 3, ... within an instance's epoch
  uint32_t ids = 0;                   // candidates are token ids below this; what the head has beyond is padding
  std::vector<PlanSegment> segments;  // in row order
  size_t rows() const;
  size_t sampled_rows() const;
  bool operator==(const StepPlan&) const = default;
};

// What a rank accepts. The defaults are the hard caps; a rank passes what its model and memory have.
struct PlanLimits {
  uint32_t rows = 1u << 16;        // also bounds the segments
  uint32_t logit_rows = 1u << 16;  // sampled rows
  uint32_t context = 1u << 24;     // positions of a sequence
  uint32_t blocks = 1u << 24;      // block ids are below this
  uint32_t vocabulary = 1u << 24;  // token ids are below this
};

// Largest encoding of a plan within the limits.
uint64_t plan_bytes_max(const PlanLimits& limits);

std::vector<std::byte> encode(const StepPlan& plan);
// Throws data_loss (Lost::instance) saying what is wrong; allocates no more than the input's own size.
StepPlan decode_plan(std::span<const std::byte> bytes, const PlanLimits& limits = {});

}  // namespace verbund::engine
