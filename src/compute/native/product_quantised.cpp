// Quantised products (numerics.h points 3 and 4): a tile is up to eight rows of activations times one block of sixteen
// outputs. Codes are unpacked once for all rows of the tile, sums stay in registers over the whole row, and the block's
// few KiB stay in L1 while the next rows pass.
#include <algorithm>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/product_quantised.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/codes-inl.h"
#include "compute/native/dot-inl.h"
#include "compute/native/product_out-inl.h"
#include "compute/native/vec16-inl.h"

VERBUND_BEFORE_DOTS();
namespace verbund::compute::native {
namespace VERBUND_NAMESPACE {
#if VERBUND_SIMD

// 32 AVX-512 (and NEON) registers hold eight rows' sums and a span's codes; AVX2 has sixteen half as wide.
constexpr size_t kTileRows = HWY_TARGET == HWY_AVX2 ? 4 : 8;

HWY_INLINE F16x to_floats(const IntReg* d) {
  F16x r;
  VERBUND_PARTS(p) r.v[p] = hn::ConvertTo(FloatTag(), d[p]);
  return r;
}

// The rows of one tile; they lie in one block of sixteen.
template <size_t R>
struct TileRows {
  CodeRows codes;
  const float* scales;  // [activation block][16 rows], from this tile's first row
  const int32_t* offsets;
  const float* bias_factors;

  HWY_INLINE TileRows(const QuantisedRows& x, size_t row) {
    codes = {x.codes + row * x.cols, x.cols};
    scales = x.scales + x.scale_at(row, 0);
    offsets = x.offsets + x.group_at(row, 0);
    bias_factors = x.bias_factors + x.group_at(row, 0);
  }
};

// Point 3's two fused steps of group g for every row.
template <size_t R>
VERBUND_TILE_PART void add_group(const Piece& w, const std::byte* block, const TileRows<R>& x, size_t g, size_t b,
                                 const IntReg (*d)[kParts], F16x* acc) {
  const F16x scale = load_scales(block + w.scales_at, w.scale_type, g);
  _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) acc[r] =
      fma(mul(scale, all(x.scales[b * kRowBlock + r])), to_floats(d[r]), acc[r]);
  if (!w.biased) return;
  const F16x bias = load_scales(block + w.biases_at, w.scale_type, g);
  _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) acc[r] = fma(bias, all(x.bias_factors[g * kRowBlock + r]), acc[r]);
}

template <class C, size_t R>
HWY_INLINE void add_span(const std::byte* block, const TileRows<R>& x, size_t span, size_t p, IntReg (*d)[kParts]) {
  Reg codes[8];
  C::read(block + span * C::kSpanBytes, p, codes);
  dot_rows<C::kCodeMax, 8, R>(codes, x.codes, span * kSpan, p, d);
}

template <class C, size_t R>
HWY_INLINE void whole_groups(const Piece& w, const std::byte* block, const TileRows<R>& x, Range groups, F16x* acc) {
  const size_t spans = w.group / kSpan, group_bytes = w.block_bytes / w.groups();
  for (size_t g = groups.begin; g < groups.end; ++g) {
    prefetch_stream(block + g * group_bytes, group_bytes);
    IntReg d[R][kParts];
    _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) VERBUND_PARTS(p) d[r][p] = hn::Set(IntTag(), x.offsets[g * kRowBlock + r]);
    if constexpr (kParts == 4) {  // sums of four parts would not fit into NEON's registers
      VERBUND_PARTS(p) for (size_t span = g * spans; span < (g + 1) * spans; ++span) add_span<C, R>(block, x, span, p, d);
    } else {
      for (size_t span = g * spans; span < (g + 1) * spans; ++span) VERBUND_PARTS(p) add_span<C, R>(block, x, span, p, d);
    }
    add_group<R>(w, block, x, g, g, d, acc);
  }
}

