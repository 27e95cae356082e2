#include "serve/access.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>

namespace verbund::serve {
namespace {

constexpr std::string_view kAllowedHeaders =
    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access, openai-beta, "
    "openai-organization, openai-project";

std::string name_of_this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& s) { return same_word(s, word); });
}

// "localhost:8372" -> "localhost", "[::1]:8372" -> "::1"
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') == std::string_view::npos ? host.size() : host.find(']') - 1);
  const size_t colon = host.find(':');
  return colon == host.rfind(':') ? host.substr(0, colon) : host;
}

bool is_public(const HttpRequest& request) {
  const bool reading = request.method == "GET" || request.method == "HEAD";
  return reading && (request.path == "/livez" || request.path == "/readyz" || request.path == "/health" || request.path == "/" ||
                     request.path == "/api/version");
}

std::string_view key_of(const HttpRequest& request) {
  const std::string_view authorization = request.header("authorization");
  if (authorization.size() > 7 && same_word(authorization.substr(0, 7), "bearer ")) return authorization.substr(7);
  return request.header("x-api-key");
}

}  // namespace

Access::Access(AccessConfig config) : config_(std::move(config)), keys_(config_.key_file), host_name_(name_of_this_host()) {}

Headers Access::admit(HttpRequest& request) {
  if (config_.loopback) check_host(request.header("host"));
  Headers headers = check_origin(request);
  if (request.method == "OPTIONS") return headers;  // a browser asks before it sends the key
  request.trusted = keys_.empty() || keys_.admits(key_of(request));
  if (!request.trusted && !is_public(request)) {
    const bool missing = key_of(request).empty();
    throw ApiError(Fault::unauthorized,
                   missing ? "an API key is needed: send it as `Authorization: Bearer KEY`" : "this API key is not known here");
  }
  return headers;
}

// A page of another site that has its name point to this machine would otherwise be let in as if it were from here.
void Access::check_host(std::string_view host) const {
  const std::string name(without_port(host));
  if (name.empty()) return;  // HTTP/1.0
  boost::system::error_code not_an_address;
  boost::asio::ip::make_address(name, not_an_address);
  if (!not_an_address || same_word(name, "localhost") || same_word(name, host_name_) || contains(config_.hosts, name)) return;
  throw ApiError(Fault::forbidden, "the Host '" + name + "' is not a name of this server; start it with --allow-host to add one");
}

Headers Access::check_origin(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty()) return {};
  if (!contains(config_.origins, origin))
    throw ApiError(Fault::forbidden,
                   "the Origin '" + std::string(origin) + "' may not ask here; start the server with --allow-origin to add it");
  Headers headers{{"Access-Control-Allow-Origin", std::string(origin)},
                  {"Vary", "Origin"},
                  {"Access-Control-Expose-Headers", "x-request-id, request-id, retry-after"}};
  if (request.method != "OPTIONS") return headers;
  std::string allowed(kAllowedHeaders);
  // Any x-stainless-* header of the vendors' clients.
  std::string_view asked = request.header("access-control-request-headers");
  while (!asked.empty()) {
    const size_t comma = asked.find(',');
    std::string_view word = asked.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    const bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) || c == '-'; });
    if (plain && word.size() < 64 && same_word(word.substr(0, 12), "x-stainless-")) allowed += ", " + std::string(word);
    asked = comma == std::string_view::npos ? std::string_view() : asked.substr(comma + 1);
  }
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  headers.emplace_back("Access-Control-Allow-Headers", std::move(allowed));
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace verbund::serve
