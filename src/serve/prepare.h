// From what a dialect asks for to engine requests: templates, tokens, defaults, limits. Takes milliseconds for long prompts, so
// it runs in the work pool. Pure; any thread.
#pragma once

#include "serve/generate.h"

namespace verbund::serve {

struct Prepared {
  std::vector<engine::Request> choices;       // in order; ids are given later
  std::vector<std::vector<int32_t>> prompts;  // token ids
  ReplyStart start;
};

// Throws ApiError: context_length with both numbers, invalid naming the field.
Prepared prepare(const ServedModel& model, const GenerateRequest& request);
// Tokens of one prompt, as prepare() counts them.
std::vector<int32_t> encode(const ServedModel& model, const Prompt& prompt);

}  // namespace verbund::serve
