// What chat completions and completions share: sampling fields, usage, log-probabilities. Pure; any thread.
#pragma once

#include "serve/fields.h"
#include "serve/generate.h"

namespace verbund::serve {

// model (must be ours), sampling, n, seed, stop, logit_bias, stream and their extensions.
void read_common(Fields& body, const ServedModel& model, GenerateRequest& request);
bool read_include_usage(Fields& body, bool stream);
std::vector<std::string> read_stop(Fields& body, std::string_view key);

Json usage_json(const ReplyUsage& usage);
Json timings_json(const ReplyUsage& usage);                    // llama.cpp's
Json logprobs_json(const std::vector<TokenLogprobs>& tokens);  // an array; chat completions and responses
std::string_view finish_text(Finish finish);

// Throws model_not_found.
void require_model(const ServedModel& model, Fields& body);

}  // namespace verbund::serve
