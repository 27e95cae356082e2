// The body of /v1/responses in the common form. Pure but for the store; any thread.
#pragma once

#include <map>

#include "serve/fields.h"
#include "serve/generate.h"
#include "serve/response_store.h"

namespace verbund::serve {

// How a tool that the model knows as a plain function is called in answers.
struct ResponseTool {
  bool custom = false;         // one text instead of arguments
  std::string name;            // as the client named it
  std::string namespace_name;  // empty: none
};

struct ResponsesRequest {
  GenerateRequest generate;
  Json echo;   // the fields of the response object that repeat the request
  Json input;  // items of the whole conversation
  bool store = true, summary = false, output_logprobs = false;
  std::map<std::string, ResponseTool> tools;  // by the name the model knows
};

ResponsesRequest read_responses(const ServedModel& model, ResponseStore& store, const Json& json);

}  // namespace verbund::serve
