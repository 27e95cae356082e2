// qwen2 and qwen2.5 dense models (arXiv 2407.10671): biases on q, k and v.
#include "model/families/common.h"
#include "model/family.h"

namespace verbund::model {
namespace {

DecoderSpec read_hf(const nlohmann::json& json) {
  const Fields config(json);
  DecoderSpec spec = read_hf_common(config, {});
  spec.qkv_bias = true;
  if (config.flag("use_sliding_window", false))
    set_windows(spec, config, config.size("sliding_window", 4096), config.size("max_window_layers", 28));
  return spec;
}

DecoderSpec read_gguf(const nlohmann::json& metadata, const std::string& architecture) {
  DecoderSpec spec = read_gguf_common(metadata, architecture);
  spec.qkv_bias = true;
  return spec;
}

}  // namespace

extern const ModelFamily kFamily_qwen2{"qwen2", {"qwen2"}, {"qwen2"}, read_hf, read_gguf};

}  // namespace verbund::model
