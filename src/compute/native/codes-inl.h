// How codes, scales and biases of packed weights come into registers (packed.h has the layout). Included once per target.
#if defined(VERBUND_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERBUND_CODES_INL_H_
#undef VERBUND_CODES_INL_H_
#else
#define VERBUND_CODES_INL_H_
#endif

#include "compute/native/dot-inl.h"
#include "compute/native/kernels.h"
#include "compute/native/vec16-inl.h"

VERBUND_BEFORE_DOTS();
namespace verbund::compute::native {
namespace VERBUND_NAMESPACE {
#if VERBUND_SIMD

// Reads register p of the eight quads of a 32-column span. Each container's kCodeMax bounds its codes.
struct Nibbles {
  static constexpr int kCodeMax = 15;
  static constexpr size_t kSpanBytes = 256;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) {
    _Pragma("GCC unroll 4") for (size_t v = 0; v < 4; ++v) {
      const Reg both = load_reg(span + v * 64 + p * kRegBytes);
      codes[v] = low_nibbles(both);
      codes[v + 4] = high_nibbles(both);
    }
  }
};

alignas(16) constexpr uint8_t kMxfp4Table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct Mxfp4Nibbles {
  static constexpr int kCodeMax = 24;
  static constexpr size_t kSpanBytes = 256;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) {
    const Reg table = hn::LoadDup128(ByteTag(), kMxfp4Table);
    Nibbles::read(span, p, codes);
    _Pragma("GCC unroll 8") for (size_t v = 0; v < 8; ++v) codes[v] = hn::TableLookupBytes(table, codes[v]);
  }
};

// Field of kBits bits of each byte, moved from bit kFrom to bit kTo.
template <int kFrom, int kTo, int kBits>
HWY_INLINE Reg field(Reg v) {
  const hn::Repartition<uint32_t, ByteTag> words;
  auto w = hn::BitCast(words, v);
  if constexpr (kFrom > kTo) w = hn::ShiftRight<kFrom - kTo>(w);
  if constexpr (kFrom < kTo) w = hn::ShiftLeft<kTo - kFrom>(w);
  return hn::And(hn::BitCast(ByteTag(), w), hn::Set(ByteTag(), static_cast<uint8_t>(((1 << kBits) - 1) << kTo)));
}

// A plane of pairs, moved to bit kTo.
template <int kTo>
HWY_INLINE void read_pairs(const std::byte* plane, size_t p, Reg* pairs) {
  _Pragma("GCC unroll 2") for (size_t i = 0; i < 2; ++i) {
    const Reg v = load_reg(plane + i * 64 + p * kRegBytes);
    pairs[4 * i] = field<0, kTo, 2>(v);
    pairs[4 * i + 1] = field<2, kTo, 2>(v);
    pairs[4 * i + 2] = field<4, kTo, 2>(v);
    pairs[4 * i + 3] = field<6, kTo, 2>(v);
  }
}

// A plane of single bits, added to the codes as bit kTo.
template <int kTo>
HWY_INLINE void add_bits(const std::byte* plane, size_t p, Reg* codes) {
  const Reg v = load_reg(plane + p * kRegBytes);
  codes[0] = hn::Or(codes[0], field<0, kTo, 1>(v));
  codes[1] = hn::Or(codes[1], field<1, kTo, 1>(v));
  codes[2] = hn::Or(codes[2], field<2, kTo, 1>(v));
  codes[3] = hn::Or(codes[3], field<3, kTo, 1>(v));
  codes[4] = hn::Or(codes[4], field<4, kTo, 1>(v));
  codes[5] = hn::Or(codes[5], field<5, kTo, 1>(v));
  codes[6] = hn::Or(codes[6], field<6, kTo, 1>(v));
  codes[7] = hn::Or(codes[7], field<7, kTo, 1>(v));
}

struct Planes2 {
  static constexpr int kCodeMax = 3;
  static constexpr size_t kSpanBytes = 128;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) { read_pairs<0>(span, p, codes); }
};

struct Planes3 {
  static constexpr int kCodeMax = 7;
  static constexpr size_t kSpanBytes = 192;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) {
    read_pairs<0>(span, p, codes);
    add_bits<2>(span + 128, p, codes);
  }
};

struct Planes5 {
  static constexpr int kCodeMax = 31;
  static constexpr size_t kSpanBytes = 320;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) {
    Nibbles::read(span, p, codes);
    add_bits<4>(span + 256, p, codes);
  }
};

struct Planes6 {
  static constexpr int kCodeMax = 63;
  static constexpr size_t kSpanBytes = 384;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) {
    Reg high[8];
    Nibbles::read(span, p, codes);
    read_pairs<4>(span + 256, p, high);
    _Pragma("GCC unroll 8") for (size_t v = 0; v < 8; ++v) codes[v] = hn::Or(codes[v], high[v]);
  }
};

struct Bytes {
  static constexpr int kCodeMax = 255;
  static constexpr size_t kSpanBytes = 512;
  static HWY_INLINE void read(const std::byte* span, size_t p, Reg* codes) {
    _Pragma("GCC unroll 8") for (size_t v = 0; v < 8; ++v) codes[v] = load_reg(span + v * 64 + p * kRegBytes);
  }
};

HWY_INLINE F16x load_e8m0(const std::byte* at) {
  F16x r;
  VERBUND_PARTS(p) {
    const hn::Rebind<uint8_t, WordTag> byte;
    const auto e = hn::PromoteTo(IntTag(), hn::LoadU(byte, reinterpret_cast<const uint8_t*>(at) + p * kLanes));
    // 2^(e-127) is the bits e << 23, but for e = 0 (a denormal) and e = 255 (no number).
    const auto bits = hn::Max(hn::ShiftLeft<23>(e), hn::Set(IntTag(), 0x00400000));
    const auto nan = hn::ShiftRight<8>(hn::Add(e, hn::Set(IntTag(), 1)));
    r.v[p] = hn::Mul(hn::BitCast(FloatTag(), hn::Add(bits, nan)), hn::Set(FloatTag(), 0.5f));
  }
  return r;
}

// The kind is the same for a whole piece: a branch that is always predicted costs less than four times the code.
HWY_INLINE F16x load_scales(const std::byte* area, ScaleType type, size_t group) {
  switch (type) {
    case ScaleType::f16: return load_f16(area + group * 32);
    case ScaleType::bf16: return load_bf16(area + group * 32);
    case ScaleType::f32: return load_f32(area + group * 64);
    case ScaleType::e8m0: break;
  }
  return load_e8m0(area + group * 16);
}

#endif  // VERBUND_SIMD
}  // namespace VERBUND_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#endif  // toggle
