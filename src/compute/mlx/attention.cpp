#include "compute/mlx/attention.h"

#include <algorithm>
#include <string>

namespace verbund::compute::mlx_impl {
namespace {

int to_int(size_t n) { return static_cast<int>(n); }

[[noreturn]] void refuse(const std::string& what) { throw Error(Code::invalid_argument, what, "MLX, attention"); }

void check(const mx::array& qkv, const MlxKvCache& cache, const AttentionParams& p) {
  const KvLayout& layout = cache.layout;
  if (p.layer >= layout.layers || p.kv_heads != layout.kv_heads || p.head_dim != layout.head_dim)
    refuse("layer or heads do not fit the KV cache");
  if (qkv.shape(1) != to_int((p.heads + 2 * p.kv_heads) * p.head_dim)) refuse("qkv has " + std::to_string(qkv.shape(1)) + " columns");
  if (p.kv_of_head.size() != p.heads) refuse("kv_of_head has " + std::to_string(p.kv_of_head.size()) + " entries");
  for (const uint32_t kv : p.kv_of_head)
    if (kv >= p.kv_heads) refuse("kv_of_head names KV head " + std::to_string(kv));
  for (const Vector* norm : {p.q_norm, p.k_norm})
    if (norm != nullptr && norm->size != p.head_dim) refuse("a q or k norm has " + std::to_string(norm->size) + " values");
  if (p.rope_mode != RopeMode::none && (p.rope == nullptr || 2 * p.rope->pairs > p.head_dim)) refuse("no fitting rotation table");
}

mx::array head_norm(const mx::array& x, const Vector* norm, float eps) {
  if (norm == nullptr) return x;
  return mx::fast::rms_norm(x, static_cast<const MlxVector*>(norm)->values, eps);
}

// qk: [rows, heads, head_dim] with (x1, x2) of each rotated pair exchanged.
mx::array swap_pairs(const mx::array& qk, int pairs, RopeMode mode) {
  const int rows = qk.shape(0), heads = qk.shape(1), dim = qk.shape(2);
  std::vector<mx::array> parts;
  if (mode == RopeMode::half) {
    parts.push_back(mx::slice(qk, {0, 0, pairs}, {rows, heads, 2 * pairs}));
    parts.push_back(mx::slice(qk, {0, 0, 0}, {rows, heads, pairs}));
  } else {
    const mx::array rotated = 2 * pairs == dim ? qk : mx::slice(qk, {0, 0, 0}, {rows, heads, 2 * pairs});
    const mx::array split = mx::reshape(rotated, {rows, heads, pairs, 2});
    const mx::array swapped = mx::slice(split, {0, 0, 0, 1}, {rows, heads, pairs, -3}, {1, 1, 1, -1});
    parts.push_back(mx::reshape(swapped, {rows, heads, 2 * pairs}));
  }
  if (2 * pairs < dim) parts.push_back(mx::slice(qk, {0, 0, 2 * pairs}, {rows, heads, dim}));
  return parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 2);
}

// Heads are regular when each KV head serves an equal run of query heads: then MLX shares it without a copy.
bool regular(const AttentionParams& p) {
  if (p.heads % p.kv_heads != 0) return false;
  const size_t run = p.heads / p.kv_heads;
  for (size_t h = 0; h < p.heads; ++h)
    if (p.kv_of_head[h] != h / run) return false;
  return true;
}

// The visible rows of one segment: [1, heads, length, head_dim] in f32.
mx::array gather(const mx::array& cache, const StepSegments::View& view, const AttentionParams& p,
                 const std::optional<mx::array>& kv_of_head) {
  const int kv_heads = to_int(p.kv_heads), dim = to_int(p.head_dim), block = to_int(kKvBlock);
  const mx::array paged = mx::reshape(cache, {cache.shape(0) / block, block, kv_heads, dim});
  const mx::array flat = mx::reshape(mx::take(paged, view.blocks, 0), {to_int(view.blocks.size()) * block, kv_heads, dim});
  mx::array seen = mx::slice(flat, {view.skip, 0, 0}, {view.skip + view.length, kv_heads, dim});
  if (kv_of_head) seen = mx::take(seen, *kv_of_head, 1);
  return mx::expand_dims(mx::transpose(mx::astype(seen, mx::float32), {1, 0, 2}), 0);
}

}  // namespace

