// The functions that exist once per instruction set, as one table of pointers.
//
// A backend picks its table when it is made (isa.h), so backends with different instruction sets live side by side in
// one process, which the parity tests use. Every table computes the same bits (numerics.h). Kernels allocate nothing,
// never throw and only touch what they are given; the backend cuts the work into ranges for its threads.
//
// Rows of f32 matrices are 64-byte aligned, `stride` floats apart (a multiple of 16), and readable up to the stride.
// Kernels may write anything into the padding except where noted.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "compute/backend.h"
#include "compute/native/packed.h"

namespace verbund::compute::native {

constexpr size_t kRowBlock = 16;  // rows whose scales lie side by side: one AMX tile

// Activations as numerics.h point 2 has them, for one combination of block, group and zero. All areas reach to a multiple of
// kRowBlock rows; the filling rows are zeros.
struct QuantisedRows {
  int8_t* codes;        // [rows][cols]
  float* scales;        // s, at scale_at(row, activation block)
  int32_t* offsets;     // -zero * sum of codes, at group_at(row, group)
  float* bias_factors;  // s * f32(sum of codes), at group_at(row, group)
  size_t cols, activation_block, group;
  int zero;

  size_t scale_at(size_t row, size_t block) const {
    return (row / kRowBlock * (cols / activation_block) + block) * kRowBlock + row % kRowBlock;
  }
  size_t group_at(size_t row, size_t g) const { return (row / kRowBlock * (cols / group) + g) * kRowBlock + row % kRowBlock; }
};

// Activations of --fast-dense: B(x) of numerics.h point 1. Rows reach to a multiple of kPairBlock columns with zeros.
struct PairRows {
  float* values;     // [rows][stride]
  uint16_t* halves;  // [rows][stride] as bf16, to a multiple of kRowBlock rows; null where no kernel reads them
  size_t stride, cols;
};

// Where a product goes: f32 (with an optional bias by output), or added to fixed-point sums.
struct ProductOut {
  float* values = nullptr;  // [rows, stride]
  size_t stride = 0;
  size_t origin = 0;            // the output that column 0 of `values` is
  const float* bias = nullptr;  // of all outputs
  int64_t* sums = nullptr;      // [rows, stride]; holds what was summed so far
  int64_t* poisoned = nullptr;  // [rows], added to atomically
  size_t unit = 0;              // columns a unit; with `sums` only

  // The same for rows from `row` on.
  ProductOut from_row(size_t row) const {
    ProductOut out = *this;
    if (values) out.values += row * stride;
    if (sums) out.sums += row * stride, out.poisoned += row;
    return out;
  }
};

// One key-value head's part of a block: keys [head_dim][32 positions], values [32 positions][head_dim].
struct KvView {
  const std::byte* layer = nullptr;  // keys of block 0 of this head
  size_t block_bytes = 0;            // from a block to the next
  size_t values_at = 0;              // bytes from a block's keys to its values
  size_t scales_at = 0;              // q8: bytes from a block's keys to its 32 key scales, then 32 value scales (f32)
  size_t head_dim = 0;
  KvType type = KvType::f16;
};

constexpr size_t kTileQueries = 12;

// Up to kTileQueries query vectors that read the same KV head of the same sequence.
//
// Numerics.h point 8 cuts the context into partitions. A tile is attended to the end (out), or one partition of it is summed (parts), and
// merge_partitions ends it. What a partition gives: m, whether any key of it is visible, 14 unused, l[16], o[head_dim padded to 16].
constexpr size_t kAllPartitions = SIZE_MAX;
inline size_t partition_floats(size_t head_dim) { return 32 + round_up(head_dim, 16); }

struct AttendTile {
  KvView kv;
  const uint32_t* blocks = nullptr;  // KV block ids of the sequence
  size_t count = 0;
  const float* queries[kTileQueries];  // [head_dim], 64-byte aligned
  uint32_t positions[kTileQueries];    // ascending
  float* out[kTileQueries];            // [head_dim]; nothing beyond is written
  size_t partition = kAllPartitions;   // or the one
  float* parts[kTileQueries];          // partition_floats(head_dim), aligned
  float* scratch;                      // attend_scratch_floats(head_dim), aligned
  float scale = 1;
  size_t window = 0;
};

inline size_t attend_scratch_floats(size_t head_dim) {
  return (2 * kTileQueries + 1) * round_up(head_dim, 16) + (kTileQueries + 1) * partition_floats(head_dim);
}

// Point 2 of numerics.h from the bits of m: s and r. A NaN's bits lie above those of infinity, and these above every number's.
struct CodeScale {
  float scale, factor;  // factor 0: all codes are 0
};
inline CodeScale code_scale(uint32_t magnitude_bits) {
  const float m = std::bit_cast<float>(magnitude_bits);
  const bool finite = magnitude_bits < 0x7f800000u;
  if (finite && m >= 0x1p-100f) return {m / 127.0f, 127.0f / m};
  return {finite ? 0.0f : std::numeric_limits<float>::quiet_NaN(), 0.0f};
}

struct HeadNorm {
  const float* weight;  // padded to 16 with zeros
  float eps;
};
struct HeadRope {
  RopeMode mode;
  size_t pairs;
  const float* cos;  // of this position
  const float* sin;
};

// One block's codes, unpacked.
inline size_t tile_scratch_bytes(const PieceShape& w) { return w.cols * kBlockRows; }

struct Kernels {
  // Rows `rows` of x against the 16-row blocks `blocks` of w.
  void (*product_quantised)(const Piece& w, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out);
  // The same for whole blocks of kRowBlock rows: rows.begin is a multiple of it, and results of rows beyond rows.end are
  // dropped. `scratch`: tile_scratch_bytes(w). Null where the instruction set has no tiles.
  void (*product_tiles)(const Piece& w, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out, std::byte* scratch);
  void (*product_dense)(const Piece& w, const float* x, size_t stride, Range rows, Range blocks, const ProductOut& out);
  // The same with pairs. Tiles take whole blocks of rows as above; null where there are none.
  void (*product_pairs)(const Piece& w, const PairRows& x, Range rows, Range blocks, const ProductOut& out);
  void (*product_pair_tiles)(const Piece& w, const PairRows& x, Range rows, Range blocks, const ProductOut& out);
  void (*round_row)(const float* x, const PairRows& into, size_t row);
  void (*quantise_row)(const float* x, const QuantisedRows& into, size_t row);
  // Writes zeros into the padding of y, if x's and the weight's padding are zeros.
  void (*rms_norm_row)(const float* x, const float* weight, float eps, size_t cols, float* y);
  // gate_up: n gates, then n ups. Writes zeros into the padding of y.
  void (*gated_row)(const float* gate_up, size_t n, Activation activation, float* y);
  // y = residual + f32(sums), then + bias (null: none). Writes zeros into the padding of y.
  void (*add_reduced_row)(const float* residual, const int64_t* sums, const float* bias, size_t cols, float* y);
  // Norm (null: none) and rotation of one head; out is aligned and padded to 16.
  void (*prepare_head)(const float* x, size_t head_dim, const HeadNorm* norm, const HeadRope* rope, float* out);
  // Stores one position's key (prepared) and value. `slot` is the position in the block.
  void (*store_kv)(const float* key, const float* value, std::byte* block_keys, const KvView& kv, size_t slot);
  void (*attend)(const AttendTile& tile);
  // Merges `count` partitions, partition_floats(head_dim) apart and ascending, into the first and writes the finished head_dim values.
  void (*merge_partitions)(float* parts, size_t count, size_t head_dim, float* out);
};

}  // namespace verbund::compute::native
