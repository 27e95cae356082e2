#include "serve/router.h"

namespace verbund::serve {
namespace {

// What `*` stands for, or nullopt.
std::optional<std::string> matched(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*")) return pattern == path ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, pattern.size() - 1);
  if (!path.starts_with(before) || path.size() == before.size()) return std::nullopt;
  return std::string(path.substr(before.size()));
}

}  // namespace

Dialect Router::dialect_of(std::string_view path) {
  if (path.starts_with("/api")) return Dialect::ollama;
  if (path.starts_with("/v1/messages")) return Dialect::anthropic;
  return Dialect::openai;
}

void Router::add(std::string method, std::string pattern, Dialect dialect, Handler handler) {
  routes_.push_back({std::move(method), std::move(pattern), dialect, std::move(handler)});
}

const Handler& Router::find(HttpRequest& request, std::string& allow) const {
  request.dialect = dialect_of(request.path);
  for (const std::string& path : {request.path, "/v1" + request.path})
    if (const Handler* handler = match(request, path, allow)) return *handler;
  if (!allow.empty())
    throw ApiError(Fault::method_not_allowed, request.method + " is not allowed on " + request.path + "; allowed: " + allow);
  throw ApiError(Fault::not_found, "there is no " + request.path + " here");
}

// The first route that matches wins: exact patterns are added before those with `*`.
const Handler* Router::match(HttpRequest& request, const std::string& path, std::string& allow) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  for (const Route& route : routes_) {
    auto parameter = matched(route.pattern, path);
    if (!parameter) continue;
    if (route.method == method) {
      request.dialect = route.dialect;
      request.route = route.pattern;
      request.parameter = std::move(*parameter);
      return &route.handler;
    }
    request.dialect = route.dialect;
    allow += (allow.empty() ? "" : ", ") + route.method + (route.method == "GET" ? ", HEAD" : "");
  }
  return nullptr;
}

}  // namespace verbund::serve
