// A dozen coarse operations on opaque tensors: all that model code knows of a device.
//
// Two implementations: native (src/compute/native, CPU kernels, eager) and mlx (src/compute/mlx, a loadable module,
// lazily built graphs). Order of summation, rounding and the formulas of each operation are fixed in numerics.h; the
// native backend follows them bit for bit on every instruction set, thread count and batch shape. The slow, obvious
// version of each operation is reference.h; ops_cases.h describes the cases from which parity tests and benchmarks come.
//
// Activations are f32 [rows, cols], one row a token of the step. A Backend is used by one thread (it may run a pool
// inside). Tensors live until end_step(); weights, vectors and KV caches live as long as their handle, and no longer
// than the Backend. Errors: invalid_argument (shapes: our mistake, but checked), resource_exhausted (allocation).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/deadline.h"
#include "formats/tensor_source.h"
#include "mesh/mesh.h"

namespace verbund::compute {

// Opaque activation. Cheap to copy (shared handle).
class Tensor {
 public:
  struct Storage {
    virtual ~Storage() = default;
    size_t rows = 0, cols = 0;
  };
  Tensor() = default;
  explicit Tensor(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  size_t rows() const { return storage_ ? storage_->rows : 0; }
  size_t cols() const { return storage_ ? storage_->cols : 0; }
  Storage* storage() const { return storage_.get(); }
  explicit operator bool() const { return storage_ != nullptr; }

 private:
  std::shared_ptr<Storage> storage_;
};

// Opaque weights. `bytes` is what they occupy in this backend's own layout (nothing is kept twice).
struct Weight {
  virtual ~Weight() = default;
  size_t rows = 0, cols = 0;  // [out, in] held here
  uint64_t bytes = 0;
};

// Some rows and columns of one stored matrix. Several parts are stacked by rows: q, k and v are one Weight. The parts of
// one Weight may be stored in different formats (mixed files: v often has more bits than q), and a part may have any
// number of rows; the columns are the same for all.
struct WeightPart {
  std::string name;
  Range rows;
  Range cols;
};

// What load() is asked for.
struct WeightRequest {
  std::vector<WeightPart> parts;
  size_t unit = 0;
};
using LoadProgress = std::function<void(uint64_t bytes_done)>;  // ascending; called on the thread that loads

// Keys and values of every layer this rank holds, in blocks of kKvBlock positions. Block ids come from the scheduler.
constexpr size_t kKvBlock = 32;
enum class KvType { f16, f32, q8 };  // q8: int8 codes and an f32 scale for each position's key and value (numerics.h)
struct KvLayout {
  size_t layers, kv_heads, head_dim, blocks;
  KvType type = KvType::f16;
  // Of one KV head in one block: keys and values, without and with their scales.
  size_t codes_bytes() const { return 2 * kKvBlock * head_dim * (type == KvType::f16 ? 2 : type == KvType::f32 ? 4 : 1); }
  size_t head_bytes() const { return codes_bytes() + (type == KvType::q8 ? 2 * kKvBlock * sizeof(float) : 0); }
  uint64_t bytes() const { return uint64_t(layers) * kv_heads * blocks * head_bytes(); }
};
struct KvCache {
  virtual ~KvCache() = default;
  KvLayout layout{};
  uint64_t bytes = 0;
};

// The consecutive tokens of one sequence inside a step. Rows of the step's tensors are the segments' tokens in order.
struct Segment {
  uint32_t first_row;                // row in the step's tensors
  uint32_t rows;                     // tokens of this segment
  uint32_t first_position;           // position of its first token in the sequence
  std::span<const uint32_t> blocks;  // KV block i holds positions [32 i, 32 i + 32); covers first_position + rows
};

enum class RopeMode { none, half, interleaved };

// cos and sin (already times the attention factor) of position p, pair i: [p * pairs + i]. Made by model/rope.h.
struct RopeTable {
  size_t pairs = 0;  // rotated dims / 2
  std::vector<float> cos, sin;
};

struct AttentionParams {
  size_t layer;                          // index into the KvCache
  size_t heads, kv_heads, head_dim;      // held by this rank
  std::span<const uint32_t> kv_of_head;  // local KV head that local head h reads
  float scale;
  size_t window = 0;  // 0: full. Key j visible to query i iff j <= i and (window == 0 or i - j < window)
  RopeMode rope_mode = RopeMode::half;
  const RopeTable* rope = nullptr;
  const class Vector* q_norm = nullptr;  // [head_dim], RMS per head before RoPE; null: none
  const class Vector* k_norm = nullptr;
  float norm_eps = 0;
};

enum class Activation { silu, gelu_tanh };

// A replicated f32 vector (norm weights, biases).
class Vector {
 public:
  virtual ~Vector() = default;
  size_t size = 0;
};

// Partial sums of a row-parallel product, in 64-bit fixed point (numerics.h), still on the device.
struct Partial {
  Tensor sums;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;    // "native", "mlx"
  virtual std::string description() const = 0;  // "native, avx512 (VNNI), 2 threads"
  virtual bool exact() const = 0;               // bit-identical for any split (native), or only across ranks (mlx)

