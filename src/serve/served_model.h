// What the API knows of the model it serves: its names, its texts and its limits. Immutable after creation; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/model_files.h"
#include "model/decoder_spec.h"
#include "model/model_text.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace verbund::serve {

// What the model's generation_config.json recommends; used where a request says nothing.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
};

struct ServedModel {
  std::string id;                    // as /v1/models lists it
  std::vector<std::string> aliases;  // also accepted; "default" always is
  int64_t created = 0;               // seconds since 1970, of the model's file
  uint64_t bytes_on_disk = 0;
  std::string family, container;  // "llama", "gguf" or "safetensors"
  uint64_t parameters = 0;
  std::string quantisation;  // of most of its parameters, as the file calls it
  uint32_t context = 0;      // tokens of prompt and answer
  size_t vocabulary = 0;
  std::string fingerprint;  // changes when the numerics may change
  SamplingDefaults defaults;

  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::string template_source;  // empty: none
  std::string bos_token, eos_token;
  std::vector<int32_t> eos;

  text::OutputFormat output;             // how it writes calls and reasoning
  std::map<int32_t, std::string> marks;  // its marks that are one token

  bool is_called(std::string_view name) const;
};

// tool_parser, reasoning_parser: text/tool_formats.h, or "auto". Throws invalid_argument for a name that does not exist.
ServedModel make_served_model(const std::string& id, formats::ModelFiles& files, const model::DecoderSpec& spec,
                              const std::string& tool_parser = "auto", const std::string& reasoning_parser = "auto");

}  // namespace verbund::serve
