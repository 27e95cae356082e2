// Structured output as llguidance grammars: what response_format, tool schemas and other dialects' forms of them become.
// Pure; any thread.
#pragma once

#include "engine/request.h"
#include "serve/fields.h"
#include "serve/generate.h"

namespace verbund::serve {

// strict: a keyword that cannot be enforced is an error when the grammar is compiled; else it is left out.
engine::Grammar json_grammar(const Json& schema, bool strict);
// For a tool that must be called, whatever the model's own markup: the whole answer is {"name": N, "arguments": {...}} of one of
// them (of request.tool_name only, if it is set). tools: as in ChatPrompt.
void force_call(const Json& tools, GenerateRequest& request);
// {"type": "text" | "json_object" | "json_schema", ...} of chat completions. Throws invalid naming the field.
void read_response_format(Fields& body, GenerateRequest& request);

}  // namespace verbund::serve
