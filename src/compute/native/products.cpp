// Matrix products of the native backend: quantises activations once a tensor, and cuts output blocks over the threads.
#include <algorithm>
#include <cstring>

#include "compute/native/backend.h"

namespace verbund::compute::native {
namespace {

// Activations that pass a block of weights between two visits of it: what fits into half of a 1 MiB L2.
constexpr size_t kRowsBytes = size_t{512} << 10;
// Multiply-adds a task at least: some microseconds.
constexpr size_t kTaskWork = 256 * 1024;
// Tasks a thread: enough that one slow core does not hold up the others.
constexpr size_t kTasksPerThread = 4;

size_t rows_per_pass(const Piece& piece) {
  const size_t row_bytes = piece.cols * (piece.container == Container::dense ? sizeof(float) : 1);
  return std::max<size_t>(kRowBlock, kRowsBytes / std::max<size_t>(1, row_bytes) / kRowBlock * kRowBlock);
}

size_t blocks_per_task(const Piece& piece, size_t rows, unsigned threads) {
  const size_t least = ceil_div(kTaskWork, std::max<size_t>(1, kBlockRows * piece.cols * rows));
  return std::max(least, ceil_div(piece.blocks(), threads * kTasksPerThread));
}

// Rows that fill up the last block of sixteen are zeros.
void clear_last_block(const QuantisedRows& q, size_t rows) {
  const size_t first = rows / kRowBlock * kRowBlock, scales = q.cols / q.activation_block, groups = q.cols / q.group;
  std::memset(q.codes + rows * q.cols, 0, (first + kRowBlock - rows) * q.cols);
  std::fill_n(q.scales + q.scale_at(first, 0), scales * kRowBlock, 0.0f);
  std::fill_n(q.offsets + q.group_at(first, 0), groups * kRowBlock, 0);
  std::fill_n(q.bias_factors + q.group_at(first, 0), groups * kRowBlock, 0.0f);
}

// Fewer rows than this are faster as vectors: a tile costs the same for one row as for sixteen.
constexpr size_t kTileRowsLeast = 7;

// Rows of `rows` (from a block border) that go through tiles; the rest goes through vectors.
size_t tiled_rows(const Kernels& kernels, Range rows) {
  if (!kernels.product_tiles) return 0;
  const size_t whole = rows.size() / kRowBlock * kRowBlock;
  return rows.size() - whole >= kTileRowsLeast ? rows.size() : whole;
}

std::byte* tile_scratch(const Piece& piece) {
  thread_local AlignedBytes scratch;
  if (scratch.size() < tile_scratch_bytes(piece)) scratch = AlignedBytes(tile_scratch_bytes(piece));
  return scratch.data();
}

void product(const Kernels& kernels, const Piece& piece, const QuantisedRows& x, Range rows, Range blocks, const ProductOut& out) {
  const size_t border = rows.begin + tiled_rows(kernels, rows);
  if (border > rows.begin) kernels.product_tiles(piece, x, {rows.begin, border}, blocks, out, tile_scratch(piece));
  if (border < rows.end) kernels.product_quantised(piece, x, {border, rows.end}, blocks, out);
}

}  // namespace

const QuantisedRows& NativeBackend::quantise(FloatTensor& x, const Piece& piece) {
  const auto [entry, fresh] = x.quantised.try_emplace({piece.activation_block, piece.group, piece.zero});
  QuantisedTensor& q = entry->second;
  if (!fresh) return q.rows;
  const size_t rows = round_up(x.rows, kRowBlock), scales = rows * (x.cols / piece.activation_block), groups = rows * (x.cols / piece.group);
  const size_t scales_at = round_up(rows * x.cols, 64), offsets_at = scales_at + scales * 4, factors_at = offsets_at + groups * 4;
  q.memory = pool_->take(factors_at + groups * 4);
  std::byte* at = q.memory.as<std::byte>();
  q.rows = {reinterpret_cast<int8_t*>(at),
            reinterpret_cast<float*>(at + scales_at),
            reinterpret_cast<int32_t*>(at + offsets_at),
            reinterpret_cast<float*>(at + factors_at),
            x.cols,
            piece.activation_block,
            piece.group,
            piece.zero};
  if (rows != x.rows) clear_last_block(q.rows, x.rows);
  for_chunks(x.rows, std::max<size_t>(1, 16384 / x.cols), [&](size_t r) { kernels_.quantise_row(x.row(r), q.rows, r); });
  return q.rows;
}

void NativeBackend::multiply(FloatTensor& x, const PackedWeight& w, const ProductOut& out) {
  if (x.cols != w.cols) throw shape_error("product of " + std::to_string(x.cols) + " columns with weights of " + std::to_string(w.cols));
  if (x.rows == 0) return;
  for (const Piece& piece : w.pieces) {
    const bool dense = piece.container == Container::dense;
    const QuantisedRows* q = dense ? nullptr : &quantise(x, piece);
    const size_t pass = rows_per_pass(piece), step = blocks_per_task(piece, std::min(pass, x.rows), threads_.threads());
    threads_.parallel_for(ceil_div(piece.blocks(), step), [&](size_t task) {
      const Range blocks{task * step, std::min((task + 1) * step, piece.blocks())};
      for (size_t row = 0; row < x.rows; row += pass) {
        const Range rows{row, std::min(row + pass, x.rows)};
        if (dense)
          kernels_.product_dense(piece, x.row(0), x.stride(), rows, blocks, out);
        else
          product(kernels_, piece, *q, rows, blocks, out);
      }
    });
  }
}

Tensor NativeBackend::linear(const Tensor& x, const Weight& w, const Vector* bias) {
  const PackedWeight& weight = packed(w);
  FloatTensor& in = floats(x, "linear");
  if (bias && bias->size != w.rows)
    throw shape_error("linear: a bias of " + std::to_string(bias->size) + " for " + std::to_string(w.rows) + " outputs");
  auto y = make_floats(in.rows, w.rows);
  for (size_t r = 0; r < y->rows; ++r) std::fill(y->row(r) + y->cols, y->row(r) + y->stride(), 0.0f);
  ProductOut out;
  out.values = y->row(0);
  out.stride = y->stride();
  out.bias = bias ? static_cast<const NativeVector*>(bias)->data() : nullptr;
  multiply(in, weight, out);
  return Tensor(y);
}

Partial NativeBackend::linear_partial(const Tensor& x, const Weight& w) {
  const PackedWeight& weight = packed(w);
  if (weight.unit == 0) throw shape_error("linear_partial: the weight was loaded for column-parallel use");
  FloatTensor& in = floats(x, "linear_partial");
  auto sums = std::make_shared<FixedTensor>(*pool_, in.rows, w.rows);
  ProductOut out;
  out.sums = sums->sums();
  out.stride = w.rows;
  out.poisoned = sums->poisoned();
  out.unit = weight.unit;
  multiply(in, weight, out);
  return {Tensor(sums)};
}

}  // namespace verbund::compute::native
