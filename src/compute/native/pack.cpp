#include "compute/native/pack.h"

#include <algorithm>
#include <cstring>

#include "compute/numerics.h"
#include "formats/bytes16.h"

namespace verbund::compute::native {
namespace {

using formats::CodeTile;
using formats::kTileRows;
using formats::load16;
using formats::store16;
using formats::Words4;
using Halves8 = uint16_t __attribute__((vector_size(16)));

static_assert(kTileRows == kBlockRows);

constexpr size_t kVector = 64;  // bytes of one quad of all rows

// Words 0..3 of four rows, `stride` bytes apart, become four vectors: word w of rows 0..3.
inline void transpose(const void* rows, size_t stride, Words4* words) {
  const auto* at = static_cast<const std::byte*>(rows);
  const auto r0 = load16<Words4>(at), r1 = load16<Words4>(at + stride), r2 = load16<Words4>(at + 2 * stride),
             r3 = load16<Words4>(at + 3 * stride);
  const Words4 low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Words4 high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  words[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  words[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  words[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  words[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// How a container holds a span: q[v] is quad v of four rows, `to` their place in the span's first vector. Shifting words
// moves bytes by whole fields, whose upper bits are zero.
void store_bytes(const Words4* q, std::byte* to) {
  for (size_t v = 0; v < 8; ++v) store16(to + v * kVector, q[v]);
}
void store_nibbles(const Words4* q, std::byte* to) {
  for (size_t v = 0; v < 4; ++v) store16(to + v * kVector, q[v] | q[v + 4] << 4);
}
void store_pairs(const Words4* q, std::byte* to) {
  for (size_t i = 0; i < 8; i += 4) store16(to + i / 4 * kVector, q[i] | q[i + 1] << 2 | q[i + 2] << 4 | q[i + 3] << 6);
}
void store_bits(const Words4* q, std::byte* to) {
  Words4 bits = q[0];
  for (size_t v = 1; v < 8; ++v) bits |= q[v] << v;
  store16(to, bits);
}

// The first plane's bits of each code, and what is above them.
template <int kBits>
void split(const Words4* q, Words4* low, Words4* high) {
  constexpr uint32_t kLow = ((1u << kBits) - 1) * 0x01010101u;
  for (size_t v = 0; v < 8; ++v) {
    low[v] = q[v] & kLow;
    high[v] = (q[v] & ~kLow) >> kBits;
  }
}

template <size_t kBits>
void store_span(const Words4* q, std::byte* to) {
  Words4 low[8], high[8];
  if constexpr (kBits == 8) return store_bytes(q, to);
  if constexpr (kBits == 4) return store_nibbles(q, to);
  if constexpr (kBits == 2) return store_pairs(q, to);
  if constexpr (kBits == 3) split<2>(q, low, high), store_pairs(low, to), store_bits(high, to + 2 * kVector);
  if constexpr (kBits == 5) split<4>(q, low, high), store_nibbles(low, to), store_bits(high, to + 4 * kVector);
  if constexpr (kBits == 6) split<4>(q, low, high), store_nibbles(low, to), store_pairs(high, to + 4 * kVector);
}

template <size_t kBits>
void pack_codes(const CodeTile& tile, Range part, std::byte* to) {
  for (size_t col = part.begin; col < part.end; col += kSpan, to += kBits * kVector)
    for (size_t row = 0; row < kTileRows; row += 4) {
      Words4 quads[8];
      transpose(&tile.codes[row][col], sizeof tile.codes[0], quads);
      transpose(&tile.codes[row][col + kSpan / 2], sizeof tile.codes[0], quads + 4);
      store_span<kBits>(quads, to + row * 4);
    }
}

void pack_codes(const PieceShape& shape, std::byte* block, const CodeTile& tile, Range part, size_t col) {
  std::byte* to = block + col / kSpan * shape.code_bits * kVector;
  switch (shape.code_bits) {
    case 2: return pack_codes<2>(tile, part, to);
    case 3: return pack_codes<3>(tile, part, to);
    case 4: return pack_codes<4>(tile, part, to);
    case 5: return pack_codes<5>(tile, part, to);
    case 6: return pack_codes<6>(tile, part, to);
    default: pack_codes<8>(tile, part, to);
  }
}

// A tile has its scales in the order of a block's areas.
void pack_scales(const PieceShape& shape, std::byte* block, const CodeTile& tile, Range part, size_t col) {
  const size_t step = kBlockRows * scale_bytes(shape.scale_type);  // one group
  const size_t from = part.begin / shape.group * step, to = col / shape.group * step, size = part.size() / shape.group * step;
  std::memcpy(block + shape.scales_at + to, tile.scales + from, size);
  if (shape.biased) std::memcpy(block + shape.biases_at + to, tile.biases + from, size);
}

bool pack_quantised(const PieceShape& shape, std::byte* block, const formats::StoredRows& band, size_t row, size_t col, CodeTile& tile) {
  const size_t rows = std::min(kBlockRows, band.rows - row);
  // Codes and scales of 0 are a row of zeros in every form, whatever `zero` is (mxfp4 has no zero scale: its code 0 is the number 0).
  if (rows < kBlockRows) std::memset(&tile, 0, sizeof tile);
  Range part;
  for (size_t at = 0; at < band.cols; at += part.size()) {
    if (!formats::take_tile(band, row, rows, at, tile, part)) return false;
    pack_codes(shape, block, tile, part, col + at);
    pack_scales(shape, block, tile, part, col + at);
  }
  return true;
}

// [rows][columns] of whole vectors to [columns][rows].
inline void transpose_words(const std::byte* from, size_t stride, std::byte* to) {
  Words4 words[4];
  transpose(from, stride, words);
  for (size_t k = 0; k < 4; ++k) store16(to + k * kBlockRows * 4, words[k]);
}

inline void transpose_halves(const std::byte* from, size_t stride, std::byte* to) {
  Halves8 in[8], out[8];
  for (size_t r = 0; r < 8; ++r) in[r] = load16<Halves8>(from + r * stride);
  for (size_t step = 0; step < 3; ++step) {  // each step interleaves rows that are four apart
    for (size_t r = 0; r < 4; ++r) {
      out[2 * r] = __builtin_shufflevector(in[r], in[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      out[2 * r + 1] = __builtin_shufflevector(in[r], in[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::copy(out, out + 8, in);
  }
  for (size_t k = 0; k < 8; ++k) store16(to + k * kBlockRows * 2, in[k]);
}

template <size_t kElement>
void pack_whole_rows(const std::byte* from, size_t stride, size_t cols, std::byte* to) {
  constexpr size_t kSide = 16 / kElement;  // of the square that is turned at a time
  for (size_t k = 0; k < cols; k += kSide)
    for (size_t r = 0; r < kBlockRows; r += kSide) {
      const std::byte* square = from + r * stride + k * kElement;
      if constexpr (kElement == 4)
        transpose_words(square, stride, to + (k * kBlockRows + r) * kElement);
      else
        transpose_halves(square, stride, to + (k * kBlockRows + r) * kElement);
    }
}

template <size_t kElement>
void pack_dense(const std::byte* from, size_t stride, size_t rows, size_t cols, std::byte* to) {
  const size_t whole = rows == kBlockRows ? cols / 8 * 8 : 0;
  pack_whole_rows<kElement>(from, stride, whole, to);
  for (size_t k = whole; k < cols; ++k) {
    std::memset(to + k * kBlockRows * kElement, 0, kBlockRows * kElement);
    for (size_t r = 0; r < rows; ++r) std::memcpy(to + (k * kBlockRows + r) * kElement, from + r * stride + k * kElement, kElement);
  }
}

void pack_dense(const PieceShape& shape, std::byte* block, const formats::WeightMatrix& m, size_t row, size_t col) {
  const size_t element = formats::size_of(shape.format.dtype), stride = m.cols * element, rows = std::min(kBlockRows, m.rows - row);
  const auto turn = element == 4 ? pack_dense<4> : pack_dense<2>;
  turn(m.codes.data() + row * stride, stride, rows, m.cols, block + col * kBlockRows * element);
}

// Halves of pairs lie side by side in a row already: once rounded, a row is one of words.
void pack_pairs(const PieceShape& shape, std::byte* block, const formats::WeightMatrix& m, size_t row, size_t col) {
  constexpr size_t kStep = 8 * kPairBlock;
  const size_t element = formats::size_of(shape.format.dtype), rows = std::min(kBlockRows, m.rows - row);
  const size_t last = col + m.cols == shape.cols ? round_up(m.cols, kPairBlock) : m.cols;  // the last columns are continued with zeros
  alignas(64) uint16_t halves[kBlockRows][kStep];
  for (size_t begin = 0; begin < last; begin += kStep) {
    const size_t wide = std::min(kStep, last - begin), real = std::min(wide, m.cols - std::min(m.cols, begin));
    for (size_t r = 0; r < kBlockRows; ++r) {
      const std::byte* from = m.codes.data() + ((row + r) * m.cols + begin) * element;
      const size_t n = r < rows ? real : 0;
      for (size_t k = 0; k < n; ++k) halves[r][k] = to_half_of_pair(formats::to_f32(from + k * element, shape.format.dtype));
      std::fill(halves[r] + n, halves[r] + wide, uint16_t{0});
    }
    pack_dense<4>(reinterpret_cast<const std::byte*>(halves), sizeof halves[0], kBlockRows, wide / 2,
                  block + (col + begin) * kBlockRows * 2);
  }
}

}  // namespace

bool pack(const PieceShape& shape, std::byte* data, const formats::StoredRows& band, size_t row, size_t col, CodeTile& tile) {
  for (size_t r = 0; r < band.rows; r += kBlockRows) {
    std::byte* block = data + (row + r) / kBlockRows * shape.block_bytes;
    if (shape.container == Container::dense)
      pack_dense(shape, block, band.matrix, r, col);
    else if (shape.container == Container::pairs)
      pack_pairs(shape, block, band.matrix, r, col);
    else if (!pack_quantised(shape, block, band, r, col, tile))
      return false;
  }
  return true;
}

}  // namespace verbund::compute::native
