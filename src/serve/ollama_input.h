// The bodies of /api/chat and /api/generate in the common form. Pure; any thread.
#pragma once

#include "serve/fields.h"
#include "serve/generate.h"

namespace verbund::serve {

struct OllamaRequest {
  GenerateRequest generate;
  bool chat = true;          // else generate
  bool load_only = false;    // nothing was asked: the model is to be in memory, which it is
  bool show_context = true;  // generate answers the tokens of prompt and answer
};

OllamaRequest read_ollama(const ServedModel& model, const Json& json, bool chat);
// "smollm2", "SmolLM2:latest"; throws model_not_found in Ollama's words.
void require_ollama_model(const ServedModel& model, const std::string& name);

}  // namespace verbund::serve
