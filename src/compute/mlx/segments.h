// What the layers of one step share: positions, cache slots, which keys each part of the step sees, masks, rotations.
// Worked out on the host once a step, not once a layer.
//
// A step of one segment is laid out as [1, heads, rows, dim], any other as [rows, heads, 1, dim]: a batch of single
// tokens, which is what decoding several sequences is.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "compute/backend.h"
#include "compute/mlx/border.h"
#include "compute/mlx/rotation.h"

namespace verbund::compute::mlx_impl {

// Of the keys of one batch in f32. The same again for values, and for the copies before them in another type or unmasked.
constexpr size_t kBatchKeysBytes = 16 << 20;
constexpr size_t kBatchBytes = 4 * kBatchKeysBytes;

// Rows of the step that attend together: the rows of one segment, or several segments of one row each.
struct Part {
  std::vector<uint32_t> rows;
  bool batch = false;  // several segments; their keys are gathered to one length and masked
  // The keys of all rows: slots [first, first + length) of the cache where they lie together, as those of a sequence that
  // was alone do; else `blocks` of the cache, of which `skip` slots come before the first visible one.
  int first = 0, length = 0, skip = 0;
  std::optional<mx::array> blocks;  // i32 [segments, kv_heads, blocks each]: KV head * blocks of the cache + block
  bool causal = false;
  std::optional<mx::array> mask;    // bool: [rows, length], or for a batch [segments, 1, 1, length]
  std::optional<mx::array> values;  // batch: the mask as [segments, 1, length, 1]
  bool consecutive() const { return rows.back() - rows.front() + 1 == rows.size(); }
};

struct Parts {
  std::vector<Part> parts;
  std::optional<mx::array> order;  // where each row of the step is in the parts' rows one after another; none: in order
};

class StepSegments {
 public:
  StepSegments(std::span<const Segment> segments, size_t rows, const KvLayout& layout);
  bool same(std::span<const Segment> segments) const;

  bool single() const { return items_.size() == 1; }
  const std::vector<int32_t>& slots() const { return slots_; }  // of each row
  const mx::array& slot_array() const { return slot_array_; }   // i32 [rows]
  std::optional<int> run() const;                               // the first slot if all rows go to one run of slots
  const mx::array& offset() const { return offset_; }           // the first position, or each row's
  void check_positions(const RopeTable& table) const;           // throws if one is beyond the table
  const Parts& parts(size_t window);
  const Rotation& rotation(const RopeTable& table, RopeMode mode, size_t dim);

 private:
  struct Item {
    uint32_t first_row, rows, first_position;
    std::vector<uint32_t> blocks;
  };
  struct Seen {
    size_t begin, end;  // positions
    size_t first_block, last_block;
  };
  Seen seen(const Item& item, size_t window) const;
  Part part_of(const Item& item, size_t window) const;
  Part batch_of(std::span<const Item* const> items, size_t window) const;
  size_t batch_max(size_t blocks) const;
  mx::array block_ids(const std::vector<std::vector<uint32_t>>& blocks) const;

  KvLayout layout_;
  std::vector<Item> items_;
  std::vector<uint32_t> positions_;
  std::vector<int32_t> slots_;
  mx::array slot_array_, offset_;
  std::map<size_t, Parts> parts_;
  std::map<std::tuple<const RopeTable*, RopeMode, size_t>, Rotation> rotations_;
};

}  // namespace verbund::compute::mlx_impl
