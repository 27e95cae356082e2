// What the dense families share when they read their descriptions. A family sets what differs.
#pragma once

#include "model/decoder_spec.h"
#include "model/fields.h"

namespace verbund::model {

struct HfDefaults {
  double rope_theta = 10000.0;
  bool tied = false;  // transformers' default of tie_word_embeddings
};

// Sizes, norms, RoPE (rope_parameters, rope_scaling, top level; precedence as transformers), activation, eos.
DecoderSpec read_hf_common(const Fields& config, const HfDefaults& defaults);

// The same from `<architecture>.*` and `tokenizer.ggml.*`.
DecoderSpec read_gguf_common(const nlohmann::json& metadata, const std::string& architecture);

// Sets the window of the layers that `layer_types` calls "sliding_attention"; without layer_types those from `first` on.
void set_windows(DecoderSpec& spec, const Fields& config, size_t window, size_t first);

}  // namespace verbund::model
