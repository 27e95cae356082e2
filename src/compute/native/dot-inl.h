// The integer dot products: unsigned codes times signed activations, exact in int32. Included once per target.
//
// A Reg holds kParts-th of 64 bytes of codes: [outputs][4 columns]. dot_quads adds, for each output, the products of N
// quads of codes with N quads of activations.
//   AVX-512 VNNI  vpdpbusd
//   AVX-512, AVX2 vpmaddubsw saturates at 32767, so how many of its sums may be added in 16 bits follows from the largest
//                 code; 8-bit codes are split into 7 bits and the top one (255 * 127 * 2 would not fit)
//   NEON          sdot where the build has it, else widening multiplies; 8-bit codes are split likewise
#if defined(VERBUND_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERBUND_DOT_INL_H_
#undef VERBUND_DOT_INL_H_
#else
#define VERBUND_DOT_INL_H_
#endif

#include <cstring>

#include "compute/native/vec16-inl.h"

#if HWY_TARGET == HWY_AVX3_DL  // Highway 1.0 does not name VNNI among this target's features, isa.cpp checks that it is there
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace verbund::compute::native {
namespace HWY_NAMESPACE {
#if VERBUND_SIMD

using IntReg = hn::Vec<IntTag>;
using ByteTag = hn::Repartition<uint8_t, IntTag>;
using Reg = hn::Vec<ByteTag>;
constexpr size_t kRegBytes = 4 * kLanes;

HWY_INLINE Reg load_reg(const std::byte* at) { return hn::LoadU(ByteTag(), reinterpret_cast<const uint8_t*>(at)); }
HWY_INLINE Reg low_nibbles(Reg r) { return hn::And(r, hn::Set(ByteTag(), 15)); }
HWY_INLINE Reg high_nibbles(Reg r) { return hn::ShiftRight<4>(r); }

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

HWY_INLINE int32x4_t dot_s8(int32x4_t acc, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, a, b);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(a), vget_high_s8(b)));
  return vaddq_s32(acc, vpaddq_s32(low, high));
#endif
}

template <int kCodeMax, size_t N>
HWY_INLINE IntReg dot_quads(IntReg acc, const Reg* codes, const int8_t* q) {
  _Pragma("GCC unroll 8") for (size_t i = 0; i < N; ++i) {
    const int8x16_t x = vreinterpretq_s8_s32(broadcast_quad(q + 4 * i).raw);
    if constexpr (kCodeMax > 127) {
      const int32x4_t top = dot_s8(vdupq_n_s32(0), vreinterpretq_s8_u8(vshrq_n_u8(codes[i].raw, 7)), x);
      acc.raw = vaddq_s32(acc.raw, vshlq_n_s32(top, 7));
      acc.raw = dot_s8(acc.raw, vreinterpretq_s8_u8(vandq_u8(codes[i].raw, vdupq_n_u8(127))), x);
    } else {
      acc.raw = dot_s8(acc.raw, vreinterpretq_s8_u8(codes[i].raw), x);
    }
  }
  return acc;
}

#endif

#endif  // VERBUND_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#endif  // toggle
