// Attention over the paged KV cache as MLX expressions.
#pragma once

#include <memory>
#include <vector>

#include "compute/backend.h"
#include "compute/mlx/border.h"
#include "compute/mlx/ops.h"
#include "compute/mlx/segments.h"

namespace verbund::compute::mlx_impl {

// One array a layer for keys and one for values: [1, kv_heads, blocks * kKvBlock, head_dim], the layout of mlx-lm. Each
// array has a single owner between steps, so that MLX writes into it in place instead of copying.
struct MlxKvCache final : KvCache {
  std::vector<mx::array> keys, values;
};

std::unique_ptr<MlxKvCache> make_cache(const KvLayout& layout);

// Makes the keys at these slots NaN.
void spoil_keys(MlxKvCache& cache, size_t layer, const std::vector<int32_t>& slots);

struct MlxVector final : Vector {
  explicit MlxVector(mx::array v) : values(std::move(v)) { size = values.size(); }
  mx::array values;  // f32 [size]
};

// What a backend has for attention from step to step.
struct AttentionState {
  Ops& ops;
  Wavelengths wavelengths{};
};

mx::array attend(AttentionState& state, const mx::array& qkv, MlxKvCache& cache, const AttentionParams& params, StepSegments& step);

}  // namespace verbund::compute::mlx_impl