// Groups of 16 columns: two to a span and to an activation block.
template <class C, size_t R>
HWY_INLINE void half_groups(const Piece& w, const std::byte* block, const TileRows<R>& x, Range groups, F16x* acc) {
  const size_t pair_bytes = 2 * w.block_bytes / w.groups();
  for (size_t g = groups.begin; g < groups.end; g += 2) {
    prefetch_stream(block + g / 2 * pair_bytes, pair_bytes);
    IntReg d[2][R][kParts];
    VERBUND_PARTS(p) {
      Reg codes[8];
      C::read(block + g / 2 * C::kSpanBytes, p, codes);
      _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) {
        d[0][r][p] = hn::Set(IntTag(), x.offsets[g * kRowBlock + r]);
        d[1][r][p] = hn::Set(IntTag(), x.offsets[(g + 1) * kRowBlock + r]);
      }
      dot_rows<C::kCodeMax, 4, R>(codes, x.codes, g * 16, p, d[0]);
      dot_rows<C::kCodeMax, 4, R>(codes + 4, x.codes, (g + 1) * 16, p, d[1]);
    }
    add_group<R>(w, block, x, g, g / 2, d[0], acc);
    add_group<R>(w, block, x, g + 1, g / 2, d[1], acc);
  }
}

template <class C, size_t R, bool kHalf>
VERBUND_TILE_PART void sum_groups(const Piece& w, const std::byte* block, const TileRows<R>& x, Range groups, F16x* acc) {
  _Pragma("GCC unroll 8") for (size_t r = 0; r < R; ++r) acc[r] = zero16();
  if constexpr (kHalf)
    half_groups<C, R>(w, block, x, groups, acc);
  else
    whole_groups<C, R>(w, block, x, groups, acc);
}

template <class C, size_t R, bool kHalf>
HWY_NOINLINE void tile(const Piece& w, const QuantisedRows& x, size_t row, size_t block, const ProductOut& out) {
  const TileRows<R> rows(x, row);
  const std::byte* data = w.block(block);
  const TileOut to = tile_out(w, block);
  F16x acc[R];
  if (out.values) {
    sum_groups<C, R, kHalf>(w, data, rows, {0, w.groups()}, acc);
    for (size_t r = 0; r < R; ++r) store_values(acc[r], out, row + r, to);
    return;
  }
  FixedSums sums[R];
  const size_t unit_groups = out.unit / w.group;
  for (size_t g = 0; g < w.groups(); g += unit_groups) {
    sum_groups<C, R, kHalf>(w, data, rows, {g, std::min(g + unit_groups, w.groups())}, acc);
    for (size_t r = 0; r < R; ++r) count_poisoned(sums[r].add_unit(acc[r]), out, row + r, to);
  }
  for (size_t r = 0; r < R; ++r) sums[r].flush(out.sums + (row + r) * out.stride + to.output, to.lanes);
}

template <class C, bool kHalf>
HWY_INLINE void rows_of_block(const Piece& w, const QuantisedRows& x, Range rows, size_t block, const ProductOut& out) {
  size_t row = rows.begin;
  for (; row + kTileRows <= rows.end; row += kTileRows) tile<C, kTileRows, kHalf>(w, x, row, block, out);
  if constexpr (kTileRows > 4)
    for (; row + 4 <= rows.end; row += 4) tile<C, 4, kHalf>(w, x, row, block, out);
  for (; row + 2 <= rows.end; row += 2) tile<C, 2, kHalf>(w, x, row, block, out);
  for (; row < rows.end; ++row) tile<C, 1, kHalf>(w, x, row, block, out);
}

template <class C>
HWY_INLINE void product_with(const Piece& w, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out) {
  for (size_t block = blocks.begin; block < blocks.end; ++block) {
    if (w.group == 16)
      rows_of_block<C, true>(w, x, rows, block, out);
    else
      rows_of_block<C, false>(w, x, rows, block, out);
  }
}

void product_quantised(const Piece& w, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out) {
  switch (w.container) {
    case Container::plane2: return product_with<Planes2>(w, x, rows, blocks, out);
    case Container::plane3: return product_with<Planes3>(w, x, rows, blocks, out);
    case Container::nibble: return product_with<Nibbles>(w, x, rows, blocks, out);
    case Container::plane5: return product_with<Planes5>(w, x, rows, blocks, out);
    case Container::plane6: return product_with<Planes6>(w, x, rows, blocks, out);
    case Container::mxfp4: return product_with<Mxfp4Nibbles>(w, x, rows, blocks, out);
    case Container::byte8: return product_with<Bytes>(w, x, rows, blocks, out);
    case Container::dense: return;
  }
}

#endif  // VERBUND_SIMD
}  // namespace VERBUND_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && !defined(VERBUND_NEON_FORM)
#include "compute/native/dispatch.h"

namespace verbund::compute::native {

void fill_products_quantised(Kernels& kernels, Isa isa) { kernels.product_quantised = VERBUND_PICK(isa, product_quantised); }

}  // namespace verbund::compute::native
#endif
