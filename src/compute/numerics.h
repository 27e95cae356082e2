// The arithmetic contract of the native backend (docs/DESIGN.md section 4.1), in one place.
//
// Everything below is a function of the inputs alone. Kernels may tile, vectorise, batch and thread as they like as long
// as each output element sees exactly these operations in exactly this order. All arithmetic is IEEE-754 binary32
// unless stated, round to nearest even, denormals kept; fma(a,b,c) is one rounding; contraction is off elsewhere.
// The payload and sign of a NaN are not part of the contract (whether a value is NaN is).
//
// LANES16(n, f): sixteen accumulators a[0..15] = 0; for i ascending: a[i % 16] = f(i, a[i % 16]); a row shorter than a
// multiple of 16 is continued with zeros. FOLD(a): for s = 8, 4, 2, 1: a[l] = a[l] + a[l + s] for l < s; result a[0].
// LANES4(n, f): four accumulators a[0..3] = 0; for i ascending: a[i % 4] = f(i, a[i % 4]); result (a[0] + a[2]) + (a[1] + a[3]).
// (Products keep one output per vector lane, so nothing is folded across lanes; four chains hide the latency of fma
// and shorten the error of a sequential sum.)
//
// 1. Dense product (weights f32, f16, bf16, widened exactly; x f32), K columns:
//      LANES4(K, a -> fma(x[i], w[i], a))
//    With --fast-dense instead, (units, if any, must be multiples of 32 columns):
//      B(v) = v rounded to bfloat16, to nearest even (beyond its range: infinite); |B(v)| < 2^-56 counts as 0
//      acc = 0; for blocks of 32 columns ascending (the last is continued with zeros), over their 16 pairs p ascending:
//        e = 0, e = fma(B(x[2p]), B(w[2p]), e) ; o = 0, o = fma(B(x[2p + 1]), B(w[2p + 1]), o) ; then acc = acc + (e + o)
//    This is the order of AMX's TDPBF16PS (Intel SDM volume 2), which takes denormals for 0. Nothing here is one: all products are
//    multiples of 2^-126, so all sums are too. So tiles and plain fma give the same bits.
// 2. Activation quantisation for affine and mxfp4 weights, per row in blocks of B = max(32, group) columns (K is a
//    multiple of B):
//      m = max |x[i]|
//      m finite and m >= 2^-100:  s = m / 127, r = 127 / m (divisions), q[i] = round_to_nearest_even(x[i] * r), |q| <= 127
//      m < 2^-100:                s = 0, q = 0
//      m infinite or any NaN:     s = NaN, q = 0     (poisons the row)
// 3. Quantised product: acc = 0; for weight groups g ascending (each inside one activation block b):
//      d = integer dot of q and (code - zero) over the group, exact in int32 (|d| < 2^24), then converted to f32
//      acc = fma(scale[g] * s[b], f32(d), acc)                          `scale * s` rounded once
//      if biases are stored: acc = fma(bias[g], s[b] * f32(sum of q over the group), acc)      `s * sum` rounded once
//    Codes are the unsigned integers of formats/weight.h; zero = 0 for stored biases. mxfp4: code = 2 * E2M1 (an
//    integer, |code| <= 12), scale = 2^(e-127) * 0.5 (exact), zero = 0, no bias.
// 4. Row-parallel product: columns are cut into units (`unit` columns, from the tensor alone; the last may be shorter).
//    Each unit's f32 result by 1 or 3 (starting from acc = 0) is rounded once to fixed point:
//      F(v) = round_to_nearest_even(f64(v) * 2^30) as int64, |v| <= 2^20; anything else (NaN too) counts as 0 and poisons the row.
//    Units and ranks are added as int64. The result returns as f32(f64(sum) * 2^-30) (both conversions to nearest even).
//    Wire form: rows * cols int64, then one int64 a row that counts poisoned values.
//    add_reduced: y = residual + (reduced value); then y = y + bias if there is one.
// 5. rms_norm: ss = FOLD(LANES16(n, a -> fma(x[i], x[i], a))); r = 1 / sqrt(ss / n + eps); y[i] = (x[i] * r) * w[i].
// 6. exp: own polynomial exp_f32 (numerics.cpp has the order; below -87 it is 0, above 88 infinite);
//    silu(x) = x / (1 + exp(-x)); gelu_tanh(x) = (0.5 x) (1 + tanh(u)), u = sqrt(2/pi) * fma(0.044715 * x, x * x, x),
//    tanh(u) = 1 - 2 / (exp(2u) + 1).
//    gated: act(gate) * up.
// 7. RoPE: (x1, x2) -> (fma(x1, cos, -(x2 * sin)), fma(x2, cos, x1 * sin)); tables from model/rope.h. Head norms are 5 over D.
// 8. Attention, per query row i and head: keys and values are rounded to the cache's type when stored, then widened
//    exactly. KV blocks of 32 positions in ascending order from the first that holds a visible key; m = -inf, l = 0, o = 0:
//      s_j = scale * LANES4(D, a -> fma(q[d], k_j[d], a)) for visible j
//      M = max(m, max_j s_j) ; c = exp(m - M) (0 for the first block) ; p_j = exp(s_j - M)
//      l is sixteen lanes: l[t] = l[t] * c, then l[j % 16] = l[j % 16] + p_j for j ascending
//      o[d] = o[d] * c, then o[d] = fma(p_j, v_j[d], o[d]) for j ascending
//    at the end o[d] / FOLD(l) (division).
//    The positions are cut at every multiple of 1024 (kKvPartition). Each partition with a visible key is summed by itself, from
//    m = -inf, l = 0, o = 0; then the sums are merged into those of the first one, the partitions ascending:
//      M = max(m, m') ; a = exp(m - M) ; b = exp(m' - M) ; l[t] = fma(l'[t], b, l[t] * a) ; o[d] = fma(o'[d], b, o[d] * a) ; m = M
//    (a maximum with a NaN is a NaN), and the division comes last. So threads can share one long sequence.
//    Cache type q8: a position's key and value are each stored as codes q and a scale s by point 2 with one block of D columns;
//    then k_j[d] and v_j[d] above are f32(q), s_j = (scale * ks_j) * LANES4(...), and o[d] = fma(p_j * vs_j, v_j[d], o[d]).
// 9. linear with bias: the finished product, then + bias.
// 10. embed: the row of the table as formats::dequantise_row gives it: scale * (q - zero), fma(scale, q, bias), or widened
//     (with --fast-dense B(w)).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace verbund::compute {

