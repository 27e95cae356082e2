// Dense products (numerics.h points 1 and 4): rows of activations times one block of sixteen outputs, a lane an output.
// With one row all four chains run at once to hide the latency of fma; with more rows each chain is a pass of its own
// over the block (which stays in L1), so that the rows' sums fit into registers.
#include <algorithm>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/product_dense.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/product_out-inl.h"
#include "compute/native/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace HWY_NAMESPACE {
#if VERBUND_SIMD

constexpr size_t kTileRows = HWY_TARGET == HWY_AVX2 ? 4 : 8;

struct F32Weights {
  static constexpr size_t kBytes = 64;  // of sixteen
  static HWY_INLINE F16x read(const std::byte* at) { return load_f32(at); }
};
struct F16Weights {
  static constexpr size_t kBytes = 32;
  static HWY_INLINE F16x read(const std::byte* at) { return load_f16(at); }
};
struct Bf16Weights {
  static constexpr size_t kBytes = 32;
  static HWY_INLINE F16x read(const std::byte* at) { return load_bf16(at); }
};

HWY_INLINE F16x fold4(const F16x* a) { return add(add(a[0], a[2]), add(a[1], a[3])); }

template <class W>
HWY_INLINE F16x sum_one(const std::byte* weights, const float* x, size_t n) {
  F16x a[4] = {zero16(), zero16(), zero16(), zero16()};
  size_t k = 0;
  for (; k + 4 <= n; k += 4) {
    prefetch_stream(weights + k * W::kBytes, 4 * W::kBytes);
    _Pragma("GCC unroll 4") for (size_t c = 0; c < 4; ++c) a[c] = fma(all(x[k + c]), W::read(weights + (k + c) * W::kBytes), a[c]);
  }
  for (size_t c = 0; k + c < n; ++c) a[c] = fma(all(x[k + c]), W::read(weights + (k + c) * W::kBytes), a[c]);
  return fold4(a);
}

template <class W, size_t R>
HWY_INLINE void sum_rows(const std::byte* weights, const float* x, size_t stride, size_t n, F16x* result) {
  F16x chains[4][R];
  for (size_t c = 0; c < 4; ++c) {
    F16x acc[R];
    _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) acc[r] = zero16();
    for (size_t k = c; k < n; k += 4) {
      if (c == 0) prefetch_stream(weights + k * W::kBytes, 4 * W::kBytes);
      const F16x w = W::read(weights + k * W::kBytes);
      _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) acc[r] = fma(all(x[r * stride + k]), w, acc[r]);
    }
    for (size_t r = 0; r < R; ++r) chains[c][r] = acc[r];
  }
  for (size_t r = 0; r < R; ++r) result[r] = add(add(chains[0][r], chains[2][r]), add(chains[1][r], chains[3][r]));
}

template <class W, size_t R>
HWY_INLINE void sum_columns(const std::byte* weights, const float* x, size_t stride, size_t n, F16x* result) {
  if constexpr (R == 1)
    result[0] = sum_one<W>(weights, x, n);
  else
    sum_rows<W, R>(weights, x, stride, n, result);
}

template <class W, size_t R>
HWY_NOINLINE void tile(const Piece& w, const float* x, size_t stride, size_t row, size_t block, const ProductOut& out) {
  const std::byte* weights = w.block(block);
  const TileOut to = tile_out(w, block);
  x += row * stride;
  F16x acc[R];
  if (out.values) {
    sum_columns<W, R>(weights, x, stride, w.cols, acc);
    for (size_t r = 0; r < R; ++r) store_values(acc[r], out, row + r, to);
    return;
  }
  FixedSums sums[R];
  for (size_t k = 0; k < w.cols; k += out.unit) {
    sum_columns<W, R>(weights + k * W::kBytes, x + k, stride, std::min(out.unit, w.cols - k), acc);
    for (size_t r = 0; r < R; ++r) count_poisoned(sums[r].add_unit(acc[r]), out, row + r, to);
  }
  for (size_t r = 0; r < R; ++r) sums[r].flush(out.sums + (row + r) * out.stride + to.output, to.lanes);
}

template <class W>
HWY_INLINE void product_with(const Piece& w, const float* x, size_t stride, Range rows, Range blocks, const ProductOut& out) {
  for (size_t block = blocks.begin; block < blocks.end; ++block) {
    size_t row = rows.begin;
    for (; row + kTileRows <= rows.end; row += kTileRows) tile<W, kTileRows>(w, x, stride, row, block, out);
    if constexpr (kTileRows > 4)
      for (; row + 4 <= rows.end; row += 4) tile<W, 4>(w, x, stride, row, block, out);
    for (; row + 2 <= rows.end; row += 2) tile<W, 2>(w, x, stride, row, block, out);
    for (; row < rows.end; ++row) tile<W, 1>(w, x, stride, row, block, out);
  }
}

void product_dense(const Piece& w, const float* x, size_t stride, Range rows, Range blocks, const ProductOut& out) {
  switch (w.format.dtype) {
    case formats::DType::f32: return product_with<F32Weights>(w, x, stride, rows, blocks, out);
    case formats::DType::f16: return product_with<F16Weights>(w, x, stride, rows, blocks, out);
    case formats::DType::bf16: return product_with<Bf16Weights>(w, x, stride, rows, blocks, out);
  }
}

#endif  // VERBUND_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "compute/native/dispatch.h"

namespace verbund::compute::native {

void fill_products_dense(Kernels& kernels, Isa isa) { kernels.product_dense = VERBUND_PICK(isa, product_dense); }

}  // namespace verbund::compute::native
#endif
