// Quantised products (numerics.h points 3 and 4) with AMX int8 tiles: sixteen rows of activations times a block of sixteen
// outputs. One tile product sums a group (or 64 columns of it) exactly in int32; scales and biases are applied to its
// sixteen vectors of sixteen outputs by the same fused steps in the same order as everywhere else, so the bits are the same.
//
// A block's codes are unpacked to bytes once for all row blocks of a call: 64 bytes of one k-quad are one row of a B tile.
#include <algorithm>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/product_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/codes-inl.h"
#include "compute/native/product_out-inl.h"
#include "compute/native/vec16-inl.h"

#if HWY_TARGET == HWY_AVX3_DL  // the only target whose CPUs can have AMX; isa.cpp checks that this one has
#include <immintrin.h>
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni,amx-tile,amx-int8")
namespace verbund::compute::native {
namespace HWY_NAMESPACE {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0, 1: sums. 4, 5: activations [16 rows][width columns]. 6, 7: codes [width / 4 quads][16 outputs][4].
HWY_INLINE void configure_tiles(size_t width) {
  TileConfig c;
  for (const int sums : {0, 1}) c.rows[sums] = 16, c.row_bytes[sums] = 64;
  for (const int activations : {4, 5}) c.rows[activations] = 16, c.row_bytes[activations] = static_cast<uint16_t>(width);
  for (const int codes : {6, 7}) c.rows[codes] = static_cast<uint8_t>(width / 4), c.row_bytes[codes] = 64;
  asm volatile("" : : "r"(&c) : "memory");  // g++ 12 believes that only 8 of the 64 bytes are read, and may drop the stores
  _tile_loadconfig(&c);
}

// Columns of one tile product: the largest of 64, 32 and 16 that cuts a group evenly.
HWY_INLINE size_t tile_width(size_t group) { return group % 64 == 0 ? 64 : group % 32 == 0 ? 32 : 16; }

struct GroupSums {
  alignas(64) int32_t at[kRowBlock][kBlockRows];
};

struct RowBlock {
  const int8_t* codes;  // first row
  size_t stride;
  const float* scales;
  const int32_t* offsets;
  const float* bias_factors;
  HWY_INLINE RowBlock(const QuantisedRows& x, size_t row)
      : codes(x.codes + row * x.cols),
        stride(x.cols),
        scales(x.scales + x.scale_at(row, 0)),
        offsets(x.offsets + x.group_at(row, 0)),
        bias_factors(x.bias_factors + x.group_at(row, 0)) {}
};

// Two sets of tiles take turns, so that one group's product, the storing of the one before and the scaling of the one before
// that overlap. The intrinsics want tile numbers as literals.
template <int kSet>
HWY_INLINE void multiply_columns(const RowBlock& x, const std::byte* codes, size_t k) {
  if constexpr (kSet == 0) {
    _tile_loadd(4, x.codes + k, x.stride);
    _tile_loadd(6, codes + k * kBlockRows, 64);
    _tile_dpbsud(0, 4, 6);
  } else {
    _tile_loadd(5, x.codes + k, x.stride);
    _tile_loadd(7, codes + k * kBlockRows, 64);
    _tile_dpbsud(1, 5, 7);
  }
}

template <int kSet>
HWY_INLINE void start_group(const RowBlock& x, const std::byte* codes, size_t group, size_t width, size_t g) {
  if constexpr (kSet == 0)
    _tile_zero(0);
  else
    _tile_zero(1);
  for (size_t k = g * group; k < (g + 1) * group; k += width) multiply_columns<kSet>(x, codes, k);
}

template <int kSet>
HWY_INLINE void store_sums(GroupSums& sums) {
  if constexpr (kSet == 0)
    _tile_stored(0, sums.at, 64);
  else
    _tile_stored(1, sums.at, 64);
}

// Point 3's fused steps of group g for sixteen rows.
template <bool kOffset>
HWY_INLINE void add_group(const Piece& w, const std::byte* block, const RowBlock& x, size_t g, const GroupSums& sums, F16x* acc) {
  const F16x scale = load_scales(block + w.scales_at, w.scale_type, g);
  const float* s = x.scales + (w.group == w.activation_block ? g : g / 2) * kRowBlock;  // groups of 16 share a block by twos
  _Pragma("GCC unroll 16") for (size_t r = 0; r < kRowBlock; ++r) {
    auto d = hn::Load(IntTag(), sums.at[r]);
    if constexpr (kOffset) d = hn::Add(d, hn::Set(IntTag(), x.offsets[g * kRowBlock + r]));
    acc[r] = fma(mul(scale, all(s[r])), F16x{{hn::ConvertTo(FloatTag(), d)}}, acc[r]);
  }
  if (!w.biased) return;
  const F16x bias = load_scales(block + w.biases_at, w.scale_type, g);
  const float* factors = x.bias_factors + g * kRowBlock;
  _Pragma("GCC unroll 16") for (size_t r = 0; r < kRowBlock; ++r) acc[r] = fma(bias, all(factors[r]), acc[r]);
}

HWY_INLINE void clear(F16x* acc) { _Pragma("GCC unroll 16") for (size_t r = 0; r < kRowBlock; ++r) acc[r] = zero16(); }

// Whether all values certainly lie in the fixed-point range: no square is larger than their sum, and a NaN stays one.
HWY_INLINE bool all_fit(const F16x* acc) {
  F16x sums[4] = {mul(acc[0], acc[0]), mul(acc[1], acc[1]), mul(acc[2], acc[2]), mul(acc[3], acc[3])};
  _Pragma("GCC unroll 12") for (size_t r = 4; r < kRowBlock; ++r) sums[r % 4] = fma(acc[r], acc[r], sums[r % 4]);
  const F16x squares = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
  return hn::AllTrue(FloatTag(), hn::Lt(squares.v[0], hn::Set(FloatTag(), kFixedMax * kFixedMax / 2)));
}

// Adds F(v) of a whole row of the block, every lane of which fits. The product by a power of two is exact, and the conversion
// rounds to nearest even: the same integer as in f64.
HWY_INLINE void add_fixed(const F16x& v, int64_t* to) {
  const __m512 scaled = _mm512_mul_ps(v.v[0].raw, _mm512_set1_ps(static_cast<float>(kFixedOne)));
  const __m512i low = _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)), high = _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1));
  _mm512_storeu_si512(to, _mm512_add_epi64(_mm512_loadu_si512(to), low));
  _mm512_storeu_si512(to + 8, _mm512_add_epi64(_mm512_loadu_si512(to + 8), high));
}

