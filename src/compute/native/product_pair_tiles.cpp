// Products of --fast-dense with AMX bf16 tiles: pair_tiles.h on the processor's tiles, and the check that these add in the order
// that numerics.h wants.
#include <algorithm>
#include <bit>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/product_pair_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/product_out-inl.h"
#include "compute/native/vec16-inl.h"

#if HWY_TARGET == HWY_AVX3_DL  // the only target whose CPUs can have AMX; isa.cpp checks that this one has
#include <immintrin.h>
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",amx-tile,amx-bf16")
#include "compute/native/pair_tiles.h"  // here, so that its functions may use tiles too
namespace verbund::compute::native {
namespace HWY_NAMESPACE {

struct alignas(64) PairTileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The intrinsics want tile numbers as literals. Sums of rows i and weights j: tile 2 i + j; rows i: 4 + i; weights j: 6 + j.
struct AmxTiles {
  static HWY_INLINE void configure() {
    PairTileConfig c;
    for (int tile = 0; tile < 8; ++tile) c.rows[tile] = 16, c.row_bytes[tile] = 64;
    asm volatile("" : : "r"(&c) : "memory");  // g++ 12 believes that only 8 of the 64 bytes are read, and may drop the stores
    _tile_loadconfig(&c);
  }
  static HWY_INLINE void release() { _tile_release(); }

  template <int i>
  static HWY_INLINE void load_rows(const uint16_t* halves, size_t stride) {
    if constexpr (i == 0)
      _tile_loadd(4, halves, stride);
    else
      _tile_loadd(5, halves, stride);
  }
  template <int j>
  static HWY_INLINE void load_weights(const std::byte* pairs) {
    if constexpr (j == 0)
      _tile_loadd(6, pairs, 64);
    else
      _tile_loadd(7, pairs, 64);
  }
  template <int i, int j>
  static HWY_INLINE void multiply() {
    if constexpr (i == 0 && j == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (i == 0 && j == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (i == 1 && j == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (i == 1 && j == 1) _tile_dpbf16ps(3, 5, 7);
  }
  template <int i, int j>
  static HWY_INLINE void clear() {
    if constexpr (i == 0 && j == 0) _tile_zero(0);
    if constexpr (i == 0 && j == 1) _tile_zero(1);
    if constexpr (i == 1 && j == 0) _tile_zero(2);
    if constexpr (i == 1 && j == 1) _tile_zero(3);
  }
  template <int i, int j>
  static HWY_INLINE void store(float* to) {
    if constexpr (i == 0 && j == 0) _tile_stored(0, to, 64);
    if constexpr (i == 0 && j == 1) _tile_stored(1, to, 64);
    if constexpr (i == 1 && j == 0) _tile_stored(2, to, 64);
    if constexpr (i == 1 && j == 1) _tile_stored(3, to, 64);
  }
};

void product_pair_tiles(const Piece& w, const PairRows& x, Range rows, Range blocks, const ProductOut& out) {
  AmxTiles::configure();
  product_by_pair_tiles<AmxTiles>(w, x, rows, blocks, out.sums ? out.unit : w.cols,
                                  [&](const TileSums& sums, size_t row, size_t count, size_t block) {
                                    const TileOut to = tile_out(w, block);
                                    for (size_t r = 0; r < count; ++r) {
                                      const F16x v = load(sums.at[r]);
                                      if (!out.sums) {
                                        store_values(v, out, row + r, to);
                                        continue;
                                      }
                                      FixedSums fixed;
                                      count_poisoned(fixed.add_unit(v), out, row + r, to);
                                      fixed.flush(out.sums + (row + r) * out.stride + to.output, to.lanes);
                                    }
                                  });
  AmxTiles::release();
}

// One tile product of numbers whose sum depends on the order of its additions, added to sums that are not zero.
bool pair_tiles_add_in_order() {
  alignas(64) uint16_t x[kRowBlock][kPairBlock], w[kPairBlock / 2][kBlockRows][2];
  uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525u + 1013904223u;
    const float v = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-23f;  // in (-1, 1)
    return to_half_of_pair(v * std::bit_cast<float>((100 + (state >> 3) % 50) << 23));
  };
  for (auto& row : x)
    for (uint16_t& v : row) v = next();
  for (auto& pair : w)
    for (auto& both : pair)
      for (uint16_t& v : both) v = next();
  TileSums got;
  AmxTiles::configure();
  AmxTiles::clear<0, 0>();
  AmxTiles::load_rows<0>(x[0], sizeof x[0]);
  AmxTiles::load_weights<0>(reinterpret_cast<const std::byte*>(w));
  AmxTiles::multiply<0, 0>();
  AmxTiles::multiply<0, 0>();
  AmxTiles::store<0, 0>(got.at[0]);
  AmxTiles::release();
  for (size_t r = 0; r < kRowBlock; ++r)
    for (size_t l = 0; l < kBlockRows; ++l) {
      float chains[2] = {};
      for (size_t k = 0; k < kPairBlock; ++k)
        chains[k % 2] = __builtin_fmaf(from_half_of_pair(x[r][k]), from_half_of_pair(w[k / 2][l][k % 2]), chains[k % 2]);
      const float sum = chains[0] + chains[1];
      if (std::bit_cast<uint32_t>(got.at[r][l]) != std::bit_cast<uint32_t>(sum + sum)) return false;
    }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include "compute/native/isa.h"

namespace verbund::compute::native {

void fill_product_pair_tiles(Kernels& kernels, Isa isa) {
#if HWY_ARCH_X86
  if (isa == Isa::amx && has_bf16_tiles() && N_AVX3_DL::pair_tiles_add_in_order())
    kernels.product_pair_tiles = N_AVX3_DL::product_pair_tiles;
#endif
}

}  // namespace verbund::compute::native
#endif
