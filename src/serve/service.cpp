#include "serve/service.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>

#include "serve/routes.h"

namespace verbund::serve {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWatchEvery{250};
constexpr std::chrono::seconds kStallAfter{10};  // a long prefill chunk of a large model takes seconds

AccessConfig with_loopback(const ServiceConfig& config) {
  AccessConfig access = config.access;
  access.loopback = is_loopback(config.server.listen);
  if (!access.loopback && !config.insecure && read_keys(access.key_file).empty())
    throw Error(Code::permission_denied, config.server.listen + " can be reached from other machines, and there are no API keys",
                access.key_file, "make one with `verbund key add NAME`, or say --insecure to let everybody in");
  return access;
}

}  // namespace

Service::Service(ServiceConfig config, ServedModel model)
    : config_(std::move(config)),
      model_(std::move(model)),
      access_(with_loopback(config_)),
      server_(
          config_.server, router_, [this](HttpRequest& request) { return access_.admit(request); },
          [this](const HttpRequest& request, int status, double seconds) {
            metrics_.count_http(request.route, status);
            spdlog::info("{} {} {} {:.3f}s {}", request.method, request.path, status, seconds, request.id);
          }),
      host_(config_.instance, config_.check,
            {.events =
                 [this](std::vector<engine::InstanceEvent> events) {
                   asio::post(server_.io(), [this, events = std::move(events)]() mutable { generations_.deliver(std::move(events)); });
                 },
             .lost =
                 [this](Error error) {
                   asio::post(server_.io(), [this, error] {
                     generations_.fail_all(ApiError(Fault::internal, "the instance was lost while it answered: " + error.parts().what));
                   });
                 },
             .fatal =
                 [this](Error error) {
                   asio::post(server_.io(), [this, error] {
                     fatal_ = error;
                     server_.stop();
                   });
                 },
             .ready = [] {}}),
      generations_(host_, config_.limits, metrics_, server_.io().get_executor()),
      ticker_(server_.io()) {
  add_operations_routes(router_, *this);
  add_model_routes(router_, *this);
  add_chat_route(router_, *this);
  add_completions_route(router_, *this);
  add_anthropic_routes(router_, *this);
  add_responses_routes(router_, *this);
  add_ollama_chat_routes(router_, *this);
  add_ollama_model_routes(router_, *this);
  add_ollama_chat_routes(router_, *this);
  add_ollama_model_routes(router_, *this);
}

void Service::run() {
  host_.start();
  watch_progress();
  server_.run({.begin =
                   [this] {
                     draining_ = true;
                     generations_.drain();
                   },
               .idle = [this] { return generations_.live() == 0; },
               .cut_off = [this] { generations_.fail_all(ApiError(Fault::overloaded, "the server is shutting down")); }});
  host_.stop();
  if (fatal_) throw *fatal_;
}

void Service::require_model(std::string_view name) const {
  if (model_.is_called(name)) return;
  throw ApiError(Fault::model_not_found, "there is no model '" + std::string(name) + "'; ready: " + model_.id, "model");
}

std::string Service::unready_reason() const {
  if (draining_) return "draining";
  switch (host_.state()) {
    case HostState::loading: return "loading";
    case HostState::restarting: return "degraded";
    case HostState::stopped: return "draining";
    case HostState::ready: break;
  }
  return stalled_reason().empty() ? "" : "stalled";
}

std::string Service::stalled_reason() const {
  if (generations_.live() == 0 || host_.state() != HostState::ready) return {};
  const auto age = Clock::now() - progress_at_;
  if (age < kStallAfter) return {};
  return "no step has ended for " + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(age).count()) + " s although " +
         std::to_string(generations_.live()) + " requests run or wait";
}

// Progress is a step that ended, or nothing to do.
void Service::watch_progress() {
  const uint64_t steps = host_.stats().steps;
  if (steps != last_steps_ || generations_.live() == 0 || host_.state() != HostState::ready) progress_at_ = Clock::now();
  last_steps_ = steps;
  ticker_.expires_after(kWatchEvery);
  ticker_.async_wait([this](boost::system::error_code problem) {
    if (!problem) watch_progress();
  });
}

}  // namespace verbund::serve
