// POST /v1/messages and /v1/messages/count_tokens. Pure; any thread.
#pragma once

#include "serve/answer.h"

namespace verbund::serve {

Translated translate_anthropic(const ServedModel& model, const HttpRequest& request);

}  // namespace verbund::serve
