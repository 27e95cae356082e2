#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "compute/mlx/attention.h"
#include "compute/mlx/border.h"
#include "compute/mlx/mlx_backend.h"
#include "compute/mlx/ops.h"
#include "compute/mlx/sums.h"
#include "compute/mlx/weights.h"

namespace verbund::compute::mlx_impl {
namespace {

// MLX keeps freed buffers for reuse. Unbounded, that cache alone would break what was announced to the accountant.
constexpr uint64_t kBufferCacheBytes = 64 << 20;

struct Node final : Tensor::Storage {
  std::optional<mx::array> value;  // none after end_step()
};

int to_int(size_t n) { return static_cast<int>(n); }

[[noreturn]] void refuse(std::string what, std::string_view operation) {
  throw Error(Code::invalid_argument, std::move(what), "MLX, " + std::string(operation));
}

const mx::array& value_of(const Tensor& t, std::string_view operation) {
  const auto* node = static_cast<const Node*>(t.storage());
  if (node == nullptr || !node->value) refuse("a tensor of no step, or of a step that has ended", operation);
  return *node->value;
}

const MlxWeight& weight_of(const Weight& w) { return static_cast<const MlxWeight&>(w); }
const mx::array& vector_of(const Vector& v) { return static_cast<const MlxVector&>(v).values; }

class MlxBackend final : public Backend {
 public:
  explicit MlxBackend(Form form) : ops_(form) { mx::set_cache_limit(kBufferCacheBytes); }
  MlxCounts take_counts() { return ops_.census().take(); }

  std::string_view name() const override { return "mlx"; }
  bool exact() const override { return false; }
  std::string description() const override {
    return guarded("description", [&] {
      const mx::Device& device = mx::default_device();
      std::string text = std::string("mlx ") + mx::version() + (device == mx::Device::gpu ? ", gpu" : ", cpu");
      const auto& info = mx::device_info(device);
      if (const auto found = info.find("device_name"); found != info.end())
        if (const auto* name = std::get_if<std::string>(&found->second)) text += " (" + *name + ")";
      return text;
    });
  }

  std::unique_ptr<Weight> load(const formats::TensorSource& source, std::span<const WeightPart> parts, size_t) override {
    return guarded("load", [&]() -> std::unique_ptr<Weight> {
      note_widening(source, parts);
      return load_weight(source, parts);
    });
  }
  std::unique_ptr<Vector> load_vector(std::span<const float> values) override {
    return guarded("load_vector", [&]() -> std::unique_ptr<Vector> {
      return std::make_unique<MlxVector>(mx::array(values.begin(), {to_int(values.size())}, mx::float32));
    });
  }
  uint64_t weight_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) const override {
    note_widening(source, parts);
    return stored_bytes(source, parts);
  }
  uint64_t load_scratch_bytes() const override { return 2 * kBandBytes; }  // codes, scales and biases of one band
  std::unique_ptr<KvCache> make_kv_cache(const KvLayout& layout) override {
    return guarded("make_kv_cache", [&]() -> std::unique_ptr<KvCache> { return make_cache(layout); });
  }
  // Intermediates of a lazily built step die as their last reader runs; three of the widest live at once. Products with
  // 16-bit dense weights widen the weight first. A batch of scattered sequences is gathered.
  uint64_t step_bytes(size_t rows, size_t cols_total, size_t cols_max) const override {
    return uint64_t(rows) * (cols_total + 3 * cols_max) * sizeof(float) + widening_max_ + kBatchBytes + kBufferCacheBytes;
  }

  void begin_step() override {
    clear_step();
    if (failed_) throw *std::exchange(failed_, std::nullopt);
  }
  // Never throws, since it also runs while an error is on its way: a failure is kept for the next step.
  void end_step() override {
    try {
      finish_step();
    } catch (...) {
      clear_step();
      failed_ = error_of_mlx("end_step");
    }
  }

  Tensor embed(const Weight& table, std::span<const int32_t> ids, size_t first_row) override {
    return guarded("embed", [&] {
      std::vector<int32_t> local;
      std::vector<uint8_t> here;
      for (const int32_t id : ids) {
        const int64_t row = int64_t(id) - int64_t(first_row);
        here.push_back(row >= 0 && row < int64_t(table.rows));
        local.push_back(here.back() ? int32_t(row) : 0);
      }
      if (std::none_of(here.begin(), here.end(), [](uint8_t h) { return h; }))
        return keep(mx::zeros({to_int(ids.size()), to_int(table.cols)}, mx::float32));
      const mx::array rows = take_f32(weight_of(table), mx::array(local.begin(), {to_int(ids.size())}, mx::int32));
      if (std::all_of(here.begin(), here.end(), [](uint8_t h) { return h; })) return keep(rows);
      const mx::array mask = mx::astype(mx::array(here.begin(), {to_int(ids.size()), 1}, mx::uint8), mx::bool_);
      return keep(mx::where(mask, rows, mx::array(0.0f)));
    });
  }

