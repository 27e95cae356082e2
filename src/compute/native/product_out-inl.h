// Where both products put a tile's results. Included once per target.
#if defined(VERBUND_PRODUCT_OUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERBUND_PRODUCT_OUT_INL_H_
#undef VERBUND_PRODUCT_OUT_INL_H_
#else
#define VERBUND_PRODUCT_OUT_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>

#include "compute/native/kernels.h"
#include "compute/native/vec16-inl.h"
#include "compute/numerics.h"

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace VERBUND_NAMESPACE {
#if VERBUND_SIMD

// Fixed-point sums of sixteen outputs while a kernel walks through the units of a row.
class FixedSums {
 public:
  // Adds F(v); lanes outside the range add 0 and return as a set of bits.
  HWY_INLINE uint32_t add_unit(const F16x& v) {
    bool inside = true;
    VERBUND_PARTS(p) inside = inside && hn::AllTrue(FloatTag(), hn::Le(hn::Abs(v.v[p]), hn::Set(FloatTag(), kFixedMax)));
    if (HWY_LIKELY(inside)) {
      add_all(v);
      return 0;
    }
    return add_some(v);
  }
  HWY_INLINE void flush(int64_t* to, size_t lanes) const {
    for (size_t i = 0; i < lanes; ++i) to[i] += sums_[i];
  }

 private:
  HWY_INLINE void add_all(const F16x& v) {
    alignas(64) float t[16];
    store(v, t);
    for (size_t i = 0; i < 16; ++i)
      sums_[i] +=
          std::bit_cast<int64_t>(__builtin_fma(static_cast<double>(t[i]), kFixedOne, kFixedMagic)) - std::bit_cast<int64_t>(kFixedMagic);
  }
  HWY_NOINLINE uint32_t add_some(const F16x& v) {
    alignas(64) float t[16];
    store(v, t);
    uint32_t outside = 0;
    for (size_t i = 0; i < 16; ++i) {
      if (__builtin_fabsf(t[i]) <= kFixedMax) continue;
      t[i] = 0;
      outside |= 1u << i;
    }
    add_all(load(t));
    return outside;
  }

  alignas(64) int64_t sums_[16] = {};
};

// The lanes of a block that are real outputs, and where they go.
struct TileOut {
  size_t output;  // first output column
  size_t lanes;   // 1..16
};

HWY_INLINE TileOut tile_out(const PieceShape& w, size_t block) {
  return {w.first_row + block * kBlockRows, std::min(kBlockRows, w.rows - block * kBlockRows)};
}

HWY_INLINE void store_values(const F16x& v, const ProductOut& out, size_t row, const TileOut& tile) {
  float* to = out.values + row * out.stride + tile.output - out.origin;
  if (tile.lanes == 16) {
    store(out.bias ? add(v, load(out.bias + tile.output)) : v, to);
    return;
  }
  alignas(64) float t[16];
  store(v, t);
  for (size_t i = 0; i < tile.lanes; ++i) to[i] = out.bias ? t[i] + out.bias[tile.output + i] : t[i];
}

HWY_INLINE void count_poisoned(uint32_t outside, const ProductOut& out, size_t row, const TileOut& tile) {
  if (HWY_LIKELY(outside == 0)) return;
  outside &= (1u << tile.lanes) - 1;  // filling rows of the last block do not count
  __atomic_fetch_add(&out.poisoned[row], std::popcount(outside), __ATOMIC_RELAXED);
}

#endif  // VERBUND_SIMD
}  // namespace VERBUND_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#endif  // toggle