  // ---- weights in. Reads only the given ranges, in bands, straight into the final layout.
  // `unit`: 0 for column-parallel use (linear, head, embed); for row-parallel use (linear_partial) the number of columns
  // summed in f32 before rounding to fixed point. A part's column range begins on a multiple of the unit.
  virtual std::unique_ptr<Weight> load(const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit) = 0;
  // All of these, in the order in which a step uses them: faster than one by one where a backend has several threads.
  virtual std::vector<std::unique_ptr<Weight>> load_all(const formats::TensorSource& source, std::span<const WeightRequest> requests,
                                                        const LoadProgress& progress) {
    std::vector<std::unique_ptr<Weight>> weights;
    uint64_t bytes = 0;
    for (const WeightRequest& r : requests) {
      weights.push_back(load(source, r.parts, r.unit));
      bytes += weights.back()->bytes;
      if (progress) progress(bytes);
    }
    return weights;
  }
  virtual std::unique_ptr<Vector> load_vector(std::span<const float> values) = 0;
  // What load() will occupy, known before anything is read.
  virtual uint64_t weight_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) const = 0;
  // Largest temporary of load() beyond the weight itself.
  virtual uint64_t load_scratch_bytes() const = 0;
  virtual std::unique_ptr<KvCache> make_kv_cache(const KvLayout& layout) = 0;
  // What a step of `rows` rows needs at most: `cols_total` f32 columns are alive at once (fixed-point sums count as two
  // each), and the widest tensor has `cols_max`. Quantised activations and rotated queries are counted on top.
  virtual uint64_t step_bytes(size_t rows, size_t cols_total, size_t cols_max) const = 0;
  // What attention holds beside that where threads share a sequence of up to `context` positions.
  virtual uint64_t attention_bytes(size_t context, size_t head_dim) const { return 0; }

  // ---- one step
  virtual void begin_step() = 0;
  virtual void end_step() = 0;  // frees the step's tensors

  // Rows `ids` of the table; ids outside [first_row, first_row + table.rows) give zero rows.
  virtual Tensor embed(const Weight& table, std::span<const int32_t> ids, size_t first_row) = 0;
  // Makes an embedding whole when it is sharded: each row is non-zero on exactly one rank. Bit-exact (sums bit patterns).
  virtual Tensor gather_embedding(const Tensor& mine, mesh::Mesh& mesh, const Deadline& deadline) = 0;
  virtual Tensor rms_norm(const Tensor& x, const Vector& weight, float eps) = 0;
  virtual Tensor linear(const Tensor& x, const Weight& w, const Vector* bias) = 0;  // x W^T + b: [rows, w.rows]
  virtual Partial linear_partial(const Tensor& x, const Weight& w) = 0;             // row-parallel
  virtual Partial zero_partial(size_t rows, size_t cols) = 0;                       // what a rank without a share contributes
  // residual + (sum over ranks of partial, as f32) + bias. Throws invalid_argument with Lost::request and the rows in
  // Error::where if a value left the fixed-point range on any rank (every rank sees the same error).
  virtual Tensor add_reduced(const Tensor& residual, const Partial& partial, const Vector* bias, mesh::Mesh& mesh,
                             const Deadline& deadline) = 0;
  // qkv: [rows, (heads + 2 kv_heads) * head_dim], q heads then k heads then v heads. Norms and rotates q and k, appends
  // k and v to the cache at the segment's positions, attends. Returns [rows, heads * head_dim].
  virtual Tensor attention(const Tensor& qkv, KvCache& cache, const AttentionParams& params, std::span<const Segment> segments) = 0;
  // gate_up: [rows, 2 n], gate columns first -> act(gate) * up: [rows, n].
  virtual Tensor gated(const Tensor& gate_up, Activation activation) = 0;
  // The same operations one after another. A backend may fuse them, so that what lies between stays in its caches.
  virtual Tensor norm_linear(const Tensor& x, const Vector& norm, float eps, const Weight& w, const Vector* bias) {
    return linear(rms_norm(x, norm, eps), w, bias);
  }
  virtual Partial norm_mlp(const Tensor& x, const Vector& norm, float eps, const Weight& gate_up, const Vector* bias, Activation activation,
                           const Weight& down) {
    return linear_partial(gated(norm_linear(x, norm, eps, gate_up, bias), activation), down);
  }
  virtual Tensor take_rows(const Tensor& x, std::span<const uint32_t> rows) = 0;

  // ---- host boundary
  virtual Tensor from_host(size_t rows, size_t cols, std::span<const float> values) = 0;
  virtual void to_host(const Tensor& x, std::span<float> values) = 0;  // rows * cols
};

// isa: "auto", "avx512" (the best form of AVX-512 this CPU has), "avx512bw" (VNNI left unused), "avx2", "neon_i8mm", "neon_dotprod",
// "neon", "scalar" (the reference). Throws unimplemented / invalid_argument naming what this CPU and build have. 1 to 1024 threads.
// fast_dense: dense products in bf16, numerics.h point 1.
std::unique_ptr<Backend> make_native_backend(const std::string& isa, unsigned threads, bool fast_dense = false);
std::vector<std::string> native_isas();  // runnable here, best first

// Loads libverbund_mlx beside the program. Throws unavailable saying what is missing.
std::unique_ptr<Backend> make_mlx_backend();

}  // namespace verbund::compute
