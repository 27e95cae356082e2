#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "model/family.h"
#include "model/rope.h"
#include "model/shard_weights.h"

namespace verbund::model {
namespace {

using compute::Backend;
using compute::Tensor;

compute::KvLayout kv_layout(const DecoderSpec& spec, const RankShard& shard, const DecoderOptions& options) {
  return {shard.layers.size(), shard.kv_heads.size(), spec.head_dim, options.kv_blocks, options.kv_type};
}

size_t rope_pairs(const DecoderSpec& spec) { return spec.rope.dims / 2; }

// A rank without heads or MLP units loads nothing for them and contributes zeros (shares may be that uneven).
bool holds_nothing(const ShardWeight& w) {
  return std::all_of(w.parts.begin(), w.parts.end(), [](const auto& p) { return p.rows.empty() || p.cols.empty(); });
}

std::vector<float> slice(const std::vector<float>& all, Range r) {
  return {all.begin() + static_cast<long>(r.begin), all.begin() + static_cast<long>(r.end)};
}

// What a rank sends of the fixed-point sums, for the trace.
int64_t sums_bytes(size_t rows, size_t cols, const mesh::Mesh& tp) {
  return tp.size() == 1 ? 0 : static_cast<int64_t>(rows * cols * sizeof(int64_t));
}

}  // namespace

struct Decoder::Layer {
  size_t index = 0;  // global
  LayerSpec spec;
  std::unique_ptr<compute::Vector> attention_norm, mlp_norm, q_norm, k_norm;
  std::unique_ptr<compute::Vector> qkv_bias, o_bias, gate_up_bias, down_bias;
  std::unique_ptr<compute::Weight> qkv, o, gate_up, down;
};

namespace {

// Vectors of a layer as this rank needs them.
class VectorReader {
 public:
  VectorReader(const formats::ModelFiles& files, Backend& backend, size_t layer) : files_(files), backend_(backend), layer_(layer) {}

  std::vector<float> values(Role role, bool bias) const {
    return files_.tensors->read_vector(tensor_name(files_.container, role, layer_, bias));
  }
  std::unique_ptr<compute::Vector> norm(Role role) const { return backend_.load_vector(values(role, false)); }
  std::unique_ptr<compute::Vector> bias(Role role) const { return backend_.load_vector(values(role, true)); }
  std::unique_ptr<compute::Vector> stacked_bias(std::initializer_list<std::pair<Role, Range>> parts) const {
    std::vector<float> all;
    for (const auto& [role, range] : parts) {
      const std::vector<float> piece = slice(values(role, true), range);
      all.insert(all.end(), piece.begin(), piece.end());
    }
    return backend_.load_vector(all);
  }

