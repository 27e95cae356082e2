#include "compute/native/backend.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compute/cpu.h"
#include "compute/native/row_chunks.h"
#include "compute/numerics.h"

namespace verbund::compute {
namespace native {
namespace {

// Rows a task: enough that a task outweighs its hand-over (about a microsecond).
size_t rows_per_task(size_t cols) { return std::max<size_t>(1, 16384 / std::max<size_t>(1, cols)); }

std::string list_rows(const std::vector<size_t>& rows) {
  std::string text = "rows";
  for (size_t i = 0; i < rows.size() && i < 16; ++i) text += (i ? ", " : " ") + std::to_string(rows[i]);
  return rows.size() > 16 ? text + " and " + std::to_string(rows.size() - 16) + " more" : text;
}

void check_poison(const FixedTensor& sums) {
  std::vector<size_t> rows;
  for (size_t r = 0; r < sums.rows; ++r)
    if (sums.poisoned()[r] != 0) rows.push_back(r);
  if (rows.empty()) return;
  throw Error({Code::invalid_argument, Lost::request,
               "an activation is not a number or beyond 2^20: the model does not produce finite values for this input", list_rows(rows),
               "check the weights, or use another prompt"});
}

}  // namespace

FixedTensor::FixedTensor(BufferPool& pool, size_t row_count, size_t col_count) : memory(pool.take(bytes(row_count, col_count))) {
  rows = row_count;
  cols = col_count;
  std::memset(memory.as<std::byte>(), 0, bytes(rows, cols));
}

const PackedWeight& packed(const Weight& w) {
  const auto* weight = dynamic_cast<const PackedWeight*>(&w);
  if (!weight) throw shape_error("the weight belongs to another backend");
  return *weight;
}

const float* padded_data(const Vector& v, size_t size, const char* operation) {
  const auto* vector = dynamic_cast<const NativeVector*>(&v);
  if (!vector || v.size != size)
    throw shape_error(std::string(operation) + ": vector of " + std::to_string(v.size) + " for " + std::to_string(size) + " columns");
  return vector->data();
}

NativeBackend::NativeBackend(IsaChoice isa, unsigned threads, bool fast_dense)
    : isa_(std::move(isa)), kernels_(kernels_of(isa_.isa)), fast_dense_(fast_dense), threads_(threads) {}

std::string NativeBackend::description() const {
  const std::string dense = !fast_dense_ ? "" : kernels_.product_pair_tiles ? "fast dense (bf16 tiles), " : "fast dense, ";
  return "native, " + isa_.description + ", " + dense + std::to_string(threads_.threads()) +
         (threads_.threads() == 1 ? " thread" : " threads");
}

std::unique_ptr<Vector> NativeBackend::load_vector(std::span<const float> values) {
  auto vector = std::make_unique<NativeVector>();
  vector->size = values.size();
  vector->memory = AlignedBytes(std::max<size_t>(16, stride_of(values.size())) * sizeof(float) + kSlackBytes, true);
  std::copy(values.begin(), values.end(), reinterpret_cast<float*>(vector->memory.data()));
  return vector;
}

std::unique_ptr<KvCache> NativeBackend::make_kv_cache(const KvLayout& layout) {
  auto cache = std::make_unique<NativeKvCache>();
  cache->layout = layout;
  cache->bytes = layout.bytes();
  // Touched now: what was announced is what is used, and no page fault falls into a step.
  cache->memory = AlignedBytes(layout.bytes() + kSlackBytes, true);
  return cache;
}

// Everything a step holds at once: tensors (padded), fixed-point sums are counted by the caller as two columns each,
// the quantised form of every live tensor (a byte a column, and scales), and attention's rotated queries. The pool may
// keep as much again as its largest buffer while shapes change.
uint64_t NativeBackend::step_bytes(size_t rows, size_t cols_total, size_t cols_max) const {
  const uint64_t tensors = uint64_t(rows) * (cols_total + 16 * 8) * sizeof(float);
  const uint64_t quantised =
      fast_dense_ ? pair_bytes(kernels_, rows + kRowBlock, cols_total + kPairBlock * 8) : uint64_t(rows) * cols_total * 2;
  const uint64_t largest = uint64_t(rows) * (stride_of(cols_max) + 1) * sizeof(int64_t);
  return tensors + quantised + 2 * largest + 32 * kSlackBytes +
         threads_.threads() *
             (attend_scratch_floats(1024) * sizeof(float) + chunk_scratch_bytes(rows, cols_total, cols_max) +
              (fast_dense_ ? pair_bytes(kernels_, std::min(rows, kChunkRows) + kRowBlock, cols_total + kPairBlock * 8) : 0));
}

std::shared_ptr<FloatTensor> NativeBackend::make_floats(size_t rows, size_t cols) {
  return std::make_shared<FloatTensor>(*pool_, rows, cols);
}

Tensor NativeBackend::embed(const Weight& table, std::span<const int32_t> ids, size_t first_row) {
  const PackedWeight& w = packed(table);
  auto y = make_floats(ids.size(), w.cols);
  for_chunks(ids.size(), rows_per_task(w.cols), [&](size_t i) {
    float* row = y->row(i);
    std::fill(row, row + y->stride(), 0.0f);
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) < first_row || static_cast<size_t>(ids[i]) >= first_row + w.rows) return;
    const size_t at = static_cast<size_t>(ids[i]) - first_row;
    for (const Piece& piece : w.pieces)
      if (at >= piece.first_row && at < piece.first_row + piece.rows) unpack_row(piece, at - piece.first_row, row);
  });
  return Tensor(y);
}

