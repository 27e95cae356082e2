// Attention over the paged KV cache as MLX expressions, and what the layers of one step share: positions, cache slots,
// block lists, masks, and the rotation tables cut to the step's positions. Built on the host once a step, not once a layer.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "compute/backend.h"
#include "compute/mlx/border.h"

namespace verbund::compute::mlx_impl {

// One array a layer for keys and one for values: [blocks * kKvBlock, kv_heads, head_dim]. Appending is one scatter for
// the whole step. Each array has a single owner between steps, so that MLX writes into it in place instead of copying.
struct MlxKvCache final : KvCache {
  std::vector<mx::array> keys, values;
};

std::unique_ptr<MlxKvCache> make_cache(const KvLayout& layout);

struct MlxVector final : Vector {
  explicit MlxVector(mx::array v) : values(std::move(v)) { size = values.size(); }
  mx::array values;  // f32 [size]
};

// The segments of the step, checked, and arrays made from them on first use.
class StepSegments {
 public:
  // The keys that one segment's queries may see: `length` positions from `skip` on in the gathered blocks.
  struct View {
    mx::array blocks;  // i32 [n]: ids to gather
    int skip, length;
    std::optional<mx::array> mask;  // bool [rows, length]; none where every key is visible or plain causal order does
    bool causal;
  };
  struct Rotation {
    mx::array cos, sin;  // [rows, 1, head_dim]; signs folded into sin, 1 and 0 beyond the rotated dims
  };

  StepSegments(std::span<const Segment> segments, size_t rows, const KvLayout& layout);
  bool same(std::span<const Segment> segments) const;

  struct Item {
    uint32_t first_row, rows, first_position;
    std::vector<uint32_t> blocks;
  };
  const std::vector<Item>& items() const { return items_; }
  const mx::array& slots() const { return slots_; }  // i32 [rows]: block * kKvBlock + offset of each row
  const std::vector<View>& views(size_t window);
  const Rotation& rotation(const RopeTable& table, RopeMode mode, size_t head_dim);

 private:
  std::vector<Item> items_;
  std::vector<uint32_t> positions_;
  mx::array slots_;
  std::map<size_t, std::vector<View>> views_;
  std::map<std::tuple<const RopeTable*, RopeMode, size_t>, Rotation> rotations_;
};

mx::array attend(const mx::array& qkv, MlxKvCache& cache, const AttentionParams& params, StepSegments& step);

}  // namespace verbund::compute::mlx_impl
