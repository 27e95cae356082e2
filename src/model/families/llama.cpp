// llama (Llama 2, 3.x, SmolLM, SmolLM2 and others of the same shape) and mistral (arXiv 2302.13971, 2310.06825).
#include "model/families/common.h"
#include "model/family.h"

namespace verbund::model {
namespace {

DecoderSpec read_llama(const nlohmann::json& json) {
  const Fields config(json);
  DecoderSpec spec = read_hf_common(config, {});
  spec.qkv_bias = spec.o_bias = config.flag("attention_bias", false);
  spec.mlp_bias = config.flag("mlp_bias", false);
  return spec;
}

DecoderSpec read_mistral(const nlohmann::json& json) {
  const Fields config(json);
  DecoderSpec spec = read_hf_common(config, {});
  // Every layer is windowed unless layer_types says otherwise. An absent key means the class default; null means none.
  set_windows(spec, config, json.contains("sliding_window") ? config.size("sliding_window", 0) : 4096, 0);
  return spec;
}

DecoderSpec read_hf(const nlohmann::json& json) {
  return Fields(json).text("model_type", "") == "mistral" ? read_mistral(json) : read_llama(json);
}

DecoderSpec read_gguf(const nlohmann::json& metadata, const std::string& architecture) {
  DecoderSpec spec = read_gguf_common(metadata, architecture);
  if (Fields(metadata, architecture + ".").size("expert_count", 0) > 0)
    throw Error(Code::unimplemented, "mixture-of-experts models of this family are not supported yet");
  // Converters to this architecture reorder the rows of q and k from half to interleaved pairs; rotating the rows as
  // they are stored gives the same scores and leaves quantised rows untouched.
  spec.rope.mode = compute::RopeMode::interleaved;
  return spec;
}

}  // namespace

extern const ModelFamily kFamily_llama{"llama", {"llama", "mistral"}, {"llama"}, read_hf, read_gguf};

}  // namespace verbund::model