// The `rows` rows of a tile that exist, as one unit's sums ...
HWY_INLINE void put_sums(const F16x* acc, const ProductOut& out, size_t row, size_t rows, const TileOut& to) {
  int64_t* into = out.sums + row * out.stride + to.output;
  if (rows == kRowBlock && to.lanes == kBlockRows && all_fit(acc)) {  // straight from the registers
    _Pragma("GCC unroll 16") for (size_t r = 0; r < kRowBlock; ++r) add_fixed(acc[r], into + r * out.stride);
    return;
  }
  alignas(64) F16x done[kRowBlock];
  _Pragma("GCC unroll 16") for (size_t r = 0; r < kRowBlock; ++r) done[r] = acc[r];
  for (size_t r = 0; r < rows; ++r) {
    FixedSums sums;
    count_poisoned(sums.add_unit(done[r]), out, row + r, to);
    sums.flush(into + r * out.stride, to.lanes);
  }
}

// ... or as values.
HWY_INLINE void put_values(const F16x* acc, const ProductOut& out, size_t row, size_t rows, const TileOut& to) {
  alignas(64) F16x done[kRowBlock];
  _Pragma("GCC unroll 16") for (size_t r = 0; r < kRowBlock; ++r) done[r] = acc[r];
  for (size_t r = 0; r < rows; ++r) store_values(done[r], out, row + r, to);
}

// One block of rows against one block of outputs, from packed `block` and its unpacked `codes`.
template <bool kOffset, bool kSums>
struct Tile {
  const Piece& w;
  const std::byte *block, *codes;
  const RowBlock x;
  size_t groups, width;
  GroupSums* sums;  // two, not initialised

