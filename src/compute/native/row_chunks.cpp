#include "compute/native/row_chunks.h"

#include <algorithm>
#include <cstring>

#include "compute/native/tensors.h"
#include "compute/numerics.h"

namespace verbund::compute::native {
namespace {

// A block's codes are unpacked once for all its tiles, and a tile costs the same for one row as for sixteen: a few rows alone,
// and what few are left over, are faster as vectors (measured at 8, 16 and 32 rows).
constexpr size_t kTiledLeast = 24, kLastTileLeast = 8;

// Rows of `rows` (from a block border) that go through tiles; the rest goes through vectors.
size_t tiled_rows(Range rows) {
  if (rows.size() < kTiledLeast) return 0;
  const size_t whole = rows.size() / kRowBlock * kRowBlock;
  return rows.size() - whole >= kLastTileLeast ? rows.size() : whole;
}

}  // namespace

ChunkScratch& ChunkScratch::mine() {
  thread_local ChunkScratch scratch;
  return scratch;
}

std::byte* ChunkScratch::take(size_t slot, size_t bytes) {
  if (memory_[slot].size() < bytes) {
    memory_[slot] = AlignedBytes();
    memory_[slot] = AlignedBytes(bytes);
  }
  return memory_[slot].data();
}

uint64_t chunk_scratch_bytes(size_t rows, size_t cols_total, size_t cols_max) {
  const uint64_t held = std::min(rows, kChunkRows) + kRowBlock;
  const uint64_t floats = held * (cols_total + 64) * sizeof(float), codes = held * cols_total * 3;
  return floats + codes + std::max<uint64_t>(uint64_t{64} << 10, cols_max * kBlockRows);
}

size_t quantised_bytes(size_t rows, const PieceShape& piece) {
  const size_t held = round_up(rows, kRowBlock);
  return held * (piece.cols + piece.cols / piece.activation_block * 4 + piece.cols / piece.group * 8);
}

QuantisedRows quantised_in(std::byte* at, size_t rows, const PieceShape& piece) {
  const size_t held = round_up(rows, kRowBlock), scales = held * (piece.cols / piece.activation_block);
  const size_t groups = held * (piece.cols / piece.group);
  std::byte* scales_at = at + held * piece.cols;  // sixteen rows of any width end on 64 bytes
  std::byte* offsets_at = scales_at + scales * 4;
  return {reinterpret_cast<int8_t*>(at),
          reinterpret_cast<float*>(scales_at),
          reinterpret_cast<int32_t*>(offsets_at),
          reinterpret_cast<float*>(offsets_at + groups * 4),
          piece.cols,
          piece.activation_block,
          piece.group,
          piece.zero};
}

void clear_last_block(const QuantisedRows& q, size_t rows) {
  if (rows % kRowBlock == 0) return;
  const size_t first = rows / kRowBlock * kRowBlock, scales = q.cols / q.activation_block, groups = q.cols / q.group;
  std::memset(q.codes + rows * q.cols, 0, (first + kRowBlock - rows) * q.cols);
  std::fill_n(q.scales + q.scale_at(first, 0), scales * kRowBlock, 0.0f);
  std::fill_n(q.offsets + q.group_at(first, 0), groups * kRowBlock, 0);
  std::fill_n(q.bias_factors + q.group_at(first, 0), groups * kRowBlock, 0.0f);
}

size_t pair_bytes(const Kernels& kernels, size_t rows, size_t cols) {
  const size_t held = kernels.product_pair_tiles ? round_up(rows, kRowBlock) : rows;
  return held * round_up(cols, kPairBlock) * (sizeof(float) + (kernels.product_pair_tiles ? sizeof(uint16_t) : 0));
}

PairRows pairs_in(const Kernels& kernels, std::byte* at, size_t rows, size_t cols) {
  const size_t stride = round_up(cols, kPairBlock);
  auto* values = reinterpret_cast<float*>(at);
  auto* halves = reinterpret_cast<uint16_t*>(values + round_up(rows, kRowBlock) * stride);
  return {values, kernels.product_pair_tiles ? halves : nullptr, stride, cols};
}

void clear_last_block(const PairRows& x, size_t rows) {
  if (x.halves) std::fill(x.halves + rows * x.stride, x.halves + round_up(rows, kRowBlock) * x.stride, uint16_t{0});
}

void product(const Kernels& kernels, const Piece& piece, const PairRows& x, Range rows, Range blocks, const ProductOut& out) {
  const size_t border = rows.begin + (x.halves ? tiled_rows(rows) : 0);
  if (border > rows.begin) kernels.product_pair_tiles(piece, x, {rows.begin, border}, blocks, out);
  if (border < rows.end) kernels.product_pairs(piece, x, {border, rows.end}, blocks, out);
}

void product(const Kernels& kernels, const Piece& piece, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out) {
  const size_t border = rows.begin + (kernels.product_tiles ? tiled_rows(rows) : 0);
  if (border > rows.begin) {
    std::byte* scratch = ChunkScratch::mine().take(ChunkScratch::tiles, tile_scratch_bytes(piece));
    kernels.product_tiles(piece, x, {rows.begin, border}, blocks, out, scratch);
  }
  if (border < rows.end) kernels.product_quantised(piece, x, {border, rows.end}, blocks, out);
}

const QuantisedRows& ChunkInput::quantised(const Piece& piece) {
  for (size_t i = 0; i < forms_; ++i) {
    const QuantisedRows& q = quantised_[i];
    if (q.activation_block == piece.activation_block && q.group == piece.group && q.zero == piece.zero) return q;
  }
  // More forms than places (no file has that many) share the last one.
  const size_t form = std::min(forms_, ChunkScratch::kCodes - 1);
  forms_ = form + 1;
  std::byte* memory = ChunkScratch::mine().take(ChunkScratch::codes + number_ * ChunkScratch::kCodes + form, quantised_bytes(rows_, piece));
  quantised_[form] = quantised_in(memory, rows_, piece);
  clear_last_block(quantised_[form], rows_);
  for (size_t r = 0; r < rows_; ++r) kernels_.quantise_row(values_ + r * stride_, quantised_[form], r);
  return quantised_[form];
}

const PairRows& ChunkInput::rounded() {
  if (rounded_.values) return rounded_;
  std::byte* memory = ChunkScratch::mine().take(ChunkScratch::pairs + number_, pair_bytes(kernels_, rows_, cols_));
  rounded_ = pairs_in(kernels_, memory, rows_, cols_);
  clear_last_block(rounded_, rows_);
  for (size_t r = 0; r < rows_; ++r) kernels_.round_row(values_ + r * stride_, rounded_, r);
  return rounded_;
}

void ChunkInput::multiply(const PackedWeight& w, Range outputs, const ProductOut& out) {
  for (const Piece& piece : w.pieces) {
    const size_t begin = std::max(outputs.begin, piece.first_row), end = std::min(outputs.end, piece.first_row + piece.rows);
    if (begin >= end) continue;
    const Range blocks{(begin - piece.first_row) / kBlockRows, ceil_div(end - piece.first_row, kBlockRows)};
    if (piece.container == Container::dense)
      kernels_.product_dense(piece, values_, stride_, {0, rows_}, blocks, out);
    else if (piece.container == Container::pairs)
      product(kernels_, piece, rounded(), {0, rows_}, blocks, out);
    else
      product(kernels_, piece, quantised(piece), {0, rows_}, blocks, out);
  }
}

}  // namespace verbund::compute::native
