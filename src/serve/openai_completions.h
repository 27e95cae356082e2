// POST /v1/completions. Pure; any thread.
#pragma once

#include "serve/answer.h"

namespace verbund::serve {

Translated translate_completions(const ServedModel& model, const HttpRequest& request);

}  // namespace verbund::serve