  Tensor gather_embedding(const Tensor& mine, mesh::Mesh& mesh, const Deadline& deadline) override {
    if (mesh.size() == 1) return mine;
    return guarded("gather_embedding", [&] {
      if (auto* graph = dynamic_cast<GraphMesh*>(&mesh)) return keep(sums_.gather(value_of(mine, "gather_embedding"), *graph, deadline));
      // Rows of the other ranks are all-zero bits, so adding two f32 bit patterns as one int64 never carries.
      const size_t count = mine.rows() * mine.cols();
      std::vector<int64_t> bits(ceil_div(count, 2), 0);
      fetch(value_of(mine, "gather_embedding"), bits.data());
      ops_.census().note_host_sum();
      mesh.all_reduce(std::span(bits), deadline);
      std::vector<float> whole(count);
      std::memcpy(whole.data(), bits.data(), count * sizeof(float));
      return upload(mine.rows(), mine.cols(), whole);
    });
  }

  Tensor rms_norm(const Tensor& x, const Vector& weight, float eps) override {
    return guarded("rms_norm", [&] { return keep(ops_.rms_norm(value_of(x, "rms_norm"), vector_of(weight), eps)); });
  }

  Tensor linear(const Tensor& x, const Weight& w, const Vector* bias) override {
    return guarded("linear", [&] {
      const mx::array y = product(x, w, "linear");
      return keep(bias ? ops_.add(vector_of(*bias), y) : y);
    });
  }

  // The product as it is; add_reduced() turns it into fixed point when there is more than one rank to add.
  Partial linear_partial(const Tensor& x, const Weight& w) override {
    return guarded("linear_partial", [&] { return Partial{keep(product(x, w, "linear_partial"))}; });
  }

  Partial zero_partial(size_t rows, size_t cols) override {
    return guarded("zero_partial", [&] { return Partial{keep(mx::zeros({to_int(rows), to_int(cols)}, mx::float32))}; });
  }

  Tensor add_reduced(const Tensor& residual, const Partial& partial, const Vector* bias, mesh::Mesh& mesh,
                     const Deadline& deadline) override {
    return guarded("add_reduced", [&] {
      const mx::array &v = value_of(partial.sums, "add_reduced"), &h = value_of(residual, "add_reduced");
      if (partial.sums.rows() != residual.rows() || partial.sums.cols() != residual.cols()) refuse("shapes differ", "add_reduced");
      mx::array y = ops_.add(h, mesh.size() == 1 ? v : reduced(v, mesh, deadline));
      if (bias) y = ops_.add(y, vector_of(*bias));
      if (mesh.size() == 1) follow(h, y);
      return keep(std::move(y));
    });
  }

  Tensor attention(const Tensor& qkv, KvCache& cache, const AttentionParams& params, std::span<const Segment> segments) override {
    return guarded("attention", [&] {
      auto& kv = static_cast<MlxKvCache&>(cache);
      if (!segments_ || !segments_->same(segments)) segments_.emplace(segments, qkv.rows(), kv.layout);
      const Tensor out = keep(attend(attention_, value_of(qkv, "attention"), kv, params, *segments_));
      touched_.push_back({&kv, params.layer});
      return out;
    });
  }

  Tensor gated(const Tensor& gate_up, Activation activation) override {
    return guarded("gated", [&] {
      const mx::array& x = value_of(gate_up, "gated");
      if (x.shape(1) % 2 != 0) refuse("an odd number of columns", "gated");
      const std::vector<mx::array> halves = mx::split(x, 2, 1);
      return keep(ops_.gated(halves[0], halves[1], activation));
    });
  }

  Tensor take_rows(const Tensor& x, std::span<const uint32_t> rows) override {
    return guarded("take_rows", [&] {
      for (const uint32_t row : rows)
        if (row >= x.rows()) refuse("row " + std::to_string(row) + " of " + std::to_string(x.rows()), "take_rows");
      return keep(mx::take(value_of(x, "take_rows"), mx::array(rows.begin(), {to_int(rows.size())}, mx::uint32), 0));
    });
  }

  Tensor from_host(size_t rows, size_t cols, std::span<const float> values) override {
    return guarded("from_host", [&] {
      if (values.size() != rows * cols) refuse("wrong number of values", "from_host");
      return upload(rows, cols, values);
    });
  }

  void to_host(const Tensor& x, std::span<float> values) override {
    guarded("to_host", [&] {
      if (values.size() != x.rows() * x.cols()) refuse("wrong number of values", "to_host");
      fetch(value_of(x, "to_host"), values.data());
      throw_poisoned(take_poisoned());
    });
  }

 private:
  mx::array product(const Tensor& x, const Weight& w, std::string_view operation) {
    if (x.cols() != w.cols) refuse(std::to_string(x.cols()) + " columns for a weight of " + std::to_string(w.cols), operation);
    return multiply(ops_, value_of(x, operation), weight_of(w));
  }

  Tensor keep(mx::array value) {
    auto node = std::make_shared<Node>();
    node->rows = static_cast<size_t>(value.shape(0));
    node->cols = static_cast<size_t>(value.shape(1));
    node->value = std::move(value);
    nodes_.push_back(node);
    return Tensor(std::move(node));
  }

