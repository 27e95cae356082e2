// A conversation to token ids by the model's chat template. What users and tools say is data: text in it that spells a special
// token becomes ordinary tokens (tokenizer.h, guard). Pure functions; any thread.
#pragma once

#include "serve/generate.h"

namespace verbund::serve {

// Throws invalid with the template's own words when it refuses the conversation.
std::vector<int32_t> encode_chat(const ServedModel& model, const ChatPrompt& chat);

}  // namespace verbund::serve
