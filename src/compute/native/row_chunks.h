// A chunk of a step's rows on its way through several operations of one thread.
//
// A step of many rows is cut by rows: each thread takes a chunk through norm, quantisation, product, activation and the next
// product, so that what lies between stays in its own caches and threads meet once for all of it. (A step of few rows is
// cut by outputs instead: then every thread streams its part of the weights once.) How rows are cut changes no result.
#pragma once

#include <array>

#include "compute/native/kernels.h"
#include "compute/native/memory.h"
#include "compute/native/packed.h"

namespace verbund::compute::native {

constexpr size_t kChunkRows = 64;

// Memory of one thread that grows to the largest chunk it has seen.
class ChunkScratch {
 public:
  enum Slot : size_t { normed, gate_up, gated, tiles, pairs, second_pairs, codes };  // codes: kCodes of them for each input
  static constexpr size_t kCodes = 4;

  static ChunkScratch& mine();  // of the calling thread
  std::byte* take(size_t slot, size_t bytes);
  float* floats(size_t slot, size_t count) { return reinterpret_cast<float*>(take(slot, count * sizeof(float))); }

 private:
  std::array<AlignedBytes, codes + 2 * kCodes> memory_;
};

// What a thread's scratch may come to for rows of `cols_total` columns in all.
uint64_t chunk_scratch_bytes(size_t rows, size_t cols_total, size_t cols_max);

// Rows as input of products: f32, and quantised when a piece asks for it.
class ChunkInput {
 public:
  // `number`: 0 or 1, the inputs alive at once on this thread.
  ChunkInput(const Kernels& kernels, size_t number, const float* values, size_t stride, size_t rows, size_t cols)
      : kernels_(kernels), number_(number), values_(values), stride_(stride), rows_(rows), cols_(cols) {}

  // Outputs [outputs.begin, outputs.end) of w, whose borders are borders of blocks or of pieces.
  void multiply(const PackedWeight& w, Range outputs, const ProductOut& out);
  void multiply(const PackedWeight& w, const ProductOut& out) { multiply(w, {0, w.rows}, out); }

 private:
  const QuantisedRows& quantised(const Piece& piece);
  const PairRows& rounded();

  const Kernels& kernels_;
  size_t number_;
  const float* values_;
  size_t stride_, rows_, cols_;
  std::array<QuantisedRows, ChunkScratch::kCodes> quantised_;
  size_t forms_ = 0;
  PairRows rounded_ = {};
};

// Sizes and places of the areas of QuantisedRows in one block of memory.
size_t quantised_bytes(size_t rows, const PieceShape& piece);
QuantisedRows quantised_in(std::byte* memory, size_t rows, const PieceShape& piece);
// The same for PairRows.
size_t pair_bytes(const Kernels& kernels, size_t rows, size_t cols);
PairRows pairs_in(const Kernels& kernels, std::byte* memory, size_t rows, size_t cols);
// Zeros into the rows that fill up the last block.
void clear_last_block(const QuantisedRows& q, size_t rows);

void clear_last_block(const PairRows& x, size_t rows);
void product(const Kernels& kernels, const Piece& piece, const PairRows& x, Range rows, Range blocks, const ProductOut& out);

// One piece's blocks for some rows, by tiles where the instruction set has them and enough rows.
void product(const Kernels& kernels, const Piece& piece, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out);

}  // namespace verbund::compute::native
