// /livez, /readyz, /health, /metrics: for supervisors and dashboards, never for clients of the model.
#include "serve/routes.h"

namespace verbund::serve {
namespace {

using nlohmann::ordered_json;

Response livez() { return json_response({{"status", "ok"}}); }

Response readyz(const Service& service, const HttpRequest& request) {
  std::string reason = service.unready_reason();
  if (const size_t at = request.query.find("model="); reason.empty() && at != std::string::npos) {
    const std::string name = percent_decoded(request.query.substr(at + 6, request.query.find('&', at) - at - 6));
    if (!service.model().is_called(name)) reason = "no_model";
  }
  if (reason.empty()) return json_response({{"status", "ready"}});
  return json_response({{"status", reason}}, 503);
}

Response health(Service& service, const HttpRequest& request) {
  ordered_json body{{"status", "ok"}};
  std::string reason = service.host().reason();
  std::string status = service.unready_reason();
  if (status == "stalled") reason = service.stalled_reason();
  if (!status.empty()) {
    body["status"] = status;
    body["reasons"] = ordered_json::array({"instance " + service.model().id + ": " + (reason.empty() ? status : reason)});
  }
  if (!request.trusted) return json_response({{"status", body["status"]}}, status.empty() ? 200 : 503);
  const engine::EngineStats stats = service.host().stats();
  body["instances"] = ordered_json::array({{{"model", service.model().id},
                                            {"ranks", service.host().ranks().size()},
                                            {"restarts", service.host().restarts()},
                                            {"running", stats.running},
                                            {"waiting", stats.waiting},
                                            {"steps", stats.steps}}});
  return json_response(body, status.empty() ? 200 : 503);
}

Response metrics(Service& service) {
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = service.metrics().text({.model = service.model().id,
                                          .version = service.version(),
                                          .engine = service.host().stats(),
                                          .ranks = service.host().ranks(),
                                          .live = service.generations().live(),
                                          .restarts = service.host().restarts(),
                                          .ready = service.unready_reason().empty()});
  return response;
}

}  // namespace

void add_operations_routes(Router& router, Service& service) {
  router.add("GET", "/livez", Dialect::operations, [](Exchange& e) -> awaitable<void> { co_await e.send(livez()); });
  router.add("GET", "/readyz", Dialect::operations,
             [&service](Exchange& e) -> awaitable<void> { co_await e.send(readyz(service, e.request())); });
  router.add("GET", "/health", Dialect::operations,
             [&service](Exchange& e) -> awaitable<void> { co_await e.send(health(service, e.request())); });
  router.add("GET", "/metrics", Dialect::operations, [&service](Exchange& e) -> awaitable<void> { co_await e.send(metrics(service)); });
}

}  // namespace verbund::serve
