// The native backend: eager CPU kernels, one thread pool, step memory that is recycled.
//
// Each operation checks shapes, cuts its work into tasks that depend on their index alone, and runs them on the pool.
// How the work is cut never changes a result (numerics.h). The files: backend.cpp has the small operations, products.cpp
// the matrix products, attend.cpp attention, load.cpp the way in for weights.
#pragma once

#include <string>

#include "compute/backend.h"
#include "compute/native/isa.h"
#include "compute/native/packed.h"
#include "compute/native/tensors.h"
#include "compute/native/thread_pool.h"

namespace verbund::compute::native {

class NativeBackend : public Backend {
 public:
  NativeBackend(IsaChoice isa, unsigned threads, bool fast_dense = false);

  std::string_view name() const override { return "native"; }
  std::string description() const override;
  bool exact() const override { return true; }

  std::unique_ptr<Weight> load(const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit) override;
  std::vector<std::unique_ptr<Weight>> load_all(const formats::TensorSource& source, std::span<const WeightRequest> requests,
                                                const LoadProgress& progress) override;
  std::unique_ptr<Vector> load_vector(std::span<const float> values) override;
  uint64_t weight_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) const override;
  uint64_t load_scratch_bytes() const override;
  std::unique_ptr<KvCache> make_kv_cache(const KvLayout& layout) override;
  uint64_t step_bytes(size_t rows, size_t cols_total, size_t cols_max) const override;
  uint64_t attention_bytes(size_t context, size_t head_dim) const override;

  void begin_step() override {}
  void end_step() override {}

  Tensor embed(const Weight& table, std::span<const int32_t> ids, size_t first_row) override;
  Tensor gather_embedding(const Tensor& mine, mesh::Mesh& mesh, const Deadline& deadline) override;
  Tensor rms_norm(const Tensor& x, const Vector& weight, float eps) override;
  Tensor linear(const Tensor& x, const Weight& w, const Vector* bias) override;
  Partial linear_partial(const Tensor& x, const Weight& w) override;
  Partial zero_partial(size_t rows, size_t cols) override;
  Tensor add_reduced(const Tensor& residual, const Partial& partial, const Vector* bias, mesh::Mesh& mesh,
                     const Deadline& deadline) override;
  Tensor attention(const Tensor& qkv, KvCache& cache, const AttentionParams& params, std::span<const Segment> segments) override;
  Tensor gated(const Tensor& gate_up, Activation activation) override;
  Tensor norm_linear(const Tensor& x, const Vector& norm, float eps, const Weight& w, const Vector* bias) override;
  Partial norm_mlp(const Tensor& x, const Vector& norm, float eps, const Weight& gate_up, const Vector* bias, Activation activation,
                   const Weight& down) override;
  Tensor take_rows(const Tensor& x, std::span<const uint32_t> rows) override;
  Tensor from_host(size_t rows, size_t cols, std::span<const float> values) override;
  void to_host(const Tensor& x, std::span<float> values) override;

  size_t step_bytes_peak() const { return pool_->held_bytes_peak(); }

 private:
  std::shared_ptr<FloatTensor> make_floats(size_t rows, size_t cols);
  void check_product(const FloatTensor& x, const PackedWeight& w, const Vector* bias) const;
  static ProductOut values_of(FloatTensor& y, const Vector* bias);
  static ProductOut sums_of(FixedTensor& sums, size_t unit);
  // Whether a step of so many rows is cut by rows, each thread with whole blocks of sixteen, or by outputs.
  bool by_rows(size_t rows) const { return rows >= (threads_.threads() + 1) * kRowBlock; }
  size_t rows_of_chunk(size_t rows) const;
  void multiply(FloatTensor& x, const PackedWeight& w, const ProductOut& out);
  const QuantisedRows& quantise(FloatTensor& x, const Piece& piece);
  const PairRows& round_pairs(FloatTensor& x);
  void store_keys_values(const FloatTensor& qkv, NativeKvCache& cache, const AttentionParams& params, std::span<const Segment> segments,
                         float* queries);
  // Runs f(i) for every i, in chunks of `grain` a task.
  template <class F>
  void for_chunks(size_t n, size_t grain, F&& f) {
    threads_.parallel_for(ceil_div(n, grain), [&](size_t task) {
      for (size_t i = task * grain; i < std::min(n, (task + 1) * grain); ++i) f(i);
    });
  }

  // Runs f(rows) for chunks of a step's rows.
  template <class F>
  void for_row_chunks(size_t rows, F&& f) {
    const size_t chunk = rows_of_chunk(rows);
    threads_.parallel_for(ceil_div(rows, chunk), [&](size_t i) { f(Range{i * chunk, std::min((i + 1) * chunk, rows)}); });
  }

  IsaChoice isa_;
  const Kernels& kernels_;
  bool fast_dense_;
  ThreadPool threads_;
  WeightArena arena_;
  PageJoiner pages_;
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
};

const PackedWeight& packed(const Weight& w);
// A vector of this backend, `size` long and padded to 16. Throws invalid_argument naming the operation.
const float* padded_data(const Vector& v, size_t size, const char* operation);

}  // namespace verbund::compute::native