constexpr double kFixedOne = 1073741824.0;  // 2^30
constexpr float kFixedMax = 1048576.0f;     // 2^20: |value| of one unit
constexpr size_t kPairBlock = 32;           // columns of a block of --fast-dense
constexpr size_t kKvPartition = 1024;       // positions; a multiple of kKvBlock
constexpr size_t kUnitsMax = 8191;          // units summed in one reduction: 8191 * 2^50 < 2^63
// Nearest-even rounding by adding 1.5 * 2^52: the same bits on every machine, and one fused operation.
constexpr double kFixedMagic = 6755399441055744.0;

float exp_f32(float x);  // the scalar form of the kernels' polynomial
int64_t to_fixed(float v, bool& poisoned);
inline float from_fixed(int64_t sum) { return static_cast<float>(static_cast<double>(sum) * (1.0 / kFixedOne)); }

// The bits of B(v), point 1.
inline uint16_t to_half_of_pair(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v), magnitude = u & 0x7fffffffu;
  const uint32_t rounded = magnitude > 0x7f800000u ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((rounded & 0x7fff) < (127 - 56) << 7 ? 0 : rounded);
}
inline float from_half_of_pair(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

// Double-precision elementary functions of our own for tables that every machine must agree on (|relative error| < 1e-14).
double exact_log(double x);                             // x > 0, normal
double exact_exp(double x);                             // |x| < 700
double exact_pow(double base, double exponent);         // base > 0, |exponent * log(base)| < 700
void exact_sincos(double x, double& sin, double& cos);  // |x| < 2^24

}  // namespace verbund::compute