  Tensor upload(size_t rows, size_t cols, std::span<const float> values) {
    return keep(mx::array(values.begin(), {to_int(rows), to_int(cols)}, mx::float32));
  }

  // Evaluates `value` together with what tells the rows out of range so far, and copies it out.
  void fetch(const mx::array& value, void* into) {
    mx::array rows = mx::contiguous(mx::astype(value, mx::float32));
    evaluate({rows});
    if (rows.nbytes() > 0) std::memcpy(into, rows.data<std::byte>(), rows.nbytes());
  }

  void evaluate(std::vector<mx::array> roots) {
    std::vector<mx::array> checks;
    for (const mx::array& end : std::exchange(ends_, {})) checks.push_back(fitting_rows(end));
    roots.insert(roots.end(), checks.begin(), checks.end());
    sums_.evaluate(std::move(roots), ops_.census());
    for (const mx::array& check : checks)
      for (size_t r = 0; r < check.size(); ++r)
        if (!check.data<bool>()[r]) poisoned_.push_back(r);
  }

  // One rank: nothing is added in fixed point, and a value that is not finite stays so through all later additions. So it is
  // the end of the residual stream that is looked at, once a step, and not each sum.
  void follow(const mx::array& residual, const mx::array& next) {
    const auto end = std::find_if(ends_.begin(), ends_.end(), [&](const mx::array& e) { return e.id() == residual.id(); });
    if (end == ends_.end())
      ends_.push_back(next);
    else
      *end = next;
  }

  mx::array reduced(const mx::array& v, mesh::Mesh& mesh, const Deadline& deadline) {
    if (auto* graph = dynamic_cast<GraphMesh*>(&mesh)) return sums_.sum(v, *graph, deadline);
    return sum_on_host(v, mesh, deadline, ops_.census());
  }

  std::vector<size_t> take_poisoned() {
    std::vector<size_t> rows = std::exchange(poisoned_, {});
    for (const size_t row : sums_.take_poisoned()) rows.push_back(row);
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return rows;
  }

  // A step whose logits nobody asked for still has to write its keys and values, or the graph would grow from step to step.
  // Rows out of range that nobody has heard of yet are marked in the cache: the sequence fails at its next read-out.
  void finish_step() {
    std::vector<mx::array> pending;
    append_touched(pending);
    std::erase_if(pending, [](const mx::array& a) { return a.is_available(); });
    if (!pending.empty() || !ends_.empty() || sums_.pending()) evaluate(std::move(pending));
    if (const std::vector<size_t> rows = take_poisoned(); !rows.empty() && segments_) mark_poisoned(rows);
    clear_step();
  }

  // NaN keys make every score of whoever attends to them NaN, here and for everybody who shares the prefix, which has the
  // same fault; other sequences never read these slots before they are written again.
  void mark_poisoned(const std::vector<size_t>& rows) {
    std::vector<int32_t> slots;
    for (const size_t row : rows)
      if (row < segments_->slots().size()) slots.push_back(segments_->slots()[row]);
    std::vector<mx::array> pending;
    for (const auto& [cache, layer] : touched_) {
      spoil_keys(*cache, layer, slots);
      pending.push_back(cache->keys[layer]);
    }
    mx::eval(std::move(pending));
  }

  void append_touched(std::vector<mx::array>& to) const {
    for (const auto& [cache, layer] : touched_) {
      to.push_back(cache->keys[layer]);
      to.push_back(cache->values[layer]);
    }
  }

  void clear_step() {
    for (const auto& weak : nodes_)
      if (const auto node = weak.lock()) node->value.reset();
    nodes_.clear();
    touched_.clear();
    ends_.clear();
    poisoned_.clear();
    sums_.clear();
    segments_.reset();
  }

  void note_widening(const formats::TensorSource& source, std::span<const WeightPart> parts) const {
    widening_max_ = std::max(widening_max_, widening_bytes(source, parts));
  }

  Ops ops_;
  AttentionState attention_{ops_};
  std::vector<std::weak_ptr<Node>> nodes_;               // of this step
  std::vector<std::pair<MlxKvCache*, size_t>> touched_;  // layers appended to in this step
  std::vector<mx::array> ends_;                          // of residual streams, not checked yet
  std::vector<size_t> poisoned_;                         // rows found out of range
  LaterSums sums_;
  std::optional<StepSegments> segments_;
  std::optional<Error> failed_;        // in end_step()
  mutable uint64_t widening_max_ = 0;  // of the weights planned or loaded so far
};

}  // namespace

std::unique_ptr<Backend> make_backend() {
  return guarded("start", []() -> std::unique_ptr<Backend> { return std::make_unique<MlxBackend>(form_of_device()); });
}

std::unique_ptr<Backend> make_backend_in_gpu_form() {
  return guarded("start", []() -> std::unique_ptr<Backend> {
    return std::make_unique<MlxBackend>(Form{.gpu = true, .compiled = form_of_device().compiled});
  });
}

MlxCounts take_counts(Backend& backend) { return static_cast<MlxBackend&>(backend).take_counts(); }

}  // namespace verbund::compute::mlx_impl
