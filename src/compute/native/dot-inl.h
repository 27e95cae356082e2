// The integer dot products: unsigned codes times signed activations, exact in int32. Included once per target.
//
// A Reg holds kParts-th of 64 bytes of codes: [outputs][4 columns]. dot_quads adds, for each output, the products of N
// quads of codes with N quads of activations; dot_rows does so for R rows of activations.
//   AVX-512 VNNI  vpdpbusd
//   AVX-512, AVX2 vpmaddubsw saturates at 32767, so how many of its sums may be added in 16 bits follows from the largest
//                 code; 8-bit codes are split into 7 bits and the top one (255 * 127 * 2 would not fit)
//   NEON          usmmla for two rows at once and usdot, where the CPU has int8 matrix products; sdot where it has dot products;
//                 else products are summed in 16 bits as above. All but the first take 8-bit codes less 128 as signed.
#if defined(VERBUND_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERBUND_DOT_INL_H_
#undef VERBUND_DOT_INL_H_
#else
#define VERBUND_DOT_INL_H_
#endif

#include <cstring>

#include "compute/native/vec16-inl.h"

VERBUND_BEFORE_DOTS();
namespace verbund::compute::native {
namespace VERBUND_NAMESPACE {
#if VERBUND_SIMD

using IntReg = hn::Vec<IntTag>;
using ByteTag = hn::Repartition<uint8_t, IntTag>;
using Reg = hn::Vec<ByteTag>;
constexpr size_t kRegBytes = 4 * kLanes;

HWY_INLINE Reg load_reg(const std::byte* at) { return hn::LoadU(ByteTag(), reinterpret_cast<const uint8_t*>(at)); }
HWY_INLINE Reg low_nibbles(Reg r) { return hn::And(r, hn::Set(ByteTag(), 15)); }
HWY_INLINE Reg high_nibbles(Reg r) { return hn::ShiftRight<4>(r); }

// Rows of activation codes. One register holds the place and one the distance, where a pointer a row would not leave enough.
struct CodeRows {
  const int8_t* first;
  size_t stride;
  HWY_INLINE const int8_t* operator[](size_t r) const { return first + r * stride; }
};

HWY_INLINE IntReg broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, 4);
  return hn::Set(IntTag(), quad);
}

#if HWY_TARGET == HWY_AVX3_DL

template <int kCodeMax, size_t N>
HWY_INLINE IntReg dot_quads(IntReg acc, const Reg* codes, const int8_t* q) {
  _Pragma("GCC unroll 8") for (size_t i = 0; i < N; ++i) acc.raw =
      _mm512_dpbusd_epi32(acc.raw, codes[i].raw, broadcast_quad(q + 4 * i).raw);
  return acc;
}

#elif HWY_ARCH_X86

#if HWY_TARGET == HWY_AVX3
HWY_INLINE IntReg pairs16(Reg u, IntReg s) { return IntReg{_mm512_maddubs_epi16(u.raw, s.raw)}; }
HWY_INLINE IntReg add16(IntReg a, IntReg b) { return IntReg{_mm512_add_epi16(a.raw, b.raw)}; }
HWY_INLINE IntReg pairs32(IntReg a) { return IntReg{_mm512_madd_epi16(a.raw, _mm512_set1_epi16(1))}; }
#else
HWY_INLINE IntReg pairs16(Reg u, IntReg s) { return IntReg{_mm256_maddubs_epi16(u.raw, s.raw)}; }
HWY_INLINE IntReg add16(IntReg a, IntReg b) { return IntReg{_mm256_add_epi16(a.raw, b.raw)}; }
HWY_INLINE IntReg pairs32(IntReg a) { return IntReg{_mm256_madd_epi16(a.raw, _mm256_set1_epi16(1))}; }
#endif

template <int kCodeMax, size_t N>
HWY_INLINE IntReg dot_quads(IntReg acc, const Reg* codes, const int8_t* q) {
  if constexpr (kCodeMax > 127) {
    const Reg top = hn::Set(ByteTag(), 0x80);
    _Pragma("GCC unroll 8") for (size_t i = 0; i < N; ++i) {
      const IntReg x = broadcast_quad(q + 4 * i);
      const IntReg low = pairs32(pairs16(hn::AndNot(top, codes[i]), x)), high = pairs32(pairs16(hn::And(top, codes[i]), x));
      acc = hn::Add(acc, hn::Add(low, high));
    }
  } else {
    constexpr size_t kFit = 32767 / (kCodeMax * 127 * 2);  // sums of pairs that fit into 16 bits
    constexpr size_t kStep = kFit < N ? (kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1) : N;
    _Pragma("GCC unroll 8") for (size_t i = 0; i < N; i += kStep) {
      IntReg sum = pairs16(codes[i], broadcast_quad(q + 4 * i));
      _Pragma("GCC unroll 8") for (size_t j = 1; j < kStep; ++j) sum = add16(sum, pairs16(codes[i + j], broadcast_quad(q + 4 * (i + j))));
      acc = hn::Add(acc, pairs32(sum));
    }
  }
  return acc;
}

