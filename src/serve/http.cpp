#include "serve/http.h"

namespace verbund::serve {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Response json_response(const nlohmann::ordered_json& body, int status) {
  Response response;
  response.status = status;
  response.body = json_text(body);
  return response;
}

Response error_response(const ApiError& error, Dialect dialect, std::string_view request_id) {
  Response response = json_response(error_body(error, dialect, request_id), status_of(error, dialect));
  if (error.retry_after_s) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_s));
    response.headers.emplace_back("retry-after-ms", std::to_string(*error.retry_after_s * 1000));
  }
  if (error.fault == Fault::unauthorized) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  // SDKs retry 5xx on their own; these would fail again.
  if (error.fault == Fault::internal || error.fault == Fault::unimplemented) response.headers.emplace_back("x-should-retry", "false");
  return response;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string collapse_slashes(std::string_view path) {
  std::string out;
  for (const char c : path)
    if (c != '/' || out.empty() || out.back() != '/') out += c;
  if (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

}  // namespace verbund::serve
