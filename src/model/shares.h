// Who holds what: how the heads, MLP units, vocabulary rows and layers of a model are cut over ranks, in any proportion.
// Pure functions of the spec, the weight formats and the requested proportions; every rank computes the same plan.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "formats/tensor_source.h"
#include "model/decoder_spec.h"

namespace verbund::model {

// What the user asks for. Empty vectors: equal parts.
struct ParallelConfig {
  size_t ranks = 1;
  size_t stages = 1;           // pipeline stages of ranks / stages ranks each
  std::vector<double> shares;  // per rank of a stage
  std::vector<size_t> layers;  // per stage; sums to the model's layers
};

// Columns that row-parallel matrices sum in f32 before the one rounding to fixed point. They depend on the model alone,
// never on the split, so that any split gives the same bits (docs/DESIGN.md section 4.1).
struct Units {
  size_t heads_per_unit = 1;  // o: heads_per_unit * head_dim columns
  size_t mlp = 0;             // down: this many columns (the last unit may be shorter)
};

struct RankShard {
  size_t rank = 0;  // in the instance
  size_t stage = 0, stage_count = 1;
  size_t tp_rank = 0, tp_size = 1;   // inside the stage
  double share = 1.0;                // of its stage
  Range layers;                      // global indices
  Range heads;                       // query heads
  Range kv_heads;                    // those that `heads` read; a KV head at a border lives on both sides
  std::vector<uint32_t> kv_of_head;  // local query head -> local KV head
  Range mlp;                         // columns of down = rows of gate and up
  Range vocabulary;                  // rows of embedding and head

  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage + 1 == stage_count; }
};

struct ShardPlan {
  Units units;
  std::vector<RankShard> ranks;
};

// `total` units over weights: floor of the exact part, what is left to the largest fractions, ties to the lower index.
std::vector<size_t> split_units(size_t total, const std::vector<double>& weights);

Units row_parallel_units(const DecoderSpec& spec, const std::vector<formats::WeightFormat>& o_formats,
                         const std::vector<formats::WeightFormat>& down_formats);

// Throws invalid_argument in one sentence naming the numbers that do not fit.
ShardPlan make_shard_plan(const DecoderSpec& spec, const Units& units, const ParallelConfig& config);

}  // namespace verbund::model
