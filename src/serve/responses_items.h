// Items of a Responses conversation as messages of a chat. Pure; any thread.
#pragma once

#include "serve/fields.h"
#include "serve/generate.h"

namespace verbund::serve {

// Appends to chat.messages; items whose effect is on the vendor's side are skipped and named in `skipped`.
void append_items(const Json& items, ChatPrompt& chat, std::vector<std::string>& skipped);

}  // namespace verbund::serve
