// Dense products (numerics.h points 1 and 4): rows of activations times blocks of sixteen outputs, a lane an output.
// With one row all four chains run at once to hide the latency of fma. With more rows each chain is a pass of its own over
// some columns (which stay in L1), so that the sums fit into registers; two blocks at a time where there are enough of these,
// because each fma wants an activation from memory and a core can load no faster than it multiplies.
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

constexpr size_t kTileRows = kParts == 1 ? 8 : 4;
constexpr size_t kTileBlocks = kParts == 1 ? 2 : 1;
constexpr size_t kTileColumns = 192;  // of one pass; 18 KiB of weights and activations in the largest tile

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

// result: [R][B]; weights of block b begin at weights[b].
template <class W, size_t R, size_t B>
HWY_INLINE void sum_tile(const std::byte* const* weights, const float* x, size_t stride, size_t n, F16x* result) {
  alignas(64) float chains[R * B][4][16];
  for (size_t begin = 0; begin < n; begin += kTileColumns) {
    const size_t end = std::min(begin + kTileColumns, n);
    for (size_t c = 0; c < 4; ++c) {
      F16x acc[R * B];
      _Pragma("GCC unroll 16") for (size_t i = 0; i < R * B; ++i) acc[i] = begin == 0 ? zero16() : load(chains[i][c]);
      for (size_t k = begin + c; k < end; k += 4) {
        F16x w[B];
        _Pragma("GCC unroll 2") for (size_t b = 0; b < B; ++b) {
          if (c == 0) prefetch_stream(weights[b] + k * W::kBytes, 4 * W::kBytes);
          w[b] = W::read(weights[b] + k * W::kBytes);
        }
        _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) {
          const F16x a = all(x[r * stride + k]);
          _Pragma("GCC unroll 2") for (size_t b = 0; b < B; ++b) acc[r * B + b] = fma(a, w[b], acc[r * B + b]);
        }
      }
      _Pragma("GCC unroll 16") for (size_t i = 0; i < R * B; ++i) store(acc[i], chains[i][c]);
    }
  }
  for (size_t i = 0; i < R * B; ++i)
    result[i] = add(add(load(chains[i][0]), load(chains[i][2])), add(load(chains[i][1]), load(chains[i][3])));
}

// Columns k..k+n of R rows and B blocks.
template <class W, size_t R, size_t B>
HWY_INLINE void sum_columns(const Piece& w, size_t block, const float* x, size_t stride, size_t k, size_t n, F16x* result) {
  const std::byte* weights[B];
  for (size_t b = 0; b < B; ++b) weights[b] = w.block(block + b) + k * W::kBytes;
  if constexpr (R * B == 1)
    result[0] = sum_one<W>(weights[0], x + k, n);
  else
    sum_tile<W, R, B>(weights, x + k, stride, n, result);
}

template <class W, size_t R, size_t B>
HWY_NOINLINE void tile(const Piece& w, const float* x, size_t stride, size_t row, size_t block, const ProductOut& out) {
  x += row * stride;
  TileOut to[B];
  for (size_t b = 0; b < B; ++b) to[b] = tile_out(w, block + b);
  F16x acc[R * B];
  if (out.values) {
    sum_columns<W, R, B>(w, block, x, stride, 0, w.cols, acc);
    for (size_t i = 0; i < R * B; ++i) store_values(acc[i], out, row + i / B, to[i % B]);
    return;
  }
  FixedSums sums[R * B];
  for (size_t k = 0; k < w.cols; k += out.unit) {
    sum_columns<W, R, B>(w, block, x, stride, k, std::min(out.unit, w.cols - k), acc);
    for (size_t i = 0; i < R * B; ++i) count_poisoned(sums[i].add_unit(acc[i]), out, row + i / B, to[i % B]);
  }
  for (size_t i = 0; i < R * B; ++i) sums[i].flush(out.sums + (row + i / B) * out.stride + to[i % B].output, to[i % B].lanes);
}

template <class W, size_t B>
HWY_INLINE void tiles(const Piece& w, const float* x, size_t stride, Range rows, size_t block, const ProductOut& out) {
  size_t row = rows.begin;
  for (; row + kTileRows <= rows.end; row += kTileRows) tile<W, kTileRows, B>(w, x, stride, row, block, out);
  if constexpr (kTileRows > 4)
    for (; row + 4 <= rows.end; row += 4) tile<W, 4, B>(w, x, stride, row, block, out);
  for (; row + 2 <= rows.end; row += 2) tile<W, 2, B>(w, x, stride, row, block, out);
  for (; row < rows.end; ++row)
    for (size_t b = 0; b < B; ++b) tile<W, 1, 1>(w, x, stride, row, block + b, out);
}

template <class W>
HWY_INLINE void product_with(const Piece& w, const float* x, size_t stride, Range rows, Range blocks, const ProductOut& out) {
  size_t block = blocks.begin;
  if constexpr (kTileBlocks == 2)
    for (; block + 2 <= blocks.end; block += 2) tiles<W, 2>(w, x, stride, rows, block, out);
  for (; block < blocks.end; ++block) tiles<W, 1>(w, x, stride, rows, block, out);
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