std::unique_ptr<MlxKvCache> make_cache(const KvLayout& layout) {
  if (layout.type == KvType::q8)
    throw Error(Code::unimplemented, "the mlx backend keeps keys and values as f16 or f32, not as q8", "--kv", "use --kv f16");
  auto cache = std::make_unique<MlxKvCache>();
  cache->layout = layout;
  cache->bytes = layout.bytes();
  const mx::Shape shape{to_int(layout.blocks * kKvBlock), to_int(layout.kv_heads), to_int(layout.head_dim)};
  const mx::Dtype type = layout.type == KvType::f16 ? mx::float16 : mx::float32;
  for (size_t layer = 0; layer < layout.layers; ++layer) {
    cache->keys.push_back(mx::zeros(shape, type));
    cache->values.push_back(mx::zeros(shape, type));
    mx::eval(cache->keys.back(), cache->values.back());
  }
  return cache;
}

StepSegments::StepSegments(std::span<const Segment> segments, size_t rows, const KvLayout& layout) : slots_(mx::array(0)) {
  std::vector<int32_t> slots;
  for (const Segment& s : segments) {
    if (s.rows == 0 || s.first_row != slots.size() || s.first_row + s.rows > rows) refuse("segments do not tile the rows of the step");
    if (s.blocks.size() * kKvBlock < uint64_t(s.first_position) + s.rows) refuse("a segment has too few KV blocks");
    for (const uint32_t block : s.blocks)
      if (block >= layout.blocks) refuse("KV block " + std::to_string(block) + " is outside the cache");
    for (uint32_t r = 0; r < s.rows; ++r) {
      const uint32_t position = s.first_position + r;
      positions_.push_back(position);
      slots.push_back(to_int(s.blocks[position / kKvBlock] * kKvBlock + position % kKvBlock));
    }
    items_.push_back({s.first_row, s.rows, s.first_position, {s.blocks.begin(), s.blocks.end()}});
  }
  if (slots.size() != rows) refuse("segments do not tile the rows of the step");
  slots_ = mx::array(slots.begin(), {to_int(rows)}, mx::int32);
}

bool StepSegments::same(std::span<const Segment> segments) const {
  return std::equal(items_.begin(), items_.end(), segments.begin(), segments.end(), [](const Item& a, const Segment& b) {
    return a.first_row == b.first_row && a.rows == b.rows && a.first_position == b.first_position &&
           std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end());
  });
}

const std::vector<StepSegments::View>& StepSegments::views(size_t window) {
  const auto found = views_.find(window);
  if (found != views_.end()) return found->second;
  std::vector<View> views;
  for (const Item& s : items_) {
    const size_t end = s.first_position + s.rows;
    const size_t begin = window != 0 && s.first_position + 1 > window ? s.first_position + 1 - window : 0;
    const size_t first_block = begin / kKvBlock, last_block = ceil_div(end, kKvBlock);
    std::vector<int32_t> blocks(s.blocks.begin() + first_block, s.blocks.begin() + last_block);
    const int length = to_int(end - begin);
    View view{mx::array(blocks.begin(), {to_int(blocks.size())}, mx::int32), to_int(begin - first_block * kKvBlock), length, std::nullopt,
              false};
    if (window != 0 && end > window && s.rows > 1) {
      std::vector<uint8_t> mask;
      for (size_t i = s.first_position; i < end; ++i)
        for (size_t j = begin; j < end; ++j) mask.push_back(j <= i && i - j < window);
      view.mask = mx::astype(mx::array(mask.begin(), {to_int(s.rows), length}, mx::uint8), mx::bool_);
    } else {
      view.causal = s.rows > 1;
    }
    views.push_back(std::move(view));
  }
  return views_.emplace(window, std::move(views)).first->second;
}