// Two f32 bit patterns travel in one int64: only one rank has anything but zero bits, so the sum carries nothing over.
Tensor NativeBackend::gather_embedding(const Tensor& mine, mesh::Mesh& mesh, const Deadline& deadline) {
  if (mesh.size() == 1) return mine;
  const FloatTensor& x = floats(mine, "gather_embedding");
  auto y = make_floats(x.rows, x.cols);
  const size_t words = x.rows * x.stride() / 2;
  std::memcpy(y->row(0), x.row(0), words * sizeof(int64_t));
  mesh.all_reduce(std::span<int64_t>(y->memory.as<int64_t>(), words), deadline);
  return Tensor(y);
}

Tensor NativeBackend::rms_norm(const Tensor& x, const Vector& weight, float eps) {
  const FloatTensor& in = floats(x, "rms_norm");
  const float* w = padded_data(weight, in.cols, "rms_norm");
  auto y = make_floats(in.rows, in.cols);
  for_chunks(in.rows, rows_per_task(in.cols), [&](size_t r) { kernels_.rms_norm_row(in.row(r), w, eps, in.cols, y->row(r)); });
  return Tensor(y);
}

Tensor NativeBackend::gated(const Tensor& gate_up, Activation activation) {
  const FloatTensor& in = floats(gate_up, "gated");
  if (in.cols % 2 != 0) throw shape_error("gated: " + std::to_string(in.cols) + " columns are not gate and up of one width");
  auto y = make_floats(in.rows, in.cols / 2);
  for_chunks(in.rows, rows_per_task(4 * in.cols), [&](size_t r) { kernels_.gated_row(in.row(r), in.cols / 2, activation, y->row(r)); });
  return Tensor(y);
}

Partial NativeBackend::zero_partial(size_t rows, size_t cols) { return {Tensor(std::make_shared<FixedTensor>(*pool_, rows, cols))}; }

Tensor NativeBackend::add_reduced(const Tensor& residual, const Partial& partial, const Vector* bias, mesh::Mesh& mesh,
                                  const Deadline& deadline) {
  const FloatTensor& x = floats(residual, "add_reduced");
  auto* sums = dynamic_cast<FixedTensor*>(partial.sums.storage());
  if (!sums || sums->rows != x.rows || sums->cols != x.cols) throw shape_error("add_reduced: the sums do not have the residual's shape");
  const float* b = bias ? padded_data(*bias, x.cols, "add_reduced") : nullptr;
  if (mesh.size() > 1) mesh.all_reduce(std::span<int64_t>(sums->sums(), sums->rows * (sums->cols + 1)), deadline);
  check_poison(*sums);
  auto y = make_floats(x.rows, x.cols);
  for_chunks(x.rows, rows_per_task(x.cols),
             [&](size_t r) { kernels_.add_reduced_row(x.row(r), sums->sums() + r * x.cols, b, x.cols, y->row(r)); });
  return Tensor(y);
}

Tensor NativeBackend::take_rows(const Tensor& x, std::span<const uint32_t> rows) {
  const FloatTensor& in = floats(x, "take_rows");
  auto y = make_floats(rows.size(), in.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= in.rows) throw shape_error("take_rows: row " + std::to_string(rows[i]) + " of " + std::to_string(in.rows));
    std::memcpy(y->row(i), in.row(rows[i]), in.stride() * sizeof(float));
  }
  return Tensor(y);
}

Tensor NativeBackend::from_host(size_t rows, size_t cols, std::span<const float> values) {
  if (values.size() != rows * cols)
    throw shape_error("from_host: " + std::to_string(values.size()) + " values for " + std::to_string(rows) + " x " + std::to_string(cols));
  auto y = make_floats(rows, cols);
  for (size_t r = 0; r < rows; ++r) { std::fill(std::copy_n(values.data() + r * cols, cols, y->row(r)), y->row(r) + y->stride(), 0.0f); }
  return Tensor(y);
}

void NativeBackend::to_host(const Tensor& x, std::span<float> values) {
  const FloatTensor& in = floats(x, "to_host");
  if (values.size() != in.rows * in.cols)
    throw shape_error("to_host: " + std::to_string(values.size()) + " values for " + std::to_string(in.rows) + " x " +
                      std::to_string(in.cols));
  for (size_t r = 0; r < in.rows; ++r) std::copy_n(in.row(r), in.cols, values.data() + r * in.cols);
}

}  // namespace native

std::unique_ptr<Backend> make_native_backend(const std::string& isa, unsigned threads, bool fast_dense) {
  if (threads == 0 || threads > 1024)
    throw Error(Code::invalid_argument, "a backend needs 1 to 1024 threads, not " + std::to_string(threads), "--threads");
  require_cpu();
  return std::make_unique<native::NativeBackend>(native::choose_isa(isa), threads, fast_dense);
}

}  // namespace verbund::compute
