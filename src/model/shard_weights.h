// The list of weight pieces a rank holds. The loader reads this list and the planner adds up the same one, so what was
// announced is what is loaded.
#pragma once

#include <string>
#include <vector>

#include "model/family.h"
#include "model/shares.h"

namespace verbund::model {

enum class WeightUse { embedding, head, qkv, o, gate_up, down };
std::string_view to_string(WeightUse use);

struct ShardWeight {
  WeightUse use;
  size_t layer = 0;  // global; 0 for embedding and head
  std::vector<compute::WeightPart> parts;
  size_t unit = 0;  // columns a unit, row-parallel matrices only
};

// Embedding first, head last. A tied head is listed only where the embedding is not held already.
std::vector<ShardWeight> shard_weights(const formats::ModelFiles& files, const DecoderSpec& spec, const Units& units,
                                       const RankShard& shard);

// Units for these files (the formats of all o and down matrices decide).
Units units_of(const formats::ModelFiles& files, const DecoderSpec& spec);

}  // namespace verbund::model
