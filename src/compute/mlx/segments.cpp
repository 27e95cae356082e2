#include "compute/mlx/segments.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/bytes.h"

namespace verbund::compute::mlx_impl {
namespace {

int to_int(size_t n) { return static_cast<int>(n); }

[[noreturn]] void refuse(const std::string& what) { throw Error(Code::invalid_argument, what, "MLX, attention"); }

bool together(std::span<const uint32_t> blocks) {
  for (size_t i = 1; i < blocks.size(); ++i)
    if (blocks[i] != blocks[0] + i) return false;
  return true;
}

std::optional<mx::array> order_of(const std::vector<Part>& parts, size_t rows) {
  std::vector<int32_t> at(rows);
  int32_t next = 0;
  bool moved = false;
  for (const Part& part : parts)
    for (const uint32_t row : part.rows) moved |= row != static_cast<uint32_t>(next), at[row] = next++;
  if (!moved) return std::nullopt;
  return mx::array(at.begin(), {to_int(rows)}, mx::int32);
}

}  // namespace

StepSegments::StepSegments(std::span<const Segment> segments, size_t rows, const KvLayout& layout)
    : layout_(layout), slot_array_(0), offset_(0) {
  for (const Segment& s : segments) {
    if (s.rows == 0 || s.first_row != slots_.size() || s.first_row + s.rows > rows) refuse("segments do not tile the rows of the step");
    if (s.blocks.size() * kKvBlock < uint64_t(s.first_position) + s.rows) refuse("a segment has too few KV blocks");
    for (const uint32_t block : s.blocks)
      if (block >= layout.blocks) refuse("KV block " + std::to_string(block) + " is outside the cache");
    for (uint32_t r = 0; r < s.rows; ++r) {
      const uint32_t position = s.first_position + r;
      positions_.push_back(position);
      slots_.push_back(to_int(s.blocks[position / kKvBlock] * kKvBlock + position % kKvBlock));
    }
    items_.push_back({s.first_row, s.rows, s.first_position, {s.blocks.begin(), s.blocks.end()}});
  }
  if (slots_.size() != rows || rows == 0) refuse("segments do not tile the rows of the step");
  slot_array_ = mx::array(slots_.begin(), {to_int(rows)}, mx::int32);
  offset_ = single() ? mx::array(static_cast<int32_t>(positions_[0])) : mx::array(positions_.begin(), {to_int(rows)}, mx::int32);
}

bool StepSegments::same(std::span<const Segment> segments) const {
  return std::equal(items_.begin(), items_.end(), segments.begin(), segments.end(), [](const Item& a, const Segment& b) {
    return a.first_row == b.first_row && a.rows == b.rows && a.first_position == b.first_position &&
           std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end());
  });
}

std::optional<int> StepSegments::run() const {
  for (size_t i = 1; i < slots_.size(); ++i)
    if (slots_[i] != slots_[0] + to_int(i)) return std::nullopt;
  return slots_[0];
}

void StepSegments::check_positions(const RopeTable& table) const {
  for (const uint32_t position : positions_)
    if ((position + size_t{1}) * table.pairs > table.cos.size())
      refuse("position " + std::to_string(position) + " is beyond the rotation table");
}

const Rotation& StepSegments::rotation(const RopeTable& table, RopeMode mode, size_t dim) {
  const auto key = std::make_tuple(&table, mode, dim);
  const auto found = rotations_.find(key);
  if (found != rotations_.end()) return found->second;
  return rotations_.emplace(key, rotation_of(table, mode, dim, positions_, !single())).first->second;
}

