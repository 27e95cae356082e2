#include "serve/api_error.h"

#include <array>

namespace verbund::serve {
namespace {

using nlohmann::ordered_json;

struct Row {
  Fault fault;
  int status;
  std::string_view openai_type, openai_code, anthropic_type;
};

constexpr std::string_view kInvalid = "invalid_request_error";

constexpr std::array<Row, 18> kRows{{
    {Fault::invalid, 400, kInvalid, "invalid_value", kInvalid},
    {Fault::unsupported, 400, kInvalid, "unsupported_parameter", kInvalid},
    {Fault::context_length, 400, kInvalid, "context_length_exceeded", kInvalid},
    {Fault::unauthorized, 401, kInvalid, "invalid_api_key", "authentication_error"},
    {Fault::forbidden, 403, "permission_error", "", "permission_error"},
    {Fault::model_not_found, 404, kInvalid, "model_not_found", "not_found_error"},
    {Fault::not_found, 404, kInvalid, "not_found", "not_found_error"},
    {Fault::method_not_allowed, 405, kInvalid, "method_not_allowed", kInvalid},
    {Fault::request_timeout, 408, kInvalid, "request_timeout", "timeout_error"},
    {Fault::too_large, 413, kInvalid, "request_too_large", "request_too_large"},
    {Fault::headers_too_large, 431, kInvalid, "headers_too_large", kInvalid},
    {Fault::unsupported_media, 415, kInvalid, "unsupported_media_type", kInvalid},
    {Fault::rate_limit, 429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
    {Fault::internal, 500, "server_error", "server_error", "api_error"},
    {Fault::unimplemented, 501, kInvalid, "unsupported", kInvalid},
    {Fault::loading, 503, "service_unavailable_error", "model_loading", "overloaded_error"},
    {Fault::overloaded, 503, "service_unavailable_error", "server_is_overloaded", "overloaded_error"},
    {Fault::deadline, 504, "server_error", "timeout", "timeout_error"},
}};

const Row& row(Fault fault) { return kRows[static_cast<size_t>(fault) < kRows.size() ? static_cast<size_t>(fault) : 0]; }

static_assert(
    [] {
      for (size_t i = 0; i < kRows.size(); ++i)
        if (static_cast<size_t>(kRows[i].fault) != i) return false;
      return true;
    }(),
    "rows stand in the order of the enumeration");

Fault fault_of(Code code) {
  switch (code) {
    case Code::invalid_argument: return Fault::invalid;
    case Code::not_found: return Fault::not_found;
    case Code::unavailable: return Fault::overloaded;
    case Code::deadline_exceeded: return Fault::deadline;
    case Code::resource_exhausted: return Fault::rate_limit;
    case Code::unimplemented: return Fault::unsupported;
    default: return Fault::internal;
  }
}

}  // namespace

ApiError context_error(size_t prompt_tokens, size_t context) {
  const std::string p = std::to_string(prompt_tokens), c = std::to_string(context);
  ApiError error(Fault::context_length,
                 "This model's maximum context length is " + c + " tokens. However, your request has " + p +
                     " input tokens, and the answer needs at least one more. Shorten the input or start the server with a larger context.",
                 "messages");
  error.prompt_tokens = prompt_tokens;
  error.context = context;
  return error;
}

ApiError api_error(const Error& error) { return ApiError(fault_of(error.code()), error.parts().what); }

int status_of(const ApiError& error, Dialect dialect) {
  const int status = row(error.fault).status;
  return dialect == Dialect::anthropic && status == 503 ? 529 : status;  // what its SDK calls overloaded
}

std::string_view openai_code(const ApiError& error) { return error.code.empty() ? row(error.fault).openai_code : error.code; }

ordered_json error_body(const ApiError& error, Dialect dialect, std::string_view request_id) {
  const Row& r = row(error.fault);
  if (dialect == Dialect::ollama) return {{"error", error.message}};
  if (dialect == Dialect::anthropic) {
    const bool too_long = error.fault == Fault::context_length;
    const std::string message =
        too_long ? "prompt is too long: " + std::to_string(error.prompt_tokens) + " tokens > " + std::to_string(error.context) + " maximum"
                 : error.message;
    return {{"type", "error"}, {"error", {{"type", r.anthropic_type}, {"message", message}}}, {"request_id", request_id}};
  }
  const auto or_null = [](std::string_view text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); };
  return {{"error",
           {{"message", error.message}, {"type", r.openai_type}, {"param", or_null(error.param)}, {"code", or_null(openai_code(error))}}}};
}

}  // namespace verbund::serve
