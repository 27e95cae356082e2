// Matrix products of the native backend. Few rows: activations are quantised once a tensor and output blocks are cut over
// the threads. Many rows: each thread takes chunks of rows (row_chunks.h).
#include <algorithm>

#include "compute/native/backend.h"
#include "compute/native/row_chunks.h"

namespace verbund::compute::native {
namespace {

// Multiply-adds a task at least: some microseconds, several times what handing it over costs.
constexpr size_t kTaskWork = 64 * 1024;
// Tasks a thread: enough that one slow core does not hold up the others.
constexpr size_t kTasksPerThread = 4;

// Into how many equal parts a piece's blocks are cut: as many for every thread, if there is work for all.
size_t tasks_of(const Piece& piece, size_t rows, unsigned threads) {
  if (threads == 1) return 1;
  const size_t worthwhile = std::max<size_t>(1, piece.rows * piece.cols * rows / kTaskWork);
  const size_t wanted = std::min({worthwhile, piece.blocks(), threads * kTasksPerThread});
  return wanted > threads ? wanted / threads * threads : wanted;
}

}  // namespace

const QuantisedRows& NativeBackend::quantise(FloatTensor& x, const Piece& piece) {
  const auto [entry, fresh] = x.quantised.try_emplace({piece.activation_block, piece.group, piece.zero});
  QuantisedTensor& q = entry->second;
  if (!fresh) return q.rows;
  q.memory = pool_->take(quantised_bytes(x.rows, piece));
  q.rows = quantised_in(q.memory.as<std::byte>(), x.rows, piece);
  clear_last_block(q.rows, x.rows);
  for_chunks(x.rows, std::max<size_t>(1, 16384 / x.cols), [&](size_t r) { kernels_.quantise_row(x.row(r), q.rows, r); });
  return q.rows;
}

const PairRows& NativeBackend::round_pairs(FloatTensor& x) {
  RoundedTensor& pairs = x.pairs;
  if (pairs.rows.values) return pairs.rows;
  pairs.memory = pool_->take(pair_bytes(kernels_, x.rows, x.cols));
  pairs.rows = pairs_in(kernels_, pairs.memory.as<std::byte>(), x.rows, x.cols);
  clear_last_block(pairs.rows, x.rows);
  for_chunks(x.rows, std::max<size_t>(1, 16384 / x.cols), [&](size_t r) { kernels_.round_row(x.row(r), pairs.rows, r); });
  return pairs.rows;
}

void NativeBackend::multiply(FloatTensor& x, const PackedWeight& w, const ProductOut& out) {
  if (x.rows == 0) return;
  if (by_rows(x.rows)) {
    for_row_chunks(x.rows, [&](Range rows) {
      ChunkInput(kernels_, 0, x.row(rows.begin), x.stride(), rows.size(), x.cols).multiply(w, out.from_row(rows.begin));
    });
    return;
  }
  for (const Piece& piece : w.pieces) {
    const QuantisedRows* q = piece.quantised() ? &quantise(x, piece) : nullptr;
    const PairRows* pairs = piece.container == Container::pairs ? &round_pairs(x) : nullptr;
    const size_t tasks = tasks_of(piece, x.rows, threads_.threads());
    threads_.parallel_for(tasks, [&](size_t task) {
      const Range blocks{task * piece.blocks() / tasks, (task + 1) * piece.blocks() / tasks};
      if (q)
        product(kernels_, piece, *q, {0, x.rows}, blocks, out);
      else if (pairs)
        product(kernels_, piece, *pairs, {0, x.rows}, blocks, out);
      else
        kernels_.product_dense(piece, x.row(0), x.stride(), {0, x.rows}, blocks, out);
    });
  }
}

void NativeBackend::check_product(const FloatTensor& x, const PackedWeight& w, const Vector* bias) const {
  if (x.cols != w.cols) throw shape_error("product of " + std::to_string(x.cols) + " columns with weights of " + std::to_string(w.cols));
  if (bias && bias->size != w.rows)
    throw shape_error("linear: a bias of " + std::to_string(bias->size) + " for " + std::to_string(w.rows) + " outputs");
}

// Where a product with an optional bias goes; the padding of its rows becomes zeros.
ProductOut NativeBackend::values_of(FloatTensor& y, const Vector* bias) {
  for (size_t r = 0; r < y.rows; ++r) std::fill(y.row(r) + y.cols, y.row(r) + y.stride(), 0.0f);
  ProductOut out;
  out.values = y.row(0);
  out.stride = y.stride();
  out.bias = bias ? static_cast<const NativeVector*>(bias)->data() : nullptr;
  return out;
}

ProductOut NativeBackend::sums_of(FixedTensor& sums, size_t unit) {
  ProductOut out;
  out.sums = sums.sums();
  out.stride = sums.cols;
  out.poisoned = sums.poisoned();
  out.unit = unit;
  return out;
}

Tensor NativeBackend::linear(const Tensor& x, const Weight& w, const Vector* bias) {
  const PackedWeight& weight = packed(w);
  FloatTensor& in = floats(x, "linear");
  check_product(in, weight, bias);
  auto y = make_floats(in.rows, w.rows);
  multiply(in, weight, values_of(*y, bias));
  return Tensor(y);
}

Partial NativeBackend::linear_partial(const Tensor& x, const Weight& w) {
  const PackedWeight& weight = packed(w);
  if (weight.unit == 0) throw shape_error("linear_partial: the weight was loaded for column-parallel use");
  FloatTensor& in = floats(x, "linear_partial");
  check_product(in, weight, nullptr);
  auto sums = std::make_shared<FixedTensor>(*pool_, in.rows, w.rows);
  multiply(in, weight, sums_of(*sums, weight.unit));
  return {Tensor(sums)};
}

}  // namespace verbund::compute::native
