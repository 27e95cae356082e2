// Products of --fast-dense (numerics.h point 1): blocks of sixteen outputs whose weights are pairs of bf16, a lane an output.
// A vector of 64 bytes is one pair of all lanes; its halves are widened by a shift and a mask.
#include <algorithm>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/product_pairs.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/product_out-inl.h"
#include "compute/native/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace HWY_NAMESPACE {
#if VERBUND_SIMD

constexpr size_t kPairBytes = kBlockRows * 4;                    // of one pair of columns
constexpr size_t kPairBlockBytes = kPairBlock / 2 * kPairBytes;  // asked for at once, which reads half as fast again as line by line

// Rows of a tile: two chains and a sum for each, 24 registers of 32 with AVX-512.
constexpr size_t kPairTileRows = kParts == 1 ? 8 : kParts == 2 ? 2 : 1;

struct Pair {
  F16x even, odd;
};
HWY_INLINE Pair load_pair(const std::byte* at) {
  Pair pair;
  VERBUND_PARTS(p) {
    const auto words = hn::LoadU(WordTag(), reinterpret_cast<const uint32_t*>(at) + p * kLanes);
    pair.even.v[p] = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
    pair.odd.v[p] = hn::BitCast(FloatTag(), hn::And(words, hn::Set(WordTag(), 0xffff0000u)));
  }
  return pair;
}

// Columns of R rows and one block.
template <size_t R>
HWY_INLINE void sum_pairs(const std::byte* weights, const float* x, size_t stride, Range columns, F16x* result) {
  _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) result[r] = zero16();
  for (size_t begin = columns.begin; begin < columns.end; begin += kPairBlock) {
    const std::byte* at = weights + begin / 2 * kPairBytes;
    prefetch_stream(at, kPairBlockBytes);
    F16x even[R], odd[R];
    _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) even[r] = odd[r] = zero16();
    _Pragma("GCC unroll 16") for (size_t k = begin; k < begin + kPairBlock; k += 2, at += kPairBytes) {
      const Pair w = load_pair(at);
      _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) {
        even[r] = fma(all(x[r * stride + k]), w.even, even[r]);
        odd[r] = fma(all(x[r * stride + k + 1]), w.odd, odd[r]);
      }
    }
    _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) result[r] = add(result[r], add(even[r], odd[r]));
  }
}

template <size_t R>
HWY_NOINLINE void pairs_tile(const Piece& w, const PairRows& rows, size_t row, size_t block, const ProductOut& out) {
  const float* x = rows.values + row * rows.stride;
  const TileOut to = tile_out(w, block);
  F16x acc[R];
  if (out.values) {
    sum_pairs<R>(w.block(block), x, rows.stride, {0, w.cols}, acc);
    for (size_t r = 0; r < R; ++r) store_values(acc[r], out, row + r, to);
    return;
  }
  FixedSums sums[R];
  for (size_t k = 0; k < w.cols; k += out.unit) {
    sum_pairs<R>(w.block(block), x, rows.stride, {k, std::min(k + out.unit, w.cols)}, acc);
    for (size_t r = 0; r < R; ++r) count_poisoned(sums[r].add_unit(acc[r]), out, row + r, to);
  }
  for (size_t r = 0; r < R; ++r) sums[r].flush(out.sums + (row + r) * out.stride + to.output, to.lanes);
}

void product_pairs(const Piece& w, const PairRows& x, Range rows, Range blocks, const ProductOut& out) {
  for (size_t block = blocks.begin; block < blocks.end; ++block) {
    size_t row = rows.begin;
    for (; row + kPairTileRows <= rows.end; row += kPairTileRows) pairs_tile<kPairTileRows>(w, x, row, block, out);
    if constexpr (kPairTileRows > 4)
      for (; row + 4 <= rows.end; row += 4) pairs_tile<4>(w, x, row, block, out);
    if constexpr (kPairTileRows > 2)
      for (; row + 2 <= rows.end; row += 2) pairs_tile<2>(w, x, row, block, out);
    for (; row < rows.end; ++row) pairs_tile<1>(w, x, row, block, out);
  }
}

void round_row(const float* x, const PairRows& into, size_t row) {
  float* values = into.values + row * into.stride;
  for (size_t k = 0; k < into.cols; ++k) values[k] = from_half_of_pair(to_half_of_pair(x[k]));
  std::fill(values + into.cols, values + into.stride, 0.0f);
  if (!into.halves) return;
  uint16_t* halves = into.halves + row * into.stride;
  for (size_t k = 0; k < into.stride; ++k) halves[k] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[k]) >> 16);
}

#endif  // VERBUND_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "compute/native/dispatch.h"

namespace verbund::compute::native {

void fill_products_pairs(Kernels& kernels, Isa isa) {
  kernels.product_pairs = VERBUND_PICK(isa, product_pairs);
  kernels.round_row = VERBUND_PICK(isa, round_row);
}

}  // namespace verbund::compute::native
#endif