#else  // NEON

// N quads of activations, four in a register.
template <size_t N>
HWY_INLINE void load_quads(const int8_t* q, int8x16_t* x) {
  _Pragma("GCC unroll 2") for (size_t i = 0; i < N / 4; ++i) x[i] = vld1q_s8(q + 16 * i);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

template <int kCodeMax, size_t N>
HWY_INLINE IntReg dot_quads(IntReg acc, const Reg* codes, const int8_t* q) {
  int8x16_t x[N / 4];
  load_quads<N>(q, x);
  _Pragma("GCC unroll 2") for (size_t i = 0; i < N / 4; ++i) {
    acc.raw = vusdotq_laneq_s32(acc.raw, codes[4 * i].raw, x[i], 0);
    acc.raw = vusdotq_laneq_s32(acc.raw, codes[4 * i + 1].raw, x[i], 1);
    acc.raw = vusdotq_laneq_s32(acc.raw, codes[4 * i + 2].raw, x[i], 2);
    acc.raw = vusdotq_laneq_s32(acc.raw, codes[4 * i + 3].raw, x[i], 3);
  }
  return acc;
}

#else

// The sum of products of signed codes. Their largest magnitude is kCodeMax, or 128.
#if defined(__ARM_FEATURE_DOTPROD)
template <int kLargest, size_t N>
HWY_INLINE int32x4_t dot_signed(int32x4_t acc, const int8x16_t* codes, const int8_t* q) {
  int8x16_t x[N / 4];
  load_quads<N>(q, x);
  _Pragma("GCC unroll 2") for (size_t i = 0; i < N / 4; ++i) {
    acc = vdotq_laneq_s32(acc, codes[4 * i], x[i], 0);
    acc = vdotq_laneq_s32(acc, codes[4 * i + 1], x[i], 1);
    acc = vdotq_laneq_s32(acc, codes[4 * i + 2], x[i], 2);
    acc = vdotq_laneq_s32(acc, codes[4 * i + 3], x[i], 3);
  }
  return acc;
}
#else
template <int kLargest, size_t N>
HWY_INLINE int32x4_t dot_signed(int32x4_t acc, const int8x16_t* codes, const int8_t* q) {
  constexpr size_t kFit = 32767 / (kLargest * 127);  // products that fit into 16 bits
  constexpr size_t kStep = kFit >= 8 && N >= 8 ? 8 : kFit >= 4 ? 4 : 2;
  static_assert(kFit >= kStep && N % kStep == 0);
  int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);  // of outputs 0 and 1, and of 2 and 3: two sums each
  _Pragma("GCC unroll 4") for (size_t i = 0; i < N; i += kStep) {
    int8x16_t x = vreinterpretq_s8_s32(broadcast_quad(q + 4 * i).raw);
    int16x8_t low16 = vmull_s8(vget_low_s8(codes[i]), vget_low_s8(x)), high16 = vmull_high_s8(codes[i], x);
    _Pragma("GCC unroll 8") for (size_t j = 1; j < kStep; ++j) {
      x = vreinterpretq_s8_s32(broadcast_quad(q + 4 * (i + j)).raw);
      low16 = vmlal_s8(low16, vget_low_s8(codes[i + j]), vget_low_s8(x));
      high16 = vmlal_high_s8(high16, codes[i + j], x);
    }
    low = vpadalq_s16(low, low16);
    high = vpadalq_s16(high, high16);
  }
  return vaddq_s32(acc, vpaddq_s32(low, high));
}
#endif

// 128 times the sum of N quads of activations, in every lane.
template <size_t N>
HWY_INLINE int32x4_t offset_128(const int8_t* q) {
  int16x8_t sums = vpaddlq_s8(vld1q_s8(q));
  if constexpr (N == 8) sums = vpadalq_s8(sums, vld1q_s8(q + 16));
  return vdupq_n_s32(vaddlvq_s16(sums) * 128);
}

