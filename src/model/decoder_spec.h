// What a decoder-only transformer is, as data. Filled by a family (families/<name>.cpp) from a config.json or from GGUF
// metadata; read by Decoder, the planner and `verbund inspect`. Nothing else knows a model's name.
// Block: h += Attn(norm(h)); h += MLP(norm(h)); logits = head(norm(h)). See reference: arXiv 2302.13971, 2305.13245.
// Value type; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compute/backend.h"

namespace verbund::model {

enum class RopeScaling { none, linear, llama3, yarn };

// Rotary embedding (arXiv 2104.09864) and its scalings: linear, llama3, YaRN (arXiv 2309.00071).
struct RopeSpec {
  double theta = 10000.0;
  size_t dims = 0;  // rotated dims of a head, even
  compute::RopeMode mode = compute::RopeMode::half;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  double original_context = 0;                           // positions the model was trained on before scaling
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn
  std::optional<double> attention_factor;                // yarn
  bool truncate = true;                                  // yarn
  std::vector<float> freq_divisors;                      // GGUF rope_freqs.weight [dims/2]: f_i /= freq_divisors[i]
};

struct LayerSpec {
  size_t window = 0;  // 0: full attention; else a key is visible for i - j < window
  bool rope = true;
};

struct DecoderSpec {
  std::string family;  // "llama", "qwen2", ...
  size_t vocabulary = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0;
  std::vector<LayerSpec> layers;
  float norm_eps = 1e-6f;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // RMS per head before RoPE
  bool tied = false;     // the embedding is the head
  compute::Activation activation = compute::Activation::silu;
  float attention_scale = 0;  // 0: head_dim^-0.5
  RopeSpec rope;
  size_t context_max = 0;  // positions the model is made for
  std::vector<int32_t> eos;
  std::optional<int32_t> bos;

  size_t group() const { return heads / kv_heads; }
  // Throws invalid_argument naming the field that makes no sense (zero, not divisible, absurdly large).
  void validate() const;
};

}  // namespace verbund::model
