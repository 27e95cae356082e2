// The tokenizer, chat template and end tokens that belong to a model on disk. Created once a process; immutable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/model_files.h"
#include "model/decoder_spec.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace verbund::model {

struct ModelText {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<std::string> chat_template;  // Jinja source; parsed by who renders
  std::string bos_token, eos_token;          // as the template sees them
  std::vector<int32_t> eos;                  // every id that ends an answer
};

// Throws not_found (no tokenizer in the folder), invalid_argument (bad or unknown tokenizer, with its name).
ModelText load_text(const formats::ModelFiles& files, const DecoderSpec& spec);

// Bytes on disk that load_text() reads: the GGUF file without its tensors, or tokenizer.json.
uint64_t text_bytes_on_disk(const formats::ModelFiles& files);

}  // namespace verbund::model