 private:
  const formats::ModelFiles& files_;
  Backend& backend_;
  size_t layer_;
};

}  // namespace

DecoderBytes decoder_bytes(const formats::ModelFiles& files, const DecoderSpec& spec, const Units& units, const RankShard& shard,
                           const Backend& backend, const DecoderOptions& options) {
  DecoderBytes bytes;
  for (const ShardWeight& w : shard_weights(files, spec, units, shard))
    if (!holds_nothing(w)) bytes.weights += backend.weight_bytes(*files.tensors, w.parts);
  bytes.kv = kv_layout(spec, shard, options).bytes();
  bytes.tables = uint64_t(options.context) * rope_pairs(spec) * 2 * sizeof(float);
  const size_t qkv = (shard.heads.size() + 2 * shard.kv_heads.size()) * spec.head_dim;
  const size_t attention = qkv + shard.heads.size() * spec.head_dim;
  // Alive at once: residual, its successor and the norm, the block's own tensors, and the fixed-point sums (8 bytes each).
  const size_t alive = 3 * spec.hidden + std::max(attention, 3 * shard.mlp.size()) + 2 * spec.hidden;
  bytes.activations = backend.step_bytes(options.step_rows_max, alive, std::max({qkv, 2 * shard.mlp.size(), spec.hidden})) +
                      backend.attention_bytes(options.context, spec.head_dim);
  bytes.outputs = shard.last_stage() ? 2 * sizeof(float) * options.logit_rows_max * shard.vocabulary.size()
                                     : sizeof(float) * options.step_rows_max * spec.hidden;
  bytes.load_scratch = backend.load_scratch_bytes();
  return bytes;
}

Decoder::Decoder(const formats::ModelFiles& files, const DecoderSpec& spec, const Units& units, const RankShard& shard, Backend& backend,
                 const DecoderOptions& options, const Progress& progress)
    : spec_(spec), shard_(shard), backend_(backend) {
  layers_.resize(shard.layers.size());
  std::vector<ShardWeight> held = shard_weights(files, spec, units, shard);
  std::erase_if(held, holds_nothing);
  std::vector<compute::WeightRequest> requests;
  for (const ShardWeight& w : held) requests.push_back({w.parts, w.unit});
  std::vector<std::unique_ptr<compute::Weight>> weights = backend.load_all(*files.tensors, requests, progress);
  for (size_t i = 0; i < held.size(); ++i) place(held[i], std::move(weights[i]));
  const Range q{shard.heads.begin * spec.head_dim, shard.heads.end * spec.head_dim};
  const Range kv{shard.kv_heads.begin * spec.head_dim, shard.kv_heads.end * spec.head_dim};
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.index = shard.layers.begin + i;
    layer.spec = spec.layers[layer.index];
    const VectorReader read(files, backend, layer.index);
    layer.attention_norm = read.norm(Role::attention_norm);
    layer.mlp_norm = read.norm(Role::mlp_norm);
    if (spec.qk_norm) layer.q_norm = read.norm(Role::q_norm), layer.k_norm = read.norm(Role::k_norm);
    if (spec.qkv_bias && layer.qkv) layer.qkv_bias = read.stacked_bias({{Role::q, q}, {Role::k, kv}, {Role::v, kv}});
    if (spec.o_bias) layer.o_bias = read.bias(Role::o);
    if (spec.mlp_bias && layer.gate_up) layer.gate_up_bias = read.stacked_bias({{Role::gate, shard.mlp}, {Role::up, shard.mlp}});
    if (spec.mlp_bias) layer.down_bias = read.bias(Role::down);
  }
  if (shard.last_stage()) final_norm_ = backend.load_vector(files.tensors->read_vector(tensor_name(files.container, Role::final_norm)));
  rope_ = make_rope_table(spec.rope, options.context);
  if (!shard.heads.empty()) kv_ = backend.make_kv_cache(kv_layout(spec, shard, options));
}

Decoder::~Decoder() = default;

void Decoder::place(const ShardWeight& w, std::unique_ptr<compute::Weight> weight) {
  if (w.use == WeightUse::embedding || w.use == WeightUse::head) {
    (w.use == WeightUse::embedding ? embedding_ : head_) = std::move(weight);
    return;
  }
  Layer& layer = layers_[w.layer - shard_.layers.begin];
  switch (w.use) {
    case WeightUse::qkv: layer.qkv = std::move(weight); break;
    case WeightUse::o: layer.o = std::move(weight); break;
    case WeightUse::gate_up: layer.gate_up = std::move(weight); break;
    default: layer.down = std::move(weight);
  }
}

void Decoder::forward(const StepInput& input, mesh::Mesh& tp, std::chrono::nanoseconds wait, Trace* trace, StepOutput& output) {
  backend_.begin_step();
  struct EndStep {
    Backend& backend;
    ~EndStep() { backend.end_step(); }
  } end_step{backend_};

  const size_t rows = input.tokens.size();
  Tensor h = shard_.first_stage() ? embed(input, tp, wait, trace) : backend_.from_host(rows, spec_.hidden, input.hidden);
  for (const Layer& layer : layers_) {
    h = attention_block(layer, h, input, tp, wait, trace);
    h = mlp_block(layer, h, tp, wait, trace);
  }

  output.hidden.resize(shard_.last_stage() ? 0 : rows * spec_.hidden);
  output.logits.resize(shard_.last_stage() ? input.sampled_rows.size() * shard_.vocabulary.size() : 0);
  if (!shard_.last_stage()) {
    TraceSpan span(trace, "to_host");
    backend_.to_host(h, output.hidden);
  } else if (!output.logits.empty()) {
    TraceSpan span(trace, "head");
    const Tensor x = backend_.rms_norm(backend_.take_rows(h, input.sampled_rows), *final_norm_, spec_.norm_eps);
    backend_.to_host(backend_.linear(x, head_ ? *head_ : *embedding_, nullptr), output.logits);
  }
}

