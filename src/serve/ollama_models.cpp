// What Ollama's clients ask about models: tags, ps, show, version, and what is not offered.
#include "base/sha256.h"
#include "serve/fields.h"
#include "serve/ollama_input.h"
#include "serve/routes.h"
#include "serve/times.h"

namespace verbund::serve {
namespace {

// Clients compare it with what they need; VS Code wants at least 0.6.4 and no suffix.
constexpr std::string_view kOllamaVersion = "0.32.0";

std::string short_count(uint64_t n) {
  char text[32];
  if (n >= 1'000'000'000)
    std::snprintf(text, sizeof text, "%.1fB", static_cast<double>(n) / 1e9);
  else
    std::snprintf(text, sizeof text, "%.2fM", static_cast<double>(n) / 1e6);
  return text;
}

// Stands for the files: stable, and different for different models.
std::string digest(const ServedModel& m) {
  Sha256 hash;
  const std::string text = m.id + " " + std::to_string(m.bytes_on_disk) + " " + std::to_string(m.created);
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

Json details(const ServedModel& m) {
  return {{"parent_model", ""},
          {"format", m.container},
          {"family", m.family},
          {"families", {m.family}},
          {"parameter_size", short_count(m.parameters)},
          {"quantization_level", m.quantisation},
          {"context_length", m.context}};
}

Json entry(const ServedModel& m) {
  const std::string name = m.id.find(':') == std::string::npos ? m.id + ":latest" : m.id;
  return {{"name", name},        {"model", name},        {"modified_at", rfc3339(m.created)}, {"size", m.bytes_on_disk},
          {"digest", digest(m)}, {"details", details(m)}};
}

Response tags(const Service& service) { return json_response({{"models", Json::array({entry(service.model())})}}); }

Response ps(Service& service) {
  Json models = Json::array();
  if (service.host().state() == HostState::ready) {
    Json one = entry(service.model());
    uint64_t bytes = 0;
    for (const engine::RankReport& r : service.host().ranks()) bytes += r.weight_bytes + r.kv_bytes;
    one["size"] = bytes;
    one["expires_at"] = "9999-12-31T23:59:59Z";  // it stays
    one["size_vram"] = 0;
    one["context_length"] = service.model().context;
    models.push_back(std::move(one));
  }
  return json_response({{"models", models}});
}

Response show(const Service& service, const HttpRequest& request) {
  const Json json = parse_body(request.body);
  Fields body(json);
  const ServedModel& m = service.model();
  const auto name = body.text("model");
  require_ollama_model(m, name ? *name : body.required_text("name"));
  Json capabilities = Json::array({"completion"});
  if (m.template_source.find("tools") != std::string::npos) capabilities.push_back("tools");
  if (m.template_source.find("enable_thinking") != std::string::npos || m.template_source.find("<think>") != std::string::npos)
    capabilities.push_back("thinking");
  Json info{{"general.architecture", m.family}, {"general.parameter_count", m.parameters}};
  info[m.family + ".context_length"] = m.context;
  return json_response({{"modelfile", ""},
                        {"parameters", ""},
                        {"template", m.template_source},
                        {"details", details(m)},
                        {"model_info", std::move(info)},
                        {"capabilities", std::move(capabilities)},
                        {"modified_at", rfc3339(m.created)}});
}

Response version(const Service& service) { return json_response({{"version", kOllamaVersion}, {"verbund_version", service.version()}}); }

Response root(const Service& service) {
  Response response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = "verbund " + service.version() + " serves " + service.model().id + "\n";  // clients look at the status only
  return response;
}

}  // namespace

void add_ollama_model_routes(Router& router, Service& service) {
  const auto get = [&](const char* path, Dialect dialect, auto handler) {
    router.add("GET", path, dialect, [&service, handler](Exchange& e) -> awaitable<void> { co_await e.send(handler(service)); });
  };
  get("/", Dialect::operations, [](Service& s) { return root(s); });
  get("/api/version", Dialect::ollama, [](Service& s) { return version(s); });
  get("/api/tags", Dialect::ollama, [](Service& s) { return tags(s); });
  get("/api/ps", Dialect::ollama, [](Service& s) { return ps(s); });
  router.add("POST", "/api/show", Dialect::ollama,
             [&service](Exchange& e) -> awaitable<void> { co_await e.send(show(service, e.request())); });
  for (const auto& [method, path] :
       {std::pair("POST", "/api/create"), std::pair("POST", "/api/push"), std::pair("POST", "/api/copy"), std::pair("POST", "/api/pull"),
        std::pair("POST", "/api/embed"), std::pair("POST", "/api/embeddings"), std::pair("DELETE", "/api/delete")})
    router.add(method, path, Dialect::ollama, [](Exchange& e) -> awaitable<void> {
      throw ApiError(Fault::unimplemented, e.request().path + " is not offered by this server");
      co_return;
    });
  router.add("POST", "/v1/embeddings", Dialect::openai, [](Exchange&) -> awaitable<void> {
    throw ApiError(Fault::unimplemented, "this model makes no embeddings");
    co_return;
  });
}

}  // namespace verbund::serve
