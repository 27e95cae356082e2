// A model on disk: a folder in Hugging Face layout (config.json, *.safetensors) or a GGUF file (or its first shard).
// open_model() decides by content, reads headers only, and hands out config, tensors and the texts of the tokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/tensor_source.h"

namespace verbund::formats {

enum class Container { gguf, safetensors };

struct ModelFiles {
  Container container;
  std::string path;  // the folder or file as given
  std::unique_ptr<TensorSource> tensors;
  nlohmann::json config;             // safetensors: config.json
  nlohmann::json generation_config;  // safetensors: generation_config.json or null
  // GGUF: all metadata by key, arrays included (large string arrays as JSON arrays too).
  // Integers, floats, bools, strings keep their kind.
  nlohmann::json metadata;
  uint64_t bytes_on_disk = 0;
};

// Throws not_found (also a missing shard), invalid_argument (neither kind; what was seen), data_loss (malformed or
// truncated, with expected and real size), unimplemented (a quantisation or type that is not read, by name),
// permission_denied (unreadable, or an index that names files outside the folder).
ModelFiles open_model(const std::string& path);

}  // namespace verbund::formats