Tensor Decoder::embed(const StepInput& input, mesh::Mesh& tp, std::chrono::nanoseconds wait, Trace* trace) {
  TraceSpan span(trace, "embed");
  Tensor mine = embedding_ ? backend_.embed(*embedding_, input.tokens, shard_.vocabulary.begin)
                           : backend_.from_host(input.tokens.size(), spec_.hidden, std::vector<float>(input.tokens.size() * spec_.hidden));
  return tp.size() == 1 ? mine : backend_.gather_embedding(mine, tp, Deadline::after(wait));
}

Tensor Decoder::attention_block(const Layer& layer, const Tensor& h, const StepInput& input, mesh::Mesh& tp, std::chrono::nanoseconds wait,
                                Trace* trace) {
  const auto id = static_cast<int32_t>(layer.index);
  compute::Partial partial;
  if (layer.qkv) {
    Tensor qkv, attended;
    {
      TraceSpan span(trace, "norm+qkv", id);
      qkv = backend_.norm_linear(h, *layer.attention_norm, spec_.norm_eps, *layer.qkv, layer.qkv_bias.get());
    }
    {
      TraceSpan span(trace, "attention", id);
      compute::AttentionParams params{};
      params.layer = layer.index - shard_.layers.begin;
      params.heads = shard_.heads.size();
      params.kv_heads = shard_.kv_heads.size();
      params.head_dim = spec_.head_dim;
      params.kv_of_head = shard_.kv_of_head;
      params.scale = spec_.attention_scale != 0 ? spec_.attention_scale : 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
      params.window = layer.spec.window;
      params.rope_mode = layer.spec.rope ? spec_.rope.mode : compute::RopeMode::none;
      params.rope = &rope_;
      params.q_norm = layer.q_norm.get();
      params.k_norm = layer.k_norm.get();
      params.norm_eps = spec_.norm_eps;
      attended = backend_.attention(qkv, *kv_, params, input.segments);
    }
    TraceSpan span(trace, "o", id);
    partial = backend_.linear_partial(attended, *layer.o);
  } else {
    partial = backend_.zero_partial(h.rows(), spec_.hidden);
  }
  TraceSpan span(trace, "reduce", id, sums_bytes(h.rows(), spec_.hidden, tp));
  return backend_.add_reduced(h, partial, layer.o_bias.get(), tp, Deadline::after(wait));
}

Tensor Decoder::mlp_block(const Layer& layer, const Tensor& h, mesh::Mesh& tp, std::chrono::nanoseconds wait, Trace* trace) {
  const auto id = static_cast<int32_t>(layer.index);
  compute::Partial partial;
  if (layer.gate_up) {
    TraceSpan span(trace, "mlp", id);
    partial =
        backend_.norm_mlp(h, *layer.mlp_norm, spec_.norm_eps, *layer.gate_up, layer.gate_up_bias.get(), spec_.activation, *layer.down);
  } else {
    partial = backend_.zero_partial(h.rows(), spec_.hidden);
  }
  TraceSpan span(trace, "reduce", id, sums_bytes(h.rows(), spec_.hidden, tp));
  return backend_.add_reduced(h, partial, layer.down_bias.get(), tp, Deadline::after(wait));
}

uint64_t Decoder::weight_bytes() const {
  uint64_t bytes = (embedding_ ? embedding_->bytes : 0) + (head_ ? head_->bytes : 0);
  for (const Layer& l : layers_)
    for (const auto* w : {l.qkv.get(), l.o.get(), l.gate_up.get(), l.down.get()}) bytes += w ? w->bytes : 0;
  return bytes;
}

uint64_t Decoder::kv_bytes() const { return kv_ ? kv_->bytes : 0; }

}  // namespace verbund::model
