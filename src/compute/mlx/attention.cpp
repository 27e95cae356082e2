#include "compute/mlx/attention.h"

#include <algorithm>
#include <limits>
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

// Heads are regular when each KV head serves an equal run of query heads: then MLX shares it without a copy.
bool regular(const AttentionParams& p) {
  if (p.heads % p.kv_heads != 0) return false;
  const size_t run = p.heads / p.kv_heads;
  for (size_t h = 0; h < p.heads; ++h)
    if (p.kv_of_head[h] != h / run) return false;
  return true;
}

// One layer's attention. Arrays are [1, heads, rows, dim] for a step of one segment, [rows, heads, 1, dim] for any other.
class Layer {
 public:
  Layer(AttentionState& state, MlxKvCache& cache, const AttentionParams& params, StepSegments& step)
      : ops_(state.ops), state_(state), p_(params), step_(step), keys_(cache.keys[params.layer]), values_(cache.values[params.layer]) {
    if (!regular(p_)) kv_of_head_ = mx::array(p_.kv_of_head.begin(), {heads_}, mx::uint32);
  }

  mx::array run(const mx::array& qkv) {
    rows_ = qkv.shape(0);
    const mx::array x = split_heads(ops_.narrowed(qkv, keys_.dtype()));
    const bool normed = p_.q_norm != nullptr || p_.k_norm != nullptr;
    const auto parts = mx::split(x, normed ? mx::Shape{heads_, heads_ + kv_heads_} : mx::Shape{heads_ + kv_heads_}, 1);
    std::vector<mx::array> qk;
    if (normed) {
      qk = {rotated(head_norm(parts[0], p_.q_norm)), rotated(head_norm(parts[1], p_.k_norm))};
    } else {  // queries and keys are turned together
      qk = mx::split(rotated(parts[0]), mx::Shape{heads_}, 1);
    }
    append(keys_, qk[1]);
    append(values_, parts.back());
    return attended(qk[0]);
  }

 private:
  mx::array split_heads(const mx::array& qkv) const {
    const int all = heads_ + 2 * kv_heads_;
    if (!step_.single() || rows_ == 1) return mx::reshape(qkv, {rows_, all, 1, dim_});
    return mx::transpose(mx::reshape(qkv, {1, rows_, all, dim_}), {0, 2, 1, 3});
  }

  mx::array head_norm(const mx::array& x, const Vector* norm) {
    if (norm == nullptr) return x;
    return ops_.rms_norm(x, static_cast<const MlxVector*>(norm)->values, p_.norm_eps);
  }

  mx::array rotated(const mx::array& x) {
    if (p_.rope_mode == RopeMode::none) return ops_.narrowed(x, keys_.dtype());
    step_.check_positions(*p_.rope);
    if (ops_.gpu())
      if (const auto& wavelengths = state_.wavelengths.of(*p_.rope))
        return ops_.rope(ops_.narrowed(x, keys_.dtype()), 2 * p_.rope->pairs, p_.rope_mode, step_.offset(), *wavelengths);
    return ops_.narrowed(rotate(x, step_.rotation(*p_.rope, p_.rope_mode, p_.head_dim), p_.rope->pairs, p_.rope_mode), keys_.dtype());
  }

  // In place: the old array has no other owner when the graph is evaluated.
  void append(mx::array& cache, const mx::array& fresh) {
    if (const auto first = step_.run(); first && step_.single()) {
      cache = mx::slice_update(cache, fresh, mx::Shape{0, 0, *first, 0}, mx::Shape{1, kv_heads_, *first + rows_, dim_});
      return;
    }
    const mx::array by_row = step_.single() ? mx::transpose(fresh, {2, 0, 1, 3}) : fresh;
    const mx::array updates = mx::astype(mx::reshape(by_row, {rows_, 1, kv_heads_, 1, dim_}), cache.dtype());
    cache = mx::scatter(cache, step_.slot_array(), updates, 2);
  }

  mx::array attended(const mx::array& q) {
    const Parts& parts = step_.parts(p_.window);
    std::vector<mx::array> outputs;
    for (const Part& part : parts.parts)
      outputs.push_back(
          join_heads(ops_.attention(queries(q, part), visible(keys_, part), visible_values(part), p_.scale, part.causal, part.mask)));
    const mx::array all = outputs.size() == 1 ? outputs[0] : mx::concatenate(std::move(outputs), 0);
    return parts.order ? mx::take(all, *parts.order, 0) : all;
  }

