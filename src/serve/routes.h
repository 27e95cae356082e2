// The routes of each API, one function a file. Called once at the start; the handlers keep the reference.
#pragma once

#include "serve/service.h"

namespace verbund::serve {

void add_operations_routes(Router& router, Service& service);    // operations.cpp
void add_model_routes(Router& router, Service& service);         // models.cpp
void add_chat_route(Router& router, Service& service);           // openai_chat.cpp
void add_completions_route(Router& router, Service& service);    // openai_completions.cpp
void add_anthropic_routes(Router& router, Service& service);     // anthropic.cpp
void add_responses_routes(Router& router, Service& service);     // responses.cpp
void add_ollama_chat_routes(Router& router, Service& service);   // ollama.cpp
void add_ollama_model_routes(Router& router, Service& service);  // ollama_models.cpp
void add_ollama_chat_routes(Router& router, Service& service);   // ollama.cpp
void add_ollama_model_routes(Router& router, Service& service);  // ollama_models.cpp

}  // namespace verbund::serve
