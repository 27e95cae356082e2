// A model family: one file in families/ that turns a description on disk into a DecoderSpec and names its tensors.
// CMake collects the files of that folder; nobody else knows a family's name. Adding one = adding one file and one
// parity fixture (tests/data/models).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_files.h"
#include "model/decoder_spec.h"

namespace verbund::model {

// Tensors of a layer or of the whole model, by role.
enum class Role { embedding, final_norm, head, attention_norm, q, k, v, o, q_norm, k_norm, mlp_norm, gate, up, down, rope_divisors };

struct ModelFamily {
  std::string name;
  std::vector<std::string> hf_model_types;      // config.json "model_type"
  std::vector<std::string> gguf_architectures;  // "general.architecture"
  DecoderSpec (*read_hf)(const nlohmann::json& config);
  DecoderSpec (*read_gguf)(const nlohmann::json& metadata, const std::string& architecture);
};

const std::vector<const ModelFamily*>& families();

// The spec of an opened model: finds its family, reads, completes what only the tensors tell (vocabulary rows, tied
// head, biases), validates, and checks that each tensor of the model is there with the right shape.
// Throws unimplemented naming the model type and the supported ones, invalid_argument naming tensor and both shapes.
DecoderSpec read_spec(const formats::ModelFiles& files);

// Name in the file of a tensor; `layer` is ignored for the model-wide ones. With `bias`: its bias vector.
std::string tensor_name(formats::Container container, Role role, size_t layer = 0, bool bias = false);

}  // namespace verbund::model
