#include "model/families/common.h"

#include <array>

namespace verbund::model {
namespace {

RopeScaling scaling_of(const std::string& type) {
  if (type == "default" || type == "none" || type.empty()) return RopeScaling::none;
  if (type == "linear") return RopeScaling::linear;
  if (type == "llama3") return RopeScaling::llama3;
  if (type == "yarn") return RopeScaling::yarn;
  throw Error(Code::unimplemented, "RoPE scaling '" + type.substr(0, 64) + "' is not supported yet", {}, "supported: linear, llama3, yarn");
}

// `rope` is rope_scaling or rope_parameters; a theta inside beats the one at top level.
void read_rope_scaling(RopeSpec& spec, const Fields& rope) {
  spec.scaling = scaling_of(rope.text("rope_type", rope.text("type", "default")));
  spec.theta = rope.number("rope_theta", spec.theta);
  spec.factor = rope.number("factor", 1.0);
  spec.original_context = rope.number("original_max_position_embeddings", spec.original_context);
  spec.low_freq_factor = rope.number("low_freq_factor", 1.0);
  spec.high_freq_factor = rope.number("high_freq_factor", 4.0);
  spec.beta_fast = rope.number("beta_fast", 32.0);
  spec.beta_slow = rope.number("beta_slow", 1.0);
  spec.mscale = rope.number("mscale", 0.0);
  spec.mscale_all_dim = rope.number("mscale_all_dim", 0.0);
  if (rope.has("attention_factor")) spec.attention_factor = rope.number("attention_factor", 1.0);
  spec.truncate = rope.flag("truncate", true);
}

compute::Activation activation_of(const std::string& name) {
  if (name == "silu" || name == "swish") return compute::Activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_tanh") return compute::Activation::gelu_tanh;
  throw Error(Code::unimplemented, "activation '" + name.substr(0, 64) + "' is not supported yet", {},
              "supported: silu, gelu_pytorch_tanh");
}

}  // namespace

DecoderSpec read_hf_common(const Fields& c, const HfDefaults& defaults) {
  DecoderSpec s;
  s.vocabulary = c.size("vocab_size");
  s.hidden = c.size("hidden_size");
  s.mlp = c.size("intermediate_size");
  s.heads = c.size("num_attention_heads");
  s.kv_heads = c.size("num_key_value_heads", s.heads);
  s.head_dim = c.size("head_dim", s.heads ? s.hidden / s.heads : 0);
  s.layers.resize(std::min<size_t>(c.size("num_hidden_layers"), 65536));  // validate() has the real bound
  s.norm_eps = static_cast<float>(c.number("rms_norm_eps", 1e-6));
  s.tied = c.flag("tie_word_embeddings", defaults.tied);
  s.activation = activation_of(c.text("hidden_act", "silu"));
  s.context_max = c.size("max_position_embeddings", 2048);
  s.eos = c.ids("eos_token_id");
  if (const auto bos = c.ids("bos_token_id"); !bos.empty()) s.bos = bos[0];

  s.rope.theta = c.number("rope_theta", defaults.rope_theta);
  s.rope.original_context = static_cast<double>(s.context_max);
  s.rope.dims = s.head_dim;
  if (const auto* scaling = c.object("rope_scaling"))
    read_rope_scaling(s.rope, Fields(*scaling));
  else if (const auto* parameters = c.object("rope_parameters"))
    read_rope_scaling(s.rope, Fields(*parameters));
  if (c.flag("rope_traditional", false)) s.rope.mode = compute::RopeMode::interleaved;
  return s;
}

void set_windows(DecoderSpec& spec, const Fields& c, size_t window, size_t first) {
  if (window == 0) return;
  const std::vector<std::string> types = c.texts("layer_types");
  if (!types.empty() && types.size() != spec.layers.size())
    throw Error(Code::invalid_argument,
                "layer_types has " + std::to_string(types.size()) + " entries for " + std::to_string(spec.layers.size()) + " layers");
  for (size_t i = 0; i < spec.layers.size(); ++i)
    if (types.empty() ? i >= first : types[i] == "sliding_attention") spec.layers[i].window = window;
}

DecoderSpec read_gguf_common(const nlohmann::json& metadata, const std::string& architecture) {
  const Fields a(metadata, architecture + ".");
  const Fields t(metadata, "tokenizer.ggml.");
  DecoderSpec s;
  s.hidden = a.size("embedding_length");
  s.mlp = a.size("feed_forward_length");
  s.heads = a.size("attention.head_count");
  s.kv_heads = a.size("attention.head_count_kv", s.heads);
  s.head_dim = a.size("attention.key_length", s.heads ? s.hidden / s.heads : 0);
  if (a.size("attention.value_length", s.head_dim) != s.head_dim)
    throw Error(Code::unimplemented, "keys and values of different size are not supported for this family");
  s.layers.resize(std::min<size_t>(a.size("block_count"), 65536));
  s.norm_eps = static_cast<float>(a.number("attention.layer_norm_rms_epsilon", 1e-6));
  s.context_max = a.size("context_length");

  s.rope.dims = a.size("rope.dimension_count", s.head_dim);
  s.rope.theta = a.number("rope.freq_base", 10000.0);
  s.rope.scaling = scaling_of(a.text("rope.scaling.type", "none"));
  s.rope.factor = a.number("rope.scaling.factor", 1.0);
  s.rope.original_context = a.number("rope.scaling.original_context_length", static_cast<double>(s.context_max));
  s.rope.beta_fast = a.number("rope.scaling.yarn_beta_fast", 32.0);
  s.rope.beta_slow = a.number("rope.scaling.yarn_beta_slow", 1.0);
  if (a.has("rope.scaling.yarn_attn_factor") || a.has("rope.scaling.attn_factor"))
    s.rope.attention_factor = a.number("rope.scaling.yarn_attn_factor", a.number("rope.scaling.attn_factor", 1.0));

  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"})
    for (int32_t id : t.ids(key)) s.eos.push_back(id);
  if (const auto bos = t.ids("bos_token_id"); !bos.empty()) s.bos = bos[0];
  return s;
}

}  // namespace verbund::model
