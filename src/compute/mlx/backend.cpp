#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/bytes.h"
#include "compute/mlx/attention.h"
#include "compute/mlx/border.h"
#include "compute/mlx/mlx_backend.h"
#include "compute/mlx/weights.h"
#include "compute/numerics.h"

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

// true for each row whose values all fit the fixed-point range; NaN does not.
mx::array fitting(const mx::array& v) { return mx::less_equal(mx::abs(v), mx::array(kFixedMax)); }

void throw_poisoned(const std::vector<size_t>& rows) {
  if (rows.empty()) return;
  std::string list;
  for (const size_t row : rows) list += (list.empty() ? "rows " : ", ") + std::to_string(row);
  throw Error(Error::Parts{Code::invalid_argument, Lost::request, "a partial sum left the fixed-point range (2^20) or is not a number",
                           list, "the prompt or the model's weights overflow; other requests are not affected"});
}

class MlxBackend final : public Backend {
 public:
  MlxBackend() { mx::set_cache_limit(kBufferCacheBytes); }

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
  // 16-bit dense weights widen the weight first.
  uint64_t step_bytes(size_t rows, size_t cols_total, size_t cols_max) const override {
    return uint64_t(rows) * (cols_total + 3 * cols_max) * sizeof(float) + widening_max_ + kBufferCacheBytes;
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
      // Rows of the other ranks are all-zero bits, so adding two f32 bit patterns as one int64 never carries.
      const size_t count = mine.rows() * mine.cols();
      std::vector<int64_t> bits(ceil_div(count, 2), 0);
      fetch(value_of(mine, "gather_embedding"), bits.data());
      mesh.all_reduce(std::span(bits), deadline);
      std::vector<float> whole(count);
      std::memcpy(whole.data(), bits.data(), count * sizeof(float));
      return upload(mine.rows(), mine.cols(), whole);
    });
  }

  Tensor rms_norm(const Tensor& x, const Vector& weight, float eps) override {
    return guarded("rms_norm", [&] { return keep(mx::fast::rms_norm(value_of(x, "rms_norm"), vector_of(weight), eps)); });
  }

  Tensor linear(const Tensor& x, const Weight& w, const Vector* bias) override {
    return guarded("linear", [&] {
      const mx::array y = product(x, w, "linear");
      return keep(bias ? mx::add(y, vector_of(*bias)) : y);
    });
  }

  // The f32 product; add_reduced() turns it into fixed point when there is more than one rank to add.
  Partial linear_partial(const Tensor& x, const Weight& w) override {
    return guarded("linear_partial", [&] { return Partial{keep(product(x, w, "linear_partial"))}; });
  }

  Partial zero_partial(size_t rows, size_t cols) override {
    return guarded("zero_partial", [&] { return Partial{keep(mx::zeros({to_int(rows), to_int(cols)}, mx::float32))}; });
  }

  Tensor add_reduced(const Tensor& residual, const Partial& partial, const Vector* bias, mesh::Mesh& mesh,
                     const Deadline& deadline) override {
    return guarded("add_reduced", [&] {
      const mx::array& v = value_of(partial.sums, "add_reduced");
      if (partial.sums.rows() != residual.rows() || partial.sums.cols() != residual.cols()) refuse("shapes differ", "add_reduced");
      const mx::array sum = mesh.size() == 1 ? checked_later(v) : reduced(v, mesh, deadline);
      const mx::array y = mx::add(value_of(residual, "add_reduced"), sum);
      return keep(bias ? mx::add(y, vector_of(*bias)) : y);
    });
  }

  Tensor attention(const Tensor& qkv, KvCache& cache, const AttentionParams& params, std::span<const Segment> segments) override {
    return guarded("attention", [&] {
      auto& kv = static_cast<MlxKvCache&>(cache);
      if (!segments_ || !segments_->same(segments)) segments_.emplace(segments, qkv.rows(), kv.layout);
      const Tensor out = keep(attend(value_of(qkv, "attention"), kv, params, *segments_));
      touched_.push_back({&kv, params.layer});
      return out;
    });
  }

  Tensor gated(const Tensor& gate_up, Activation activation) override {
    return guarded("gated", [&] {
      const mx::array& x = value_of(gate_up, "gated");
      const int rows = x.shape(0), n = x.shape(1) / 2;
      if (x.shape(1) % 2 != 0) refuse("an odd number of columns", "gated");
      const mx::array gate = mx::slice(x, {0, 0}, {rows, n}), up = mx::slice(x, {0, n}, {rows, 2 * n});
      return keep(mx::multiply(activation == Activation::silu ? silu(gate) : gelu_tanh(gate), up));
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
  static mx::array silu(const mx::array& x) { return mx::multiply(x, mx::sigmoid(x)); }
  static mx::array gelu_tanh(const mx::array& x) {
    const mx::array cubic = mx::multiply(mx::square(x), mx::multiply(x, mx::array(0.044715f)));
    const float c = std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;  // sqrt(2 / pi)
    const mx::array t = mx::tanh(mx::multiply(mx::add(x, cubic), mx::array(c)));
    return mx::multiply(mx::multiply(x, mx::array(0.5f)), mx::add(t, mx::array(1.0f)));
  }

  mx::array product(const Tensor& x, const Weight& w, std::string_view operation) {
    if (x.cols() != w.cols) refuse(std::to_string(x.cols()) + " columns for a weight of " + std::to_string(w.cols), operation);
    return multiply(value_of(x, operation), weight_of(w));
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

  // Evaluates `value` together with every row check so far, and copies it out.
  void fetch(const mx::array& value, void* into) {
    mx::array rows = mx::contiguous(value);
    std::vector<mx::array> wanted = checks_;
    wanted.push_back(rows);
    mx::eval(std::move(wanted));
    if (rows.nbytes() > 0) std::memcpy(into, rows.data<std::byte>(), rows.nbytes());
  }

  // One rank: nothing to add, so the sum stays in the graph, and rows out of range are found when the graph is evaluated.
  mx::array checked_later(const mx::array& v) {
    checks_.push_back(mx::all(fitting(v), 1));
    return v;
  }

  std::vector<size_t> take_poisoned() {
    std::vector<size_t> rows;
    for (mx::array& check : checks_)
      for (size_t r = 0; r < check.size(); ++r)
        if (!check.data<bool>()[r]) rows.push_back(r);
    checks_.clear();
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return rows;
  }

  // v * 2^30 is exact in f32 and its integer part exact in int64, so no rounding but the wanted one happens here; GPUs
  // without f64 compute the same.
  mx::array reduced(const mx::array& v, mesh::Mesh& mesh, const Deadline& deadline) {
    const size_t rows = static_cast<size_t>(v.shape(0)), count = v.size();
    const mx::array fits = fitting(v);
    const mx::array safe = mx::where(fits, v, mx::array(0.0f));
    mx::array fixed = mx::astype(mx::round(mx::multiply(safe, mx::array(static_cast<float>(kFixedOne)))), mx::int64);
    mx::array poisoned = mx::astype(mx::sum(mx::astype(mx::logical_not(fits), mx::int32), 1), mx::int64);
    mx::eval(fixed, poisoned);
    std::vector<int64_t> wire(count + rows);
    std::memcpy(wire.data(), fixed.data<int64_t>(), count * sizeof(int64_t));
    std::memcpy(wire.data() + count, poisoned.data<int64_t>(), rows * sizeof(int64_t));
    mesh.all_reduce(std::span(wire), deadline);

    std::vector<size_t> bad;
    for (size_t r = 0; r < rows; ++r)
      if (wire[count + r] != 0) bad.push_back(r);
    throw_poisoned(bad);
    mx::array sum = make_array(v.shape(), mx::float32);
    std::transform(wire.begin(), wire.begin() + static_cast<ptrdiff_t>(count), sum.data<float>(), from_fixed);
    return sum;
  }

  // A step whose logits nobody asked for still has to write its keys and values, or the graph would grow from step to step.
  // Rows out of range that nobody has heard of yet are marked in the cache: the sequence fails at its next read-out.
  void finish_step() {
    std::vector<mx::array> pending = checks_;
    append_touched(pending);
    mx::eval(std::move(pending));
    if (const std::vector<size_t> rows = take_poisoned(); !rows.empty() && segments_) mark_poisoned(rows);
    clear_step();
  }

  // NaN keys make every score of whoever attends to them NaN, here and for everybody who shares the prefix, which has the
  // same fault; other sequences never read these slots before they are written again.
  void mark_poisoned(const std::vector<size_t>& rows) {
    std::vector<int32_t> slots;
    for (const size_t row : rows)
      if (row < segments_->slots().size()) slots.push_back(segments_->slots().data<int32_t>()[row]);
    const mx::array at(slots.begin(), {to_int(slots.size())}, mx::int32);
    for (const auto& [cache, layer] : touched_) {
      mx::array& keys = cache->keys[layer];
      const mx::Shape shape{to_int(slots.size()), 1, keys.shape(1), keys.shape(2)};
      keys = mx::scatter(keys, at, mx::full(shape, std::numeric_limits<float>::quiet_NaN(), keys.dtype()), 0);
    }
    std::vector<mx::array> pending;
    append_touched(pending);
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
    checks_.clear();
    segments_.reset();
  }

  void note_widening(const formats::TensorSource& source, std::span<const WeightPart> parts) const {
    widening_max_ = std::max(widening_max_, widening_bytes(source, parts));
  }

  std::vector<std::weak_ptr<Node>> nodes_;               // of this step
  std::vector<std::pair<MlxKvCache*, size_t>> touched_;  // layers appended to in this step
  std::vector<mx::array> checks_;                        // bool [rows] each: rows in range
  std::optional<StepSegments> segments_;
  std::optional<Error> failed_;        // in end_step()
  mutable uint64_t widening_max_ = 0;  // of the weights planned or loaded so far
};

}  // namespace

std::unique_ptr<Backend> make_backend() {
  return guarded("start", []() -> std::unique_ptr<Backend> { return std::make_unique<MlxBackend>(); });
}

}  // namespace verbund::compute::mlx_impl
