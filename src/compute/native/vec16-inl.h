// Sixteen f32 lanes (one weight block's outputs, or one LANES16 row) as as many registers as the target needs: one with
// AVX-512, two with AVX2, four with NEON. Included once per target by the files Highway compiles repeatedly.
#if defined(VERBUND_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERBUND_VEC16_INL_H_
#undef VERBUND_VEC16_INL_H_
#else
#define VERBUND_VEC16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "compute/native/exp_f32.h"

// The target that merely is the compiler's floor (plain x86-64) is below our floor: its copy of each file stays empty. On Arm
// the floor is NEON, whatever Highway calls this build's form of it.
#undef VERBUND_SIMD
#if HWY_ARCH_ARM_A64
#define VERBUND_SIMD (HWY_TARGET == HWY_STATIC_TARGET)
#else
#define VERBUND_SIMD (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)
#endif

// Our namespace of each target. A file compiled once more with other flags (neon/) brings a name of its own.
#ifndef VERBUND_NAMESPACE
#define VERBUND_NAMESPACE HWY_NAMESPACE
#endif

// A part of an unrolled tile that is worth inlining, except into sanitised code: there checks make a function of a hundred
// unrolled loads so large that g++ takes minutes.
#undef VERBUND_TILE_PART
#ifdef __SANITIZE_ADDRESS__
#define VERBUND_TILE_PART HWY_NOINLINE
#else
#define VERBUND_TILE_PART HWY_INLINE
#endif

// Instead of HWY_BEFORE_NAMESPACE where 8-bit dot products are used: Highway 1.0 does not name VNNI among this target's features
// (isa.cpp checks that it is there).
#undef VERBUND_BEFORE_DOTS
#if HWY_TARGET == HWY_AVX3_DL
#define VERBUND_BEFORE_DOTS() HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
#define VERBUND_BEFORE_DOTS() HWY_BEFORE_NAMESPACE()
#endif

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace VERBUND_NAMESPACE {
#if VERBUND_SIMD

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using FloatReg = hn::Vec<FloatTag>;
constexpr size_t kLanes = hn::MaxLanes(FloatTag());
constexpr size_t kParts = 16 / kLanes;

struct F16x {
  FloatReg v[kParts];
};

// Runs `part` for each register: the compiler unrolls it, kParts is 1, 2 or 4.
#define VERBUND_PARTS(p) _Pragma("GCC unroll 4") for (size_t p = 0; p < kParts; ++p)

// Weights stream from memory once a step, and one core's own prefetchers leave a third of the bandwidth unused: they stop at
// page borders and do not run far enough ahead. So whoever reads `bytes` from here asks for as many that come this much later.
constexpr size_t kPrefetchAhead = 12 * 1024;

HWY_INLINE void prefetch_stream(const std::byte* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + kPrefetchAhead + i, 0, 2);
}

HWY_INLINE F16x load(const float* at) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::LoadU(FloatTag(), at + p * kLanes);
  return r;
}
HWY_INLINE void store(const F16x& a, float* at) { VERBUND_PARTS(p) hn::StoreU(a.v[p], FloatTag(), at + p * kLanes); }
HWY_INLINE F16x all(float x) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Set(FloatTag(), x);
  return r;
}
HWY_INLINE F16x zero16() {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Zero(FloatTag());
  return r;
}
HWY_INLINE F16x add(const F16x& a, const F16x& b) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Add(a.v[p], b.v[p]);
  return r;
}
HWY_INLINE F16x sub(const F16x& a, const F16x& b) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Sub(a.v[p], b.v[p]);
  return r;
}
HWY_INLINE F16x mul(const F16x& a, const F16x& b) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Mul(a.v[p], b.v[p]);
  return r;
}
HWY_INLINE F16x div(const F16x& a, const F16x& b) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Div(a.v[p], b.v[p]);
  return r;
}
HWY_INLINE F16x max(const F16x& a, const F16x& b) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::Max(a.v[p], b.v[p]);
  return r;
}
// a * b + c, rounded once
HWY_INLINE F16x fma(const F16x& a, const F16x& b, const F16x& c) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::MulAdd(a.v[p], b.v[p], c.v[p]);
  return r;
}
// c - a * b, rounded once
HWY_INLINE F16x negative_fma(const F16x& a, const F16x& b, const F16x& c) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::NegMulAdd(a.v[p], b.v[p], c.v[p]);
  return r;
}

HWY_INLINE F16x load_f16(const std::byte* at) {
  F16x r;
  VERBUND_PARTS(p) {
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    r.v[p] = hn::PromoteTo(FloatTag(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(at) + p * kLanes));
  }
  return r;
}

HWY_INLINE F16x load_bf16(const std::byte* at) {
  F16x r;
  VERBUND_PARTS(p) {
    const hn::Rebind<uint16_t, FloatTag> half;
    const auto wide = hn::PromoteTo(WordTag(), hn::LoadU(half, reinterpret_cast<const uint16_t*>(at) + p * kLanes));
    r.v[p] = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
  }
  return r;
}

HWY_INLINE F16x load_f32(const std::byte* at) { return load(reinterpret_cast<const float*>(at)); }

// FOLD of numerics.h.
HWY_INLINE float fold16(const F16x& a) {
  alignas(64) float t[16];
  store(a, t);
  for (int s = 8; s >= 1; s /= 2)
    for (int l = 0; l < s; ++l) t[l] = t[l] + t[l + s];
  return t[0];
}

// exp_f32_inline, lane by lane.
HWY_INLINE F16x exp16(const F16x& x) {
  const FloatTag d;
  F16x out;
  VERBUND_PARTS(p) {
    const FloatReg v = x.v[p];
    const FloatReg t = hn::MulAdd(v, hn::Set(d, kLog2EF), hn::Set(d, kRoundMagicF));
    const FloatReg n = hn::Sub(t, hn::Set(d, kRoundMagicF));
    const FloatReg r = hn::NegMulAdd(n, hn::Set(d, kLn2LoF), hn::NegMulAdd(n, hn::Set(d, kLn2HiF), v));
    FloatReg y = hn::MulAdd(hn::Set(d, kExpC6), r, hn::Set(d, kExpC5));
    y = hn::MulAdd(y, r, hn::Set(d, kExpC4));
    y = hn::MulAdd(y, r, hn::Set(d, kExpC3));
    y = hn::MulAdd(y, r, hn::Set(d, kExpC2));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    const auto power = hn::ShiftLeft<23>(hn::Add(hn::BitCast(WordTag(), t), hn::Set(WordTag(), 127u)));
    y = hn::Mul(y, hn::BitCast(d, power));
    y = hn::IfThenZeroElse(hn::Lt(v, hn::Set(d, kExpMin)), y);
    out.v[p] = hn::IfThenElse(hn::Gt(v, hn::Set(d, kExpMax)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  }
  return out;
}

#endif  // VERBUND_SIMD
}  // namespace VERBUND_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#endif  // toggle
