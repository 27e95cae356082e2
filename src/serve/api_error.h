// What a request can be refused with, and how each API dialect says it (one table: status, type, code).
// Plain data; any thread.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace verbund::serve {

// Which API a path belongs to; decides the form of its errors. `operations` paths answer errors as OpenAI's do.
enum class Dialect { openai, responses, anthropic, ollama, operations };

enum class Fault {
  invalid,          // malformed, wrong type, out of range
  unsupported,      // a field that is known and not offered
  context_length,   // the prompt does not fit
  unauthorized,     // no key or a wrong one
  forbidden,        // Host, Origin, or a right that the key lacks
  model_not_found,  //
  not_found,        // path or stored object
  method_not_allowed,
  request_timeout,  // the client did not send its request in time
  too_large,        // body
  headers_too_large,
  unsupported_media,  // Content-Encoding
  rate_limit,         // queue full
  internal,
  unimplemented,
  loading,     // the model is not ready yet
  overloaded,  // draining, restarting, queued too long
  deadline     // the time the client allowed is over
};

struct ApiError : std::exception {
  ApiError(Fault fault, std::string message, std::string param = {}) : fault(fault), message(std::move(message)), param(std::move(param)) {}
  const char* what() const noexcept override { return message.c_str(); }

  Fault fault;
  std::string message;
  std::string param;  // JSON path of the field, as messages[2].content; may be empty
  std::string code;   // OpenAI's `code` where it is another than the fault's
  std::optional<int> retry_after_s;
  size_t prompt_tokens = 0, context = 0;  // of context_length: each dialect says them in the words its clients look for
};

ApiError context_error(size_t prompt_tokens, size_t context);
// An engine's or library's error as a client sees it; `request` errors only, never paths or traces of this host.
ApiError api_error(const Error& error);

int status_of(const ApiError& error, Dialect dialect);
nlohmann::ordered_json error_body(const ApiError& error, Dialect dialect, std::string_view request_id);
std::string_view openai_code(const ApiError& error);  // OpenAI's `code`; empty: null

}  // namespace verbund::serve
