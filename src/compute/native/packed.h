// The one layout of weights that every kernel of the native backend reads, and how stored matrices get into it.
//
// Output rows are held in blocks of 16, so that one vector lane is one output and no sum crosses lanes. The last block
// of a piece is filled up with zero rows. A block is contiguous:
//
//   dense      [k][16 rows] elements as stored (f32, f16, bf16)
//   pairs      dense weights with --fast-dense, as bf16: [k / 2][16 rows][2 k], k to a multiple of 32 with zeros
//   quantised  [codes][scales][biases], each area from k = 0 to the end:
//     codes    spans of 32 columns. A span has eight quads of four columns; quad v of all rows is 64 bytes, [16 rows][4 k],
//              one byte a code. Their bits are held in planes, vectors of 64 bytes:
//                byte     8 vectors: vector v is quad v
//                nibble   4 vectors: vector v has quad v in its low nibbles and quad v + 4 in its high ones
//                pair     2 vectors: vector i has quad 4 i + j in bits 2 j, 2 j + 1
//                bit      1 vector: quad j is bit j
//              Codes of 1, 2 bits: pair; 3: pair, bit; 4 and mxfp4: nibble; 5: nibble, bit; 6: nibble, pair; 7, 8: byte. Low
//              bits first: the code is low | high << (bits of the first plane). A span's planes lie behind one another.
//     scales   [group][16 rows] in their dtype (mxfp4: one byte); biases likewise
//
// So 64 bytes of codes against one broadcast quad of activations is one vpdpbusd for 16 outputs, and 64 bytes are also
// one row of an AMX int8 tile. Immutable after loading; any number of threads reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "compute/backend.h"
#include "compute/native/memory.h"
#include "formats/weight.h"

namespace verbund::compute::native {

constexpr size_t kBlockRows = 16;
constexpr size_t kSpan = 32;    // columns whose codes are packed together
constexpr int kMxfp4Zero = 12;  // mxfp4 codes are held as 2 * E2M1 + 12, so they are unsigned

enum class Container : uint8_t { dense, pairs, plane2, plane3, nibble, plane5, plane6, mxfp4, byte8 };  // planeN: codes of N bits
enum class ScaleType : uint8_t { f32, f16, bf16, e8m0 };
constexpr size_t scale_bytes(ScaleType type) { return type == ScaleType::f32 ? 4 : type == ScaleType::e8m0 ? 1 : 2; }

// Form and sizes of a piece: consecutive output rows of one format.
struct PieceShape {
  formats::WeightFormat format;
  Container container = Container::dense;
  ScaleType scale_type = ScaleType::f32;
  size_t code_bits = 0;  // as held
  int zero = 0;          // subtracted from codes as they are held
  bool biased = false;
  size_t first_row = 0, rows = 0, cols = 0;
  size_t group = 0;                     // columns a scale
  size_t activation_block = 0;          // columns an activation scale: max(32, group)
  size_t scales_at = 0, biases_at = 0;  // byte offsets in a block
  size_t block_bytes = 0;

  size_t blocks() const { return ceil_div(rows, kBlockRows); }
  uint64_t bytes() const { return uint64_t(blocks()) * block_bytes; }
  bool quantised() const { return container > Container::pairs; }
  size_t groups() const { return group == 0 ? 0 : cols / group; }
};
// Throws invalid_argument for a form no kernel has, or columns that are no multiple of the activation block.
// fast_dense: dense weights become pairs.
PieceShape piece_shape(const formats::WeightFormat& format, size_t first_row, size_t rows, size_t cols, bool fast_dense = false);

struct Piece : PieceShape {
  const std::byte* data = nullptr;
  const std::byte* block(size_t b) const { return data + b * block_bytes; }
};

struct PackedWeight : Weight {
  std::vector<Piece> pieces;  // by first_row
  size_t unit = 0;            // 0: column-parallel
  std::shared_ptr<std::byte> memory;
};

// Row `row` of the piece as f32, numerics.h point 10.
void unpack_row(const Piece& piece, size_t row, float* out);

// One held code (before `zero` is subtracted), and one scale or bias, for reference and tables.
int held_code(const Piece& piece, const std::byte* block, size_t lane, size_t k);
float held_pair_weight(const std::byte* block, size_t lane, size_t k);
float held_scale(const Piece& piece, const std::byte* area, size_t lane, size_t group);  // mxfp4: 2^(e-127)

}  // namespace verbund::compute::native
