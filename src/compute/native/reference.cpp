#include "compute/native/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compute/numerics.h"
#include "formats/weight.h"

namespace verbund::compute::native {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float fold16(float a[16]) {
  for (int s = 8; s >= 1; s /= 2)
    for (int l = 0; l < s; ++l) a[l] = a[l] + a[l + s];
  return a[0];
}

float fold4(const float a[4]) { return (a[0] + a[2]) + (a[1] + a[3]); }

float sum_of_squares(const float* x, size_t n) {
  float a[16] = {};
  for (size_t i = 0; i < n; ++i) a[i % 16] = std::fma(x[i], x[i], a[i % 16]);
  return fold16(a);
}

// Calls value(columns) for each unit of the row (or once for all columns) and puts the results where `out` wants them.
template <class F>
void finish(const PieceShape& w, const ProductOut& out, size_t row, size_t output, F&& value) {
  const size_t at = row * out.stride + w.first_row + output;
  if (out.values) {
    const float v = value(Range{0, w.cols});
    out.values[at - out.origin] = out.bias ? v + out.bias[w.first_row + output] : v;
    return;
  }
  for (size_t begin = 0; begin < w.cols; begin += out.unit) {
    bool poisoned = false;
    out.sums[at] += to_fixed(value(Range{begin, std::min(begin + out.unit, w.cols)}), poisoned);
    if (poisoned) __atomic_fetch_add(&out.poisoned[row], 1, __ATOMIC_RELAXED);
  }
}

template <class F>
void for_each_output(const PieceShape& w, Range rows, Range blocks, F&& f) {
  for (size_t row = rows.begin; row < rows.end; ++row)
    for (size_t output = blocks.begin * kBlockRows; output < std::min(blocks.end * kBlockRows, w.rows); ++output) f(row, output);
}

float quantised_sum(const Piece& w, const QuantisedRows& x, size_t row, size_t output, Range columns) {
  const std::byte* block = w.block(output / kBlockRows);
  const size_t lane = output % kBlockRows;
  float acc = 0;
  for (size_t g = columns.begin / w.group; g < columns.end / w.group; ++g) {
    int32_t d = 0;
    for (size_t k = g * w.group; k < (g + 1) * w.group; ++k) d += x.codes[row * w.cols + k] * (held_code(w, block, lane, k) - w.zero);
    const float s = x.scales[x.scale_at(row, g * w.group / w.activation_block)];
    float scale = held_scale(w, block + w.scales_at, lane, g);
    if (w.container == Container::mxfp4) scale = scale * 0.5f;
    acc = std::fma(scale * s, static_cast<float>(d), acc);
    if (w.biased) acc = std::fma(held_scale(w, block + w.biases_at, lane, g), x.bias_factors[x.group_at(row, g)], acc);
  }
  return acc;
}

void product_quantised(const Piece& w, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out) {
  for_each_output(w, rows, blocks, [&](size_t row, size_t output) {
    finish(w, out, row, output, [&](Range columns) { return quantised_sum(w, x, row, output, columns); });
  });
}

float dense_sum(const Piece& w, const float* x, size_t output, Range columns) {
  const size_t element = formats::size_of(w.format.dtype);
  const std::byte* block = w.block(output / kBlockRows);
  float a[4] = {};
  for (size_t k = columns.begin; k < columns.end; ++k) {
    const float weight = formats::to_f32(block + (k * kBlockRows + output % kBlockRows) * element, w.format.dtype);
    const size_t chain = (k - columns.begin) % 4;
    a[chain] = std::fma(x[k], weight, a[chain]);
  }
  return fold4(a);
}

void product_dense(const Piece& w, const float* x, size_t stride, Range rows, Range blocks, const ProductOut& out) {
  for_each_output(w, rows, blocks, [&](size_t row, size_t output) {
    finish(w, out, row, output, [&](Range columns) { return dense_sum(w, x + row * stride, output, columns); });
  });
}

float pairs_sum(const Piece& w, const float* x, size_t output, Range columns) {
  const std::byte* block = w.block(output / kBlockRows);
  float acc = 0;
  for (size_t begin = columns.begin; begin < columns.end; begin += kPairBlock) {
    float chains[2] = {};
    for (size_t k = begin; k < begin + kPairBlock; ++k)
      chains[k % 2] = std::fma(x[k], held_pair_weight(block, output % kBlockRows, k), chains[k % 2]);
    acc = acc + (chains[0] + chains[1]);
  }
  return acc;
}

void product_pairs(const Piece& w, const PairRows& x, Range rows, Range blocks, const ProductOut& out) {
  for_each_output(w, rows, blocks, [&](size_t row, size_t output) {
    finish(w, out, row, output, [&](Range columns) { return pairs_sum(w, x.values + row * x.stride, output, columns); });
  });
}

void round_row(const float* x, const PairRows& into, size_t row) {
  for (size_t k = 0; k < into.stride; ++k) {
    const uint16_t half = k < into.cols ? to_half_of_pair(x[k]) : uint16_t{0};
    into.values[row * into.stride + k] = from_half_of_pair(half);
    if (into.halves) into.halves[row * into.stride + k] = half;
  }
}

void quantise_row(const float* x, const QuantisedRows& into, size_t row) {
  const size_t block = into.activation_block;
  int8_t* codes = into.codes + row * into.cols;
  for (size_t b = 0; b < into.cols / block; ++b) {
    float m = 0;
    bool finite = true;
    for (size_t k = b * block; k < (b + 1) * block; ++k) {
      finite = finite && std::isfinite(x[k]);
      m = std::max(m, std::fabs(x[k]));
    }
    const bool live = finite && m >= 0x1p-100f;
    const float r = live ? 127.0f / m : 0.0f;
    into.scales[into.scale_at(row, b)] = live ? m / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    for (size_t k = b * block; k < (b + 1) * block; ++k) codes[k] = live ? static_cast<int8_t>(std::nearbyint(x[k] * r)) : int8_t{0};
  }
  for (size_t g = 0; g < into.cols / into.group; ++g) {
    int32_t sum = 0;
    for (size_t k = g * into.group; k < (g + 1) * into.group; ++k) sum += codes[k];
    const size_t at = into.group_at(row, g);
    into.offsets[at] = -into.zero * sum;
    into.bias_factors[at] = into.scales[into.scale_at(row, g * into.group / block)] * static_cast<float>(sum);
  }
}

void zero_padding(float* y, size_t cols) { std::fill(y + cols, y + round_up(cols, 16), 0.0f); }

void rms_norm_row(const float* x, const float* weight, float eps, size_t cols, float* y) {
  const float r = 1.0f / std::sqrt(sum_of_squares(x, cols) / static_cast<float>(cols) + eps);
  for (size_t i = 0; i < cols; ++i) y[i] = (x[i] * r) * weight[i];
  zero_padding(y, cols);
}

float silu(float x) { return x / (1.0f + exp_f32(-x)); }

float gelu_tanh(float x) {
  const float u = 0.7978845608f * std::fma(0.044715f * x, x * x, x);
  const float tanh = 1.0f - 2.0f / (exp_f32(2.0f * u) + 1.0f);
  return (0.5f * x) * (1.0f + tanh);
}

void gated_row(const float* gate_up, size_t n, Activation activation, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = (activation == Activation::silu ? silu(gate_up[i]) : gelu_tanh(gate_up[i])) * gate_up[n + i];
  zero_padding(y, n);
}

void add_reduced_row(const float* residual, const int64_t* sums, const float* bias, size_t cols, float* y) {
  for (size_t i = 0; i < cols; ++i) {
    const float v = residual[i] + from_fixed(sums[i]);
    y[i] = bias ? v + bias[i] : v;
  }
  zero_padding(y, cols);
}

void rotate(float& x1, float& x2, float cos, float sin) {
  const float a = x1, b = x2;
  x1 = std::fma(a, cos, -(b * sin));
  x2 = std::fma(b, cos, a * sin);
}

void prepare_head(const float* x, size_t head_dim, const HeadNorm* norm, const HeadRope* rope, float* out) {
  std::copy(x, x + head_dim, out);
  zero_padding(out, head_dim);
  if (norm) {
    const float r = 1.0f / std::sqrt(sum_of_squares(x, head_dim) / static_cast<float>(head_dim) + norm->eps);
    for (size_t i = 0; i < head_dim; ++i) out[i] = (x[i] * r) * norm->weight[i];
  }
  if (!rope) return;
  for (size_t i = 0; i < rope->pairs; ++i) {
    if (rope->mode == RopeMode::half)
      rotate(out[i], out[i + rope->pairs], rope->cos[i], rope->sin[i]);
    else
      rotate(out[2 * i], out[2 * i + 1], rope->cos[i], rope->sin[i]);
  }
}

size_t element_size(KvType type) { return type == KvType::f16 ? 2 : 4; }

// Element i of keys or values; for q8 the code.
float load_kv(const std::byte* area, size_t i, KvType type) {
  if (type == KvType::q8) return static_cast<float>(reinterpret_cast<const int8_t*>(area)[i]);
  return formats::to_f32(area + i * element_size(type), type == KvType::f16 ? formats::DType::f16 : formats::DType::f32);
}

// Scale of a position's key (or value) in a block; 1 where the cache has none.
float kv_scale(const KvView& kv, const std::byte* block, size_t position, bool value) {
  if (kv.type != KvType::q8) return 1;
  return reinterpret_cast<const float*>(block + kv.scales_at)[(value ? kKvBlock : 0) + position];
}

void save_kv(std::byte* area, size_t i, KvType type, float v) {
  const uint16_t half = formats::f32_to_f16(v);
  if (type == KvType::f16)
    std::memcpy(area + i * 2, &half, 2);
  else
    std::memcpy(area + i * 4, &v, 4);
}

// Codes `step` apart; returns their scale.
float save_codes(const float* x, size_t n, int8_t* codes, size_t step) {
  float m = 0;
  bool finite = true;
  for (size_t d = 0; d < n; ++d) {
    finite = finite && std::isfinite(x[d]);
    m = std::max(m, std::fabs(x[d]));
  }
  const bool live = finite && m >= 0x1p-100f;
  const float r = live ? 127.0f / m : 0.0f;
  for (size_t d = 0; d < n; ++d) codes[d * step] = live ? static_cast<int8_t>(std::nearbyint(x[d] * r)) : int8_t{0};
  return live ? m / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
}

void store_kv(const float* key, const float* value, std::byte* block_keys, const KvView& kv, size_t slot) {
  if (kv.type == KvType::q8) {
    auto* scales = reinterpret_cast<float*>(block_keys + kv.scales_at);
    scales[slot] = save_codes(key, kv.head_dim, reinterpret_cast<int8_t*>(block_keys) + slot, kKvBlock);
    scales[kKvBlock + slot] = save_codes(value, kv.head_dim, reinterpret_cast<int8_t*>(block_keys + kv.values_at) + slot * kv.head_dim, 1);
    return;
  }
  for (size_t d = 0; d < kv.head_dim; ++d) {
    save_kv(block_keys, d * kKvBlock + slot, kv.type, key[d]);
    save_kv(block_keys + kv.values_at, slot * kv.head_dim + d, kv.type, value[d]);
  }
}

float score(const AttendTile& t, const float* q, const std::byte* keys, size_t j) {
  float a[4] = {};
  for (size_t d = 0; d < t.kv.head_dim; ++d) a[d % 4] = std::fma(q[d], load_kv(keys, d * kKvBlock + j, t.kv.type), a[d % 4]);
  return (t.scale * kv_scale(t.kv, keys, j, false)) * fold4(a);
}

struct PartSums {
  float m = -kInfinity;
  bool seen = false;
  float l[16] = {};
  std::vector<float> o;
};

PartSums sum_partition(const AttendTile& t, size_t query, size_t partition) {
  const size_t head_dim = t.kv.head_dim, at = partition * kKvPartition;
  const size_t oldest = t.window == 0 || t.positions[query] < t.window ? 0 : t.positions[query] - t.window + 1;
  const size_t first = std::max(oldest, at), past = std::min<size_t>(size_t{t.positions[query]} + 1, at + kKvPartition);
  PartSums sums{.o = std::vector<float>(head_dim)};
  if (first >= past) return sums;
  sums.seen = true;
  for (size_t block = first / kKvBlock; block * kKvBlock < past; ++block) {
    const std::byte* keys = t.kv.layer + t.blocks[block] * t.kv.block_bytes;
    const size_t begin = std::max(first, block * kKvBlock) - block * kKvBlock;
    const size_t end = std::min(past, (block + 1) * kKvBlock) - block * kKvBlock;
    float s[kKvBlock], new_m = sums.m;
    bool nan = false;
    for (size_t j = begin; j < end; ++j) {
      s[j] = score(t, t.queries[query], keys, j);
      nan = nan || std::isnan(s[j]);
      new_m = std::max(new_m, s[j]);
    }
    if (nan) new_m = std::numeric_limits<float>::quiet_NaN();
    const float c = block == first / kKvBlock ? 0.0f : exp_f32(sums.m - new_m);
    for (float& lane : sums.l) lane = lane * c;
    for (float& o : sums.o) o = o * c;
    for (size_t j = begin; j < end; ++j) {
      const float p = exp_f32(s[j] - new_m);
      sums.l[j % 16] = sums.l[j % 16] + p;
      const float weight = p * kv_scale(t.kv, keys, j, true);
      for (size_t d = 0; d < head_dim; ++d)
        sums.o[d] = std::fma(weight, load_kv(keys + t.kv.values_at, j * head_dim + d, t.kv.type), sums.o[d]);
    }
    sums.m = new_m;
  }
  return sums;
}

void merge(PartSums& sums, const PartSums& next) {
  if (!next.seen) return;
  if (!sums.seen) {
    sums = next;
    return;
  }
  const bool nan = std::isnan(sums.m) || std::isnan(next.m);
  const float m = nan ? std::numeric_limits<float>::quiet_NaN() : std::max(sums.m, next.m);
  const float a = exp_f32(sums.m - m), b = exp_f32(next.m - m);
  for (size_t t = 0; t < 16; ++t) sums.l[t] = std::fma(next.l[t], b, sums.l[t] * a);
  for (size_t d = 0; d < sums.o.size(); ++d) sums.o[d] = std::fma(next.o[d], b, sums.o[d] * a);
  sums.m = m;
}

void finish(PartSums& sums, float* out) {
  const float sum = fold16(sums.l);
  for (size_t d = 0; d < sums.o.size(); ++d) out[d] = sums.o[d] / sum;
}

void attend(const AttendTile& t) {
  for (size_t i = 0; i < t.count; ++i) {
    if (t.partition != kAllPartitions) {
      const PartSums sums = sum_partition(t, i, t.partition);
      t.parts[i][0] = sums.m;
      t.parts[i][1] = sums.seen;
      std::copy(sums.l, sums.l + 16, t.parts[i] + 16);
      std::copy(sums.o.begin(), sums.o.end(), t.parts[i] + 32);
      continue;
    }
    PartSums sums;
    for (size_t p = 0; p <= t.positions[i] / kKvPartition; ++p) merge(sums, sum_partition(t, i, p));
    finish(sums, t.out[i]);
  }
}

void merge_partitions(float* parts, size_t count, size_t head_dim, float* out) {
  PartSums sums;
  for (size_t p = 0; p < count; ++p) {
    const float* part = parts + p * partition_floats(head_dim);
    PartSums next{part[0], part[1] != 0, {}, {part + 32, part + 32 + head_dim}};
    std::copy(part + 16, part + 32, next.l);
    merge(sums, next);
  }
  finish(sums, out);
}

}  // namespace

const Kernels& reference_kernels() {
  static const Kernels kernels{product_quantised, nullptr,   product_dense,   product_pairs, nullptr,  round_row, quantise_row,
                               rms_norm_row,      gated_row, add_reduced_row, prepare_head,  store_kv, attend,    merge_partitions};
  return kernels;
}

}  // namespace verbund::compute::native
