// The body of /v1/messages in the common form. Pure; any thread.
#pragma once

#include "serve/fields.h"
#include "serve/generate.h"

namespace verbund::serve {

// counting: for count_tokens, which has no max_tokens. Throws ApiError naming the path.
GenerateRequest read_anthropic(const ServedModel& model, const Json& json, bool counting);

}  // namespace verbund::serve