template <int kCodeMax, size_t N>
HWY_INLINE IntReg dot_quads(IntReg acc, const Reg* codes, const int8_t* q) {
  constexpr bool kWide = kCodeMax > 127;
  constexpr int kLargest = kWide ? 128 : kCodeMax;
  int8x16_t as_signed[N];
  _Pragma("GCC unroll 8") for (size_t i = 0; i < N; ++i) as_signed[i] =
      vreinterpretq_s8_u8(kWide ? veorq_u8(codes[i].raw, vdupq_n_u8(128)) : codes[i].raw);
  acc.raw = dot_signed<kLargest, N>(acc.raw, as_signed, q);
  if constexpr (kWide) acc.raw = vaddq_s32(acc.raw, offset_128<N>(q));
  return acc;
}

#endif

#endif

template <int kCodeMax, size_t N, size_t R>
HWY_INLINE void dot_row_by_row(const Reg* codes, const CodeRows& rows, size_t at, size_t p, IntReg (*d)[kParts]) {
  _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) d[r][p] = dot_quads<kCodeMax, N>(d[r][p], codes, rows[r] + at);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// usmmla takes two outputs and two rows, eight columns each: quads are put together by pairs, sums likewise and apart again.
template <size_t N>
HWY_INLINE void dot_two_rows(const uint8x16_t (*octets)[2], const int8_t* q0, const int8_t* q1, IntReg& d0, IntReg& d1) {
  int8x16_t x0[N / 4], x1[N / 4];
  load_quads<N>(q0, x0);
  load_quads<N>(q1, x1);
  int32x4_t low = vzip1q_s32(d0.raw, d1.raw), high = vzip2q_s32(d0.raw, d1.raw);
  _Pragma("GCC unroll 4") for (size_t i = 0; i < N / 2; ++i) {
    const int64x2_t a = vreinterpretq_s64_s8(x0[i / 2]), b = vreinterpretq_s64_s8(x1[i / 2]);
    const int8x16_t both = vreinterpretq_s8_s64(i % 2 == 0 ? vzip1q_s64(a, b) : vzip2q_s64(a, b));
    low = vusmmlaq_s32(low, octets[i][0], both);
    high = vusmmlaq_s32(high, octets[i][1], both);
  }
  d0.raw = vuzp1q_s32(low, high);
  d1.raw = vuzp2q_s32(low, high);
}

template <int kCodeMax, size_t N, size_t R>
VERBUND_TILE_PART void dot_rows(const Reg* codes, const CodeRows& rows, size_t at, size_t p, IntReg (*d)[kParts]) {
  if constexpr (R == 1) return dot_row_by_row<kCodeMax, N, R>(codes, rows, at, p, d);
  uint8x16_t octets[N / 2][2];
  _Pragma("GCC unroll 4") for (size_t i = 0; i < N / 2; ++i) {
    const uint32x4_t a = vreinterpretq_u32_u8(codes[2 * i].raw), b = vreinterpretq_u32_u8(codes[2 * i + 1].raw);
    octets[i][0] = vreinterpretq_u8_u32(vzip1q_u32(a, b));
    octets[i][1] = vreinterpretq_u8_u32(vzip2q_u32(a, b));
  }
  _Pragma("GCC unroll 4") for (size_t r = 0; r + 1 < R; r += 2)
      dot_two_rows<N>(octets, rows[r] + at, rows[r + 1] + at, d[r][p], d[r + 1][p]);
}
#elif HWY_TARGET == HWY_AVX3_DL
// A quad of every row before the next quad: sums of as many rows hide the latency of each other's additions.
template <int kCodeMax, size_t N, size_t R>
VERBUND_TILE_PART void dot_rows(const Reg* codes, const CodeRows& rows, size_t at, size_t p, IntReg (*d)[kParts]) {
  _Pragma("GCC unroll 8") for (size_t i = 0; i < N; ++i) _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) d[r][p] =
      dot_quads<kCodeMax, 1>(d[r][p], codes + i, rows[r] + at + 4 * i);
}
#else
template <int kCodeMax, size_t N, size_t R>
VERBUND_TILE_PART void dot_rows(const Reg* codes, const CodeRows& rows, size_t at, size_t p, IntReg (*d)[kParts]) {
  dot_row_by_row<kCodeMax, N, R>(codes, rows, at, p, d);
}
#endif

#endif  // VERBUND_SIMD
}  // namespace VERBUND_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#endif  // toggle
