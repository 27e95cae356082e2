// GET /v1/models: one answer that OpenAI's and Anthropic's clients both read.
#include "serve/routes.h"
#include "serve/times.h"

namespace verbund::serve {
namespace {

using nlohmann::ordered_json;

ordered_json entry(const Service& service) {
  const ServedModel& m = service.model();
  return {{"id", m.id},
          {"object", "model"},
          {"created", m.created},
          {"owned_by", "verbund"},
          {"type", "model"},
          {"display_name", m.id},
          {"created_at", rfc3339(m.created)},
          {"max_input_tokens", m.context},
          {"max_model_len", m.context},
          {"status", service.unready_reason().empty() ? "ready" : "loading"}};
}

Response list(const Service& service, const HttpRequest& request) {
  ordered_json body{{"object", "list"},
                    {"data", ordered_json::array({entry(service)})},
                    {"has_more", false},
                    {"first_id", service.model().id},
                    {"last_id", service.model().id}};
  // Codex asks with this and wants the key; empty means that it uses its own catalogue.
  if (request.query.find("client_version=") != std::string::npos) body["models"] = ordered_json::array();
  return json_response(body);
}

Response one(const Service& service, const HttpRequest& request) {
  service.require_model(request.parameter);
  return json_response(entry(service));
}

}  // namespace

void add_model_routes(Router& router, Service& service) {
  router.add("GET", "/v1/models", Dialect::openai,
             [&service](Exchange& e) -> awaitable<void> { co_await e.send(list(service, e.request())); });
  router.add("GET", "/v1/models/*", Dialect::openai,
             [&service](Exchange& e) -> awaitable<void> { co_await e.send(one(service, e.request())); });
}

}  // namespace verbund::serve
