// qwen3 dense models (arXiv 2505.09388): RMS norm of every query and key head before RoPE.
#include "model/families/common.h"
#include "model/family.h"

namespace verbund::model {
namespace {

DecoderSpec read_hf(const nlohmann::json& json) {
  const Fields config(json);
  DecoderSpec spec = read_hf_common(config, {});
  if (!config.has("head_dim")) spec.head_dim = spec.rope.dims = 128;  // the class default, not hidden / heads
  spec.qk_norm = true;
  spec.qkv_bias = spec.o_bias = config.flag("attention_bias", false);
  if (config.flag("use_sliding_window", false))
    set_windows(spec, config, config.size("sliding_window", 4096), config.size("max_window_layers", 28));
  return spec;
}

DecoderSpec read_gguf(const nlohmann::json& metadata, const std::string& architecture) {
  DecoderSpec spec = read_gguf_common(metadata, architecture);
  spec.qk_norm = true;
  return spec;
}

}  // namespace

extern const ModelFamily kFamily_qwen3{"qwen3", {"qwen3"}, {"qwen3"}, read_hf, read_gguf};

}  // namespace verbund::model