  // Scales group g, stores the sums of the next and starts the one after it. kSet is g % 2.
  template <int kSet>
  HWY_INLINE void step(size_t g, F16x* acc) {
    if (g + 1 < groups) store_sums<1 - kSet>(sums[1 - kSet]);
    if (g + 2 < groups) start_group<kSet>(x, codes, w.group, width, g + 2);
    add_group<kOffset>(w, block, x, g, sums[kSet], acc);
  }

  HWY_INLINE void run(size_t row, size_t rows, const ProductOut& out, const TileOut& to) {
    const size_t unit_groups = kSums ? out.unit / w.group : groups;
    F16x acc[kRowBlock];
    clear(acc);
    start_group<0>(x, codes, w.group, width, 0);
    store_sums<0>(sums[0]);
    if (groups > 1) start_group<1>(x, codes, w.group, width, 1);
    for (size_t g = 0, in_unit = 0; g < groups; ++g) {
      if (g % 2 == 0)
        step<0>(g, acc);
      else
        step<1>(g, acc);
      if (++in_unit < unit_groups && g + 1 < groups) continue;
      if constexpr (kSums)
        put_sums(acc, out, row, rows, to);
      else
        put_values(acc, out, row, rows, to);
      clear(acc);
      in_unit = 0;
    }
  }
};

template <bool kOffset, bool kSums>
HWY_NOINLINE void tile(const Piece& w, const std::byte* block, const std::byte* codes, const QuantisedRows& rows, size_t row, size_t count,
                       const ProductOut& out, const TileOut& to) {
  GroupSums sums[2];
  Tile<kOffset, kSums>{w, block, codes, RowBlock(rows, row), w.groups(), tile_width(w.group), sums}.run(row, count, out, to);
}

// Codes of one block as bytes, [k / 4][16 outputs][4].
template <class C>
HWY_INLINE void unpack_codes(const Piece& w, const std::byte* block, std::byte* to) {
  const size_t spans = w.cols / kSpan, share = w.block_bytes / spans;  // of all areas of the block
  for (size_t span = 0; span < spans; ++span) {
    prefetch_stream(block + span * share, share);
    Reg codes[8];
    C::read(block + span * C::kSpanBytes, 0, codes);
    _Pragma("GCC unroll 8") for (size_t v = 0; v < 8; ++v)
        hn::Store(codes[v], ByteTag(), reinterpret_cast<uint8_t*>(to) + span * kSpan * kBlockRows + v * 64);
  }
}

void unpack_block(const Piece& w, size_t block, std::byte* to) {
  switch (w.container) {
    case Container::plane2: return unpack_codes<Planes2>(w, w.block(block), to);
    case Container::plane3: return unpack_codes<Planes3>(w, w.block(block), to);
    case Container::nibble: return unpack_codes<Nibbles>(w, w.block(block), to);
    case Container::plane5: return unpack_codes<Planes5>(w, w.block(block), to);
    case Container::plane6: return unpack_codes<Planes6>(w, w.block(block), to);
    case Container::mxfp4: return unpack_codes<Mxfp4Nibbles>(w, w.block(block), to);
    case Container::byte8: return unpack_codes<Bytes>(w, w.block(block), to);
    case Container::dense: return;
  }
}

void product_tiles(const Piece& w, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out, std::byte* scratch) {
  configure_tiles(tile_width(w.group));
  const auto one = w.zero != 0 ? (out.sums ? tile<true, true> : tile<true, false>) : (out.sums ? tile<false, true> : tile<false, false>);
  for (size_t b = blocks.begin; b < blocks.end; ++b) {
    unpack_block(w, b, scratch);
    for (size_t row = rows.begin; row < rows.end; row += kRowBlock)
      one(w, w.block(b), scratch, x, row, std::min(kRowBlock, rows.end - row), out, tile_out(w, b));
  }
  _tile_release();
}

}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include "compute/native/isa.h"

namespace verbund::compute::native {

void fill_product_tiles(Kernels& kernels, Isa isa) {
#if HWY_ARCH_X86
  if (isa == Isa::amx) kernels.product_tiles = N_AVX3_DL::product_tiles;
#endif
}

}  // namespace verbund::compute::native
#endif