const StepSegments::Rotation& StepSegments::rotation(const RopeTable& table, RopeMode mode, size_t head_dim) {
  const auto key = std::make_tuple(&table, mode, head_dim);
  const auto found = rotations_.find(key);
  if (found != rotations_.end()) return found->second;
  const size_t rows = positions_.size(), pairs = table.pairs;
  std::vector<float> cos(rows * head_dim, 1.0f), sin(rows * head_dim, 0.0f);
  for (size_t r = 0; r < rows; ++r) {
    if ((positions_[r] + size_t{1}) * pairs > table.cos.size())
      refuse("position " + std::to_string(positions_[r]) + " is beyond the rotation table");
    for (size_t i = 0; i < pairs; ++i) {
      const size_t at = positions_[r] * pairs + i;
      const size_t first = r * head_dim + (mode == RopeMode::half ? i : 2 * i), second = first + (mode == RopeMode::half ? pairs : 1);
      cos[first] = cos[second] = table.cos[at];
      sin[first] = -table.sin[at];
      sin[second] = table.sin[at];
    }
  }
  const mx::Shape shape{to_int(rows), 1, to_int(head_dim)};
  return rotations_.emplace(key, Rotation{mx::array(cos.begin(), shape), mx::array(sin.begin(), shape)}).first->second;
}

mx::array attend(const mx::array& qkv, MlxKvCache& cache, const AttentionParams& p, StepSegments& step) {
  check(qkv, cache, p);
  const int rows = qkv.shape(0), heads = to_int(p.heads), kv_heads = to_int(p.kv_heads), dim = to_int(p.head_dim);

  mx::array qk = mx::reshape(mx::slice(qkv, {0, 0}, {rows, (heads + kv_heads) * dim}), {rows, heads + kv_heads, dim});
  const mx::array v =
      mx::reshape(mx::slice(qkv, {0, (heads + kv_heads) * dim}, {rows, (heads + 2 * kv_heads) * dim}), {rows, 1, kv_heads, dim});
  if (p.q_norm != nullptr || p.k_norm != nullptr)
    qk = mx::concatenate({head_norm(mx::slice(qk, {0, 0, 0}, {rows, heads, dim}), p.q_norm, p.norm_eps),
                          head_norm(mx::slice(qk, {0, heads, 0}, {rows, heads + kv_heads, dim}), p.k_norm, p.norm_eps)},
                         1);
  if (p.rope_mode != RopeMode::none) {
    const auto& rotation = step.rotation(*p.rope, p.rope_mode, p.head_dim);
    qk = mx::add(mx::multiply(qk, rotation.cos), mx::multiply(swap_pairs(qk, to_int(p.rope->pairs), p.rope_mode), rotation.sin));
  }

  mx::array& keys = cache.keys[p.layer];
  mx::array& values = cache.values[p.layer];
  const mx::array k = mx::reshape(mx::slice(qk, {0, heads, 0}, {rows, heads + kv_heads, dim}), {rows, 1, kv_heads, dim});
  keys = mx::scatter(keys, step.slots(), mx::astype(k, keys.dtype()), 0);
  values = mx::scatter(values, step.slots(), mx::astype(v, values.dtype()), 0);

  std::optional<mx::array> kv_of_head;
  if (!regular(p)) kv_of_head = mx::array(p.kv_of_head.begin(), {heads}, mx::uint32);
  const auto& views = step.views(p.window);
  std::vector<mx::array> outputs;
  for (size_t i = 0; i < views.size(); ++i) {
    const auto& item = step.items()[i];
    const int first = to_int(item.first_row), n = to_int(item.rows);
    const mx::array q = mx::expand_dims(mx::transpose(mx::slice(qk, {first, 0, 0}, {first + n, heads, dim}), {1, 0, 2}), 0);
    const mx::array out =
        mx::fast::scaled_dot_product_attention(q, gather(keys, views[i], p, kv_of_head), gather(values, views[i], p, kv_of_head), p.scale,
                                               views[i].causal ? "causal"
                                               : views[i].mask ? "array"
                                                               : "",
                                               views[i].mask);
    outputs.push_back(mx::reshape(mx::transpose(mx::squeeze(out, 0), {1, 0, 2}), {n, heads * dim}));
  }
  return outputs.size() == 1 ? outputs[0] : mx::concatenate(std::move(outputs), 0);
}

}  // namespace verbund::compute::mlx_impl
