// Norms, activations, quantisation of activations and the residual sum: row by row, sixteen lanes at a time.
#include <algorithm>
#include <bit>
#include <limits>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace HWY_NAMESPACE {
#if VERBUND_SIMD

HWY_INLINE void zero_padding(float* y, size_t cols) { std::fill(y + cols, y + round_up(cols, 16), 0.0f); }

HWY_INLINE F16x square_sums(const float* x, size_t padded) {
  F16x sums = zero16();
  for (size_t i = 0; i < padded; i += 16) {
    const F16x v = load(x + i);
    sums = fma(v, v, sums);
  }
  return sums;
}

HWY_INLINE float inverse_rms(float squares, size_t cols, float eps) { return 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps); }

void rms_norm_row(const float* x, const float* weight, float eps, size_t cols, float* y) {
  const size_t padded = round_up(cols, 16);
  const F16x r = all(inverse_rms(fold16(square_sums(x, padded)), cols, eps));
  for (size_t i = 0; i < padded; i += 16) store(mul(mul(load(x + i), r), load(weight + i)), y + i);
  zero_padding(y, cols);
}

HWY_INLINE F16x silu16(const F16x& x) { return div(x, add(all(1.0f), exp16(sub(all(-0.0f), x)))); }

HWY_INLINE F16x gelu_tanh16(const F16x& x) {
  const F16x u = mul(all(0.7978845608f), fma(mul(all(0.044715f), x), mul(x, x), x));
  const F16x tanh = sub(all(1.0f), div(all(2.0f), add(exp16(mul(all(2.0f), u)), all(1.0f))));
  return mul(mul(all(0.5f), x), add(all(1.0f), tanh));
}

template <class Act>
HWY_INLINE void gate(const float* gate_up, size_t n, float* y, Act act) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(mul(act(load(gate_up + i)), load(gate_up + n + i)), y + i);
  if (i == n) return;
  alignas(64) float ends[2][16] = {};
  std::copy(gate_up + i, gate_up + n, ends[0]);
  std::copy(gate_up + n + i, gate_up + 2 * n, ends[1]);
  store(mul(act(load(ends[0])), load(ends[1])), y + i);
  zero_padding(y, n);
}

void gated_row(const float* gate_up, size_t n, Activation activation, float* y) {
  if (activation == Activation::silu)
    gate(gate_up, n, y, [](const F16x& x) HWY_ATTR { return silu16(x); });
  else
    gate(gate_up, n, y, [](const F16x& x) HWY_ATTR { return gelu_tanh16(x); });
}

void add_reduced_row(const float* residual, const int64_t* sums, const float* bias, size_t cols, float* y) {
  for (size_t i = 0; i < cols; ++i) y[i] = residual[i] + static_cast<float>(static_cast<double>(sums[i]) * (1.0 / kFixedOne));
  if (bias)
    for (size_t i = 0; i < cols; ++i) y[i] = y[i] + bias[i];
  zero_padding(y, cols);
}

// Largest |x| of a block as bits: NaN compares above infinity, infinity above every number.
HWY_INLINE uint32_t largest_magnitude(const float* x, size_t n) {
  const IntTag d;
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < n; i += kLanes) {
    const auto bits = hn::BitCast(d, hn::LoadU(FloatTag(), x + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(d, 0x7fffffff)));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

// Codes of `n` columns (a multiple of 16) and their sum.
HWY_INLINE int32_t write_codes(const float* x, size_t n, float r, int8_t* codes) {
  const IntTag d;
  const hn::Rebind<int8_t, IntTag> bytes;
  auto sum = hn::Zero(d);
  for (size_t i = 0; i < n; i += kLanes) {
    const auto q = hn::NearestInt(hn::Mul(hn::LoadU(FloatTag(), x + i), hn::Set(FloatTag(), r)));
    sum = hn::Add(sum, q);
    hn::StoreU(hn::DemoteTo(bytes, q), bytes, codes + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void quantise_row(const float* x, const QuantisedRows& into, size_t row) {
  const size_t block = into.activation_block, group = into.group;
  int8_t* codes = into.codes + row * into.cols;
  for (size_t b = 0; b < into.cols / block; ++b) {
    const uint32_t bits = largest_magnitude(x + b * block, block);
    const auto [s, r] = code_scale(bits);
    const bool live = r != 0;
    into.scales[into.scale_at(row, b)] = s;
    for (size_t k = b * block; k < (b + 1) * block; k += group) {
      int32_t sum = 0;
      if (live)
        sum = write_codes(x + k, group, r, codes + k);
      else
        std::fill(codes + k, codes + k + group, int8_t{0});
      const size_t g = into.group_at(row, k / group);
      into.offsets[g] = -into.zero * sum;
      into.bias_factors[g] = s * static_cast<float>(sum);
    }
  }
}

HWY_INLINE void rotate_half(float* x, const HeadRope& rope) {
  size_t i = 0;
  for (; i + 16 <= rope.pairs; i += 16) {
    const F16x a = load(x + i), b = load(x + rope.pairs + i), cos = load(rope.cos + i), sin = load(rope.sin + i);
    store(fma(a, cos, sub(all(-0.0f), mul(b, sin))), x + i);
    store(fma(b, cos, mul(a, sin)), x + rope.pairs + i);
  }
  for (; i < rope.pairs; ++i) {
    const float a = x[i], b = x[rope.pairs + i];
    x[i] = std::fma(a, rope.cos[i], -(b * rope.sin[i]));
    x[rope.pairs + i] = std::fma(b, rope.cos[i], a * rope.sin[i]);
  }
}

HWY_INLINE void rotate_interleaved(float* x, const HeadRope& rope) {
  for (size_t i = 0; i < rope.pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = std::fma(a, rope.cos[i], -(b * rope.sin[i]));
    x[2 * i + 1] = std::fma(b, rope.cos[i], a * rope.sin[i]);
  }
}

void prepare_head(const float* x, size_t head_dim, const HeadNorm* norm, const HeadRope* rope, float* out) {
  std::copy(x, x + head_dim, out);
  zero_padding(out, head_dim);
  if (norm) {
    const size_t padded = round_up(head_dim, 16);
    const F16x r = all(inverse_rms(fold16(square_sums(out, padded)), head_dim, norm->eps));
    for (size_t i = 0; i < padded; i += 16) store(mul(mul(load(out + i), r), load(norm->weight + i)), out + i);
  }
  if (!rope) return;
  if (rope->mode == RopeMode::half)
    rotate_half(out, *rope);
  else
    rotate_interleaved(out, *rope);
}

#endif  // VERBUND_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "compute/native/dispatch.h"

namespace verbund::compute::native {

void fill_elementwise(Kernels& kernels, Isa isa) {
  kernels.quantise_row = VERBUND_PICK(isa, quantise_row);
  kernels.rms_norm_row = VERBUND_PICK(isa, rms_norm_row);
  kernels.gated_row = VERBUND_PICK(isa, gated_row);
  kernels.add_reduced_row = VERBUND_PICK(isa, add_reduced_row);
  kernels.prepare_head = VERBUND_PICK(isa, prepare_head);
}

}  // namespace verbund::compute::native
#endif
