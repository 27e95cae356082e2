// Products of --fast-dense with tiles (numerics.h point 1): 32 rows of activations times two blocks of sixteen outputs are four
// tiles of sums, so that each tile that is loaded is used twice. Written to a small set of tile operations, which
// product_pair_tiles.cpp has from AMX and a test from plain loops, so that this code is tested on machines without AMX.
//
// T: static methods load_rows<i>(halves, stride in bytes), load_weights<i>(pairs), multiply<i, j>() (rows i times weights j are added
// to sums of i, j), clear<i, j>(), store<i, j>(float [16][16]); i and j are 0 or 1. A tile of rows: [16][16 pairs]; of weights:
// [16 pairs][16 outputs][2].
#pragma once

#include <algorithm>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

namespace verbund::compute::native {

// Sums of one unit, or of all columns, of a tile.
struct TileSums {
  alignas(64) float at[kRowBlock][kBlockRows];
};

template <class T, bool kTwoRows, bool kTwoBlocks>
inline __attribute__((always_inline)) void sum_pair_tiles(const uint16_t* x, size_t stride, const std::byte* const* weights, Range columns,
                                                          TileSums (&sums)[2][2]) {
  T::template clear<0, 0>();
  if constexpr (kTwoBlocks) T::template clear<0, 1>();
  if constexpr (kTwoRows) T::template clear<1, 0>();
  if constexpr (kTwoRows && kTwoBlocks) T::template clear<1, 1>();
  for (size_t k = columns.begin; k < columns.end; k += kPairBlock) {
    T::template load_rows<0>(x + k, stride * sizeof(uint16_t));
    T::template load_weights<0>(weights[0] + k * kBlockRows * sizeof(uint16_t));
    T::template multiply<0, 0>();
    if constexpr (kTwoBlocks) {
      T::template load_weights<1>(weights[1] + k * kBlockRows * sizeof(uint16_t));
      T::template multiply<0, 1>();
    }
    if constexpr (kTwoRows) {
      T::template load_rows<1>(x + kRowBlock * stride + k, stride * sizeof(uint16_t));
      T::template multiply<1, 0>();
      if constexpr (kTwoBlocks) T::template multiply<1, 1>();
    }
  }
  T::template store<0, 0>(sums[0][0].at[0]);
  if constexpr (kTwoBlocks) T::template store<0, 1>(sums[0][1].at[0]);
  if constexpr (kTwoRows) T::template store<1, 0>(sums[1][0].at[0]);
  if constexpr (kTwoRows && kTwoBlocks) T::template store<1, 1>(sums[1][1].at[0]);
}

// put(sums of a tile, first row, rows that exist, block) takes each finished tile; with units it is called for each of them.
template <class T, bool kTwoRows, bool kTwoBlocks, class Put>
inline __attribute__((always_inline)) void multiply_pair_tiles(const Piece& w, const PairRows& x, size_t row, size_t end, size_t block,
                                                               size_t unit, Put&& put) {
  const uint16_t* halves = x.halves + row * x.stride;
  const std::byte* weights[2] = {w.block(block), kTwoBlocks ? w.block(block + 1) : nullptr};
  TileSums sums[2][2];
  for (size_t k = 0; k < w.cols; k += unit) {
    sum_pair_tiles<T, kTwoRows, kTwoBlocks>(halves, x.stride, weights, {k, std::min(k + unit, w.cols)}, sums);
    for (size_t i = 0; i <= size_t{kTwoRows}; ++i)
      for (size_t j = 0; j <= size_t{kTwoBlocks}; ++j) {
        const size_t first = row + i * kRowBlock;
        put(sums[i][j], first, std::min(kRowBlock, end - first), block + j);
      }
  }
}

template <class T, class Put>
inline __attribute__((always_inline)) void product_by_pair_tiles(const Piece& w, const PairRows& x, Range rows, Range blocks, size_t unit,
                                                                 Put&& put) {
  for (size_t block = blocks.begin; block < blocks.end; block += 2) {
    const bool two = block + 1 < blocks.end;
    for (size_t row = rows.begin; row < rows.end; row += 2 * kRowBlock) {
      const bool many = row + kRowBlock < rows.end;
      if (many && two)
        multiply_pair_tiles<T, true, true>(w, x, row, rows.end, block, unit, put);
      else if (many)
        multiply_pair_tiles<T, true, false>(w, x, row, rows.end, block, unit, put);
      else if (two)
        multiply_pair_tiles<T, false, true>(w, x, row, rows.end, block, unit, put);
      else
        multiply_pair_tiles<T, false, false>(w, x, row, rows.end, block, unit, put);
    }
  }
}

}  // namespace verbund::compute::native