// Segments of one row whose keys are scattered are gathered together when they are about as long: padding at most doubles
// what is copied. Where the keys lie together nothing is copied, and such a segment stays by itself.
const Parts& StepSegments::parts(size_t window) {
  const auto found = parts_.find(window);
  if (found != parts_.end()) return found->second;
  Parts made;
  std::map<int, std::vector<const Item*>> scattered;  // by the magnitude of their number of blocks
  for (const Item& item : items_) {
    Part part = part_of(item, window);
    if (item.rows == 1 && part.blocks && !single()) {
      const Seen s = seen(item, window);
      scattered[std::bit_width(s.last_block - s.first_block)].push_back(&item);
    } else {
      made.parts.push_back(std::move(part));
    }
  }
  for (const auto& [magnitude, items] : scattered) {
    const size_t most = batch_max((size_t{1} << magnitude) - 1);
    for (size_t i = 0; i < items.size(); i += most) {
      const auto some = std::span(items).subspan(i, std::min(most, items.size() - i));
      made.parts.push_back(some.size() == 1 ? part_of(*some[0], window) : batch_of(some, window));
    }
  }
  std::sort(made.parts.begin(), made.parts.end(), [](const Part& a, const Part& b) { return a.rows[0] < b.rows[0]; });
  made.order = order_of(made.parts, positions_.size());
  return parts_.emplace(window, std::move(made)).first->second;
}

StepSegments::Seen StepSegments::seen(const Item& item, size_t window) const {
  const size_t end = item.first_position + item.rows;
  const size_t begin = window != 0 && item.first_position + 1 > window ? item.first_position + 1 - window : 0;
  return {begin, end, begin / kKvBlock, ceil_div(end, kKvBlock)};
}

Part StepSegments::part_of(const Item& item, size_t window) const {
  const Seen s = seen(item, window);
  Part part;
  for (uint32_t r = 0; r < item.rows; ++r) part.rows.push_back(item.first_row + r);
  part.length = to_int(s.end - s.begin);
  const std::span<const uint32_t> blocks = std::span(item.blocks).subspan(s.first_block, s.last_block - s.first_block);
  part.skip = to_int(s.begin - s.first_block * kKvBlock);
  if (together(blocks))
    part.first = to_int(blocks[0] * kKvBlock) + part.skip;
  else
    part.blocks = block_ids({{blocks.begin(), blocks.end()}});
  part.causal = item.rows > 1;
  if (window != 0 && s.end > window && item.rows > 1) {
    std::vector<uint8_t> mask;
    for (size_t i = item.first_position; i < s.end; ++i)
      for (size_t j = s.begin; j < s.end; ++j) mask.push_back(j <= i && i - j < window);
    part.mask = mx::array(mask.begin(), {to_int(item.rows), part.length}, mx::bool_);
    part.causal = false;
  }
  return part;
}

// Sequences of so many blocks that are gathered at a time.
size_t StepSegments::batch_max(size_t blocks) const {
  return std::max<size_t>(1, kBatchKeysBytes / (blocks * kKvBlock * layout_.kv_heads * layout_.head_dim * sizeof(float)));
}

Part StepSegments::batch_of(std::span<const Item* const> items, size_t window) const {
  Part part;
  part.batch = true;
  size_t most = 0;
  for (const Item* item : items) {
    const Seen s = seen(*item, window);
    part.rows.push_back(item->first_row);
    most = std::max(most, s.last_block - s.first_block);
  }
  part.length = to_int(most * kKvBlock);
  std::vector<uint8_t> mask;
  std::vector<std::vector<uint32_t>> blocks;
  for (const Item* item : items) {
    const Seen s = seen(*item, window);
    auto& padded = blocks.emplace_back(item->blocks.begin() + ptrdiff_t(s.first_block), item->blocks.begin() + ptrdiff_t(s.last_block));
    padded.resize(most, padded.back());
    for (size_t j = 0; j < most * kKvBlock; ++j) {
      const size_t position = s.first_block * kKvBlock + j;
      mask.push_back(position >= s.begin && position < s.end);
    }
  }
  const int n = to_int(items.size());
  part.blocks = block_ids(blocks);
  part.mask = mx::array(mask.begin(), {n, 1, 1, part.length}, mx::bool_);
  part.values = mx::array(mask.begin(), {n, 1, part.length, 1}, mx::bool_);
  return part;
}

mx::array StepSegments::block_ids(const std::vector<std::vector<uint32_t>>& blocks) const {
  std::vector<int32_t> ids;
  for (const auto& of_one : blocks)
    for (size_t head = 0; head < layout_.kv_heads; ++head)
      for (const uint32_t block : of_one) ids.push_back(to_int(head * layout_.blocks + block));
  return mx::array(ids.begin(), {to_int(blocks.size()), to_int(layout_.kv_heads), to_int(blocks[0].size())}, mx::int32);
}

}  // namespace verbund::compute::mlx_impl
