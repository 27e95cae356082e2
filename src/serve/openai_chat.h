// POST /v1/chat/completions. Pure; any thread.
#pragma once

#include "serve/answer.h"

namespace verbund::serve {

Translated translate_chat(const ServedModel& model, const HttpRequest& request);

}  // namespace verbund::serve
