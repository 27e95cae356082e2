// Chat completions' messages and tools in the form that templates read. Pure; any thread.
#pragma once

#include "serve/fields.h"
#include "serve/generate.h"

namespace verbund::serve {

// messages, continue_final_message, chat_template_kwargs, reasoning_effort -> chat. Throws invalid naming the path.
void read_messages(Fields& body, ChatPrompt& chat);
// tools, tool_choice, parallel_tool_calls and the deprecated functions, function_call.
void read_tools(Fields& body, ChatPrompt& chat, GenerateRequest& request);
// Sets the template variables that vendors use to switch reasoning on, off and to a level.
void apply_effort(const std::string& effort, ChatPrompt& chat);

}  // namespace verbund::serve
