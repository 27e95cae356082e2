// The whole server: HTTP in front, one model's instance behind. Every dialect's handlers get a Service& and register their
// routes in a function of their own (routes.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serve/access.h"
#include "serve/generation.h"
#include "serve/metrics.h"
#include "serve/model_host.h"
#include "serve/served_model.h"
#include "serve/server.h"

namespace verbund::serve {

struct ServiceConfig {
  ServerConfig server;
  engine::InstanceConfig instance;
  std::function<void(engine::Instance&)> check;  // after the runners have planned
  GenerationLimits limits;
  AccessConfig access;
  bool insecure = false;  // listen beyond this machine without keys
  std::string version;
};

class Service {
 public:
  Service(ServiceConfig config, ServedModel model);

  // Serves until a signal. Throws what kept the instance from ever becoming ready.
  void run();
  std::string address() const { return server_.address(); }

  const ServedModel& model() const { return model_; }
  // 404 naming the models that are ready. A null or missing name is refused by the dialects where it is required.
  void require_model(std::string_view name) const;
  Generations& generations() { return generations_; }
  ModelHost& host() { return host_; }
  Metrics& metrics() { return metrics_; }
  const std::string& version() const { return config_.version; }
  bool draining() const { return draining_; }
  // Why a request would not be admitted now, in one word of api.md section 9; empty: it would.
  std::string unready_reason() const;
  // Why nothing moves: steps do not advance although requests wait; empty: all is well.
  std::string stalled_reason() const;

  // For off_thread(): parsing, templates, tokenisation, grammars.
  boost::asio::thread_pool& work() { return server_.work(); }

 private:
  void watch_progress();

  ServiceConfig config_;
  ServedModel model_;
  Metrics metrics_;
  Access access_;
  Router router_;
  Server server_;
  ModelHost host_;
  Generations generations_;
  bool draining_ = false;
  std::optional<Error> fatal_;
  uint64_t last_steps_ = 0;
  std::chrono::steady_clock::time_point progress_at_ = std::chrono::steady_clock::now();
  boost::asio::steady_timer ticker_;
};

}  // namespace verbund::serve
