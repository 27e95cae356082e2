#include "model/family.h"

#include <algorithm>

#include "base/error.h"

namespace verbund::model {
namespace {

struct NameRow {
  Role role;
  const char* hf;
  const char* gguf;
};

// "{}" stands for the layer. Both kinds of file add ".weight" or ".bias" (docs: reference models.md section 3.5).
constexpr NameRow kNames[] = {
    {Role::embedding, "model.embed_tokens", "token_embd"},
    {Role::final_norm, "model.norm", "output_norm"},
    {Role::head, "lm_head", "output"},
    {Role::attention_norm, "model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
    {Role::q, "model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"},
    {Role::k, "model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"},
    {Role::v, "model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
    {Role::o, "model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"},
    {Role::q_norm, "model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"},
    {Role::k_norm, "model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
    {Role::gate, "model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"},
    {Role::up, "model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"},
    {Role::down, "model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"},
    {Role::rope_divisors, "", "rope_freqs"},
};

std::string supported() {
  std::string text;
  for (const ModelFamily* f : families())
    for (const std::string& t : f->hf_model_types) text += (text.empty() ? "" : ", ") + t;
  return text;
}

const ModelFamily& family_of(const formats::ModelFiles& files, std::string& kind) {
  const bool gguf = files.container == formats::Container::gguf;
  const nlohmann::json& from = gguf ? files.metadata : files.config;
  const char* key = gguf ? "general.architecture" : "model_type";
  const auto it = from.find(key);
  if (it == from.end() || !it->is_string())
    throw Error(Code::invalid_argument, std::string("the model does not say what it is: no ") + key, files.path);
  kind = it->get<std::string>();
  for (const ModelFamily* f : families()) {
    const auto& kinds = gguf ? f->gguf_architectures : f->hf_model_types;
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return *f;
  }
  throw Error(Code::unimplemented, "models of type '" + kind.substr(0, 64) + "' are not supported yet", files.path,
              "supported: " + supported());
}

std::string shape_text(const std::vector<size_t>& shape) {
  std::string text = "[";
  for (size_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

class ShapeCheck {
 public:
  ShapeCheck(const formats::ModelFiles& files) : files_(files) {}
  void expect(Role role, size_t layer, bool bias, std::vector<size_t> shape) const {
    const formats::TensorInfo& info = files_.tensors->require(tensor_name(files_.container, role, layer, bias));
    if (info.shape != shape)
      throw Error(
          Code::invalid_argument,
          "tensor " + info.name + " has shape " + shape_text(info.shape) + ", the model's description asks for " + shape_text(shape),
          files_.path, "the files do not belong together; fetch the model again");
  }
  bool has(Role role, size_t layer, bool bias = false) const {
    return files_.tensors->find(tensor_name(files_.container, role, layer, bias)) != nullptr;
  }

 private:
  const formats::ModelFiles& files_;
};

void check_layer(const ShapeCheck& check, const DecoderSpec& s, size_t i) {
  const size_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  check.expect(Role::attention_norm, i, false, {s.hidden});
  check.expect(Role::mlp_norm, i, false, {s.hidden});
  check.expect(Role::q, i, false, {q, s.hidden});
  check.expect(Role::k, i, false, {kv, s.hidden});
  check.expect(Role::v, i, false, {kv, s.hidden});
  check.expect(Role::o, i, false, {s.hidden, q});
  check.expect(Role::gate, i, false, {s.mlp, s.hidden});
  check.expect(Role::up, i, false, {s.mlp, s.hidden});
  check.expect(Role::down, i, false, {s.hidden, s.mlp});
  if (s.qkv_bias) check.expect(Role::q, i, true, {q}), check.expect(Role::k, i, true, {kv}), check.expect(Role::v, i, true, {kv});
  if (s.o_bias) check.expect(Role::o, i, true, {s.hidden});
  if (s.mlp_bias)
    check.expect(Role::gate, i, true, {s.mlp}), check.expect(Role::up, i, true, {s.mlp}), check.expect(Role::down, i, true, {s.hidden});
  if (s.qk_norm) check.expect(Role::q_norm, i, false, {s.head_dim}), check.expect(Role::k_norm, i, false, {s.head_dim});
}

}  // namespace

std::string tensor_name(formats::Container container, Role role, size_t layer, bool bias) {
  const NameRow& row = kNames[static_cast<size_t>(role)];
  std::string name = container == formats::Container::gguf ? row.gguf : row.hf;
  if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, std::to_string(layer));
  return name + (bias ? ".bias" : ".weight");
}

DecoderSpec read_spec(const formats::ModelFiles& files) {
  std::string kind;
  const ModelFamily& family = family_of(files, kind);
  const bool gguf = files.container == formats::Container::gguf;
  DecoderSpec spec;
  try {
    spec = gguf ? family.read_gguf(files.metadata, kind) : family.read_hf(files.config);
  } catch (const Error& e) { throw e.within(files.path); } catch (const nlohmann::json::exception& e) {
    throw Error(Code::invalid_argument, std::string("the model's description has a value of the wrong kind: ") + e.what(), files.path);
  }
  spec.family = family.name;

  const ShapeCheck check(files);
  const formats::TensorInfo& embedding = files.tensors->require(tensor_name(files.container, Role::embedding));
  if (gguf) {
    spec.vocabulary = embedding.rows();  // llama.vocab_size is optional and may disagree with padding
    spec.tied = !check.has(Role::head, 0);
    if (const auto* divisors = files.tensors->find(tensor_name(files.container, Role::rope_divisors)))
      spec.rope.freq_divisors = files.tensors->read_vector(divisors->name);
    if (check.has(Role::q, 0, true)) spec.qkv_bias = true;
  }
  spec.validate();
  check.expect(Role::embedding, 0, false, {spec.vocabulary, spec.hidden});
  check.expect(Role::final_norm, 0, false, {spec.hidden});
  if (!spec.tied) check.expect(Role::head, 0, false, {spec.vocabulary, spec.hidden});
  for (size_t i = 0; i < spec.layers.size(); ++i) check_layer(check, spec, i);
  return spec;
}

}  // namespace verbund::model