  // [1, heads, rows of the part, dim], or of a batch [rows, heads, 1, dim].
  mx::array queries(const mx::array& q, const Part& part) const {
    if (step_.single()) return q;
    const int first = to_int(part.rows[0]), n = to_int(part.rows.size());
    if (!part.consecutive()) return mx::take(q, mx::array(part.rows.begin(), {n}, mx::uint32), 0);
    const mx::array rows = mx::slice(q, {first, 0, 0, 0}, {first + n, heads_, 1, dim_});
    return part.batch || n == 1 ? rows : mx::transpose(rows, {2, 1, 0, 3});
  }

  // [segments, heads, length, dim]: a view of the cache, or a copy of its blocks.
  mx::array visible(const mx::array& cache, const Part& part) const {
    mx::array seen =
        part.blocks ? gathered(cache, part) : mx::slice(cache, {0, 0, part.first, 0}, {1, kv_heads_, part.first + part.length, dim_});
    if (kv_of_head_) seen = mx::take(seen, *kv_of_head_, 1);
    return ops_.gpu() ? seen : mx::astype(seen, mx::float32);
  }

  mx::array gathered(const mx::array& cache, const Part& part) const {
    const int block = to_int(kKvBlock), blocks = cache.shape(2) / block;
    const mx::array taken = mx::take(mx::reshape(cache, {kv_heads_ * blocks, block, dim_}), *part.blocks, 0);
    const int segments = part.blocks->shape(0), length = part.blocks->shape(2) * block;
    const mx::array all = mx::reshape(taken, {segments, kv_heads_, length, dim_});
    return part.batch ? all : mx::slice(all, {0, 0, part.skip, 0}, {1, kv_heads_, part.skip + part.length, dim_});
  }

  // What a masked slot holds may be anything, NaN too, and zero times NaN is NaN.
  mx::array visible_values(const Part& part) const {
    const mx::array seen = visible(values_, part);
    return part.values ? mx::where(*part.values, seen, mx::array(0.0f, seen.dtype())) : seen;
  }

  mx::array join_heads(const mx::array& out) const {
    const int n = out.shape(0) * out.shape(2);
    return mx::reshape(out.shape(2) == 1 ? out : mx::transpose(out, {0, 2, 1, 3}), {n, heads_ * dim_});
  }

  Ops& ops_;
  AttentionState& state_;
  const AttentionParams& p_;
  StepSegments& step_;
  mx::array &keys_, &values_;
  const int heads_ = to_int(p_.heads), kv_heads_ = to_int(p_.kv_heads), dim_ = to_int(p_.head_dim);
  int rows_ = 0;
  std::optional<mx::array> kv_of_head_;
};

}  // namespace

std::unique_ptr<MlxKvCache> make_cache(const KvLayout& layout) {
  if (layout.type == KvType::q8)
    throw Error(Code::unimplemented, "the mlx backend keeps keys and values as f16 or f32, not as q8", "--kv", "use --kv f16");
  auto cache = std::make_unique<MlxKvCache>();
  cache->layout = layout;
  cache->bytes = layout.bytes();
  const mx::Shape shape{1, to_int(layout.kv_heads), to_int(layout.blocks * kKvBlock), to_int(layout.head_dim)};
  const mx::Dtype type = layout.type == KvType::f16 ? mx::float16 : mx::float32;
  for (size_t layer = 0; layer < layout.layers; ++layer) {
    cache->keys.push_back(mx::zeros(shape, type));
    cache->values.push_back(mx::zeros(shape, type));
    mx::eval(cache->keys.back(), cache->values.back());
  }
  return cache;
}

void spoil_keys(MlxKvCache& cache, size_t layer, const std::vector<int32_t>& slots) {
  mx::array& keys = cache.keys[layer];
  const int n = to_int(slots.size());
  const mx::array nan = mx::full({n, 1, keys.shape(1), 1, keys.shape(3)}, std::numeric_limits<float>::quiet_NaN(), keys.dtype());
  keys = mx::scatter(keys, mx::array(slots.begin(), {n}, mx::int32), nan, 2);
}

mx::array attend(AttentionState& state, const mx::array& qkv, MlxKvCache& cache, const AttentionParams& p, StepSegments& step) {
  check(qkv, cache, p);
  return Layer(state, cache, p, step).run(qkv);
}

}  // namespace verbund::compute::mlx_impl
