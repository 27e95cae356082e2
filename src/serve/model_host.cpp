#include "serve/model_host.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace verbund::serve {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = 200ms;  // heartbeats are every 250 ms
// The first restart is at once; one that fails again and again (memory taken by others, a broken disk) backs off.
constexpr auto kPauseMin = 500ms, kPauseMax = 30'000ms;
constexpr auto kStable = 60s;

}  // namespace

ModelHost::ModelHost(engine::InstanceConfig config, std::function<void(engine::Instance&)> check, HostCallbacks callbacks)
    : config_(std::move(config)), check_(std::move(check)), callbacks_(std::move(callbacks)) {}

ModelHost::~ModelHost() { stop(); }

void ModelHost::start() {
  thread_ = std::thread([this] { run(); });
}

void ModelHost::stop() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (instance_) instance_->wake();
  }
  if (thread_.joinable()) thread_.join();
}

void ModelHost::run() {
  auto wait = 0ms;
  while (!stop_) {
    pause(wait);
    const auto begun = Clock::now();
    bool was_ready = false;
    try {
      serve_once();
    } catch (...) {
      const Error error = current_error();
      was_ready = state_ == HostState::ready;
      if (!stop_) spdlog::error("the instance is lost: {}", error.what());
      {
        const std::lock_guard lock(mutex_);
        reason_ = error.what();
      }
      if (!was_ready && restarts_ == 0 && !stop_) {
        state_ = HostState::stopped;
        callbacks_.fatal(error);
        return;
      }
      state_ = HostState::restarting;
      callbacks_.lost(error);
      ++restarts_;
    }
    const bool stable = was_ready && Clock::now() - begun > kStable;
    wait = stable || (was_ready && wait == 0ms)
               ? 0ms
               : std::clamp(wait * 2, std::chrono::milliseconds(kPauseMin), std::chrono::milliseconds(kPauseMax));
  }
  state_ = HostState::stopped;
}

// Other threads wake the instance only while this lives, so never one that is being destroyed.
struct ModelHost::Published {
  Published(ModelHost& host, engine::Instance& instance) : host(host) {
    const std::lock_guard lock(host.mutex_);
    host.commands_.clear();  // of an earlier life; their requests have ended with it
    host.instance_ = &instance;
    host.ranks_ = instance.reports();
    host.reason_.clear();
  }
  ~Published() {
    const std::lock_guard lock(host.mutex_);
    host.instance_ = nullptr;
    host.reason_ = "stopped";
  }
  ModelHost& host;
};

void ModelHost::serve_once() {
  engine::Instance instance(config_);
  instance.plan();
  if (check_) check_(instance);
  const auto begun = Clock::now();
  instance.load({}, [this] { return stop_.load(); });
  const Published published(*this, instance);
  state_ = HostState::ready;
  spdlog::info("the model is ready on {} ranks after {:.1f} s", ranks_.size(), std::chrono::duration<double>(Clock::now() - begun).count());
  callbacks_.ready();
  while (!stop_) {
    std::vector<Command> commands;
    {
      const std::lock_guard lock(mutex_);
      commands = std::exchange(commands_, {});
      stats_ = instance.stats();
    }
    carry_out(instance, std::move(commands));
    auto events = instance.poll(kPoll);
    if (!events.empty()) callbacks_.events(std::move(events));
  }
  instance.stop();
}

void ModelHost::carry_out(engine::Instance& instance, std::vector<Command> commands) {
  for (const Command& c : commands)
    if (c.submit)
      instance.submit(*c.submit, false);
    else
      instance.cancel(c.cancel);
}

void ModelHost::submit(engine::Request request) { push({.submit = std::move(request)}); }
void ModelHost::cancel(uint64_t request) { push({.submit = {}, .cancel = request}); }

void ModelHost::push(Command command) {
  const std::lock_guard lock(mutex_);
  if (!instance_) return;
  commands_.push_back(std::move(command));
  instance_->wake();
}

void ModelHost::pause(std::chrono::milliseconds wait) {
  for (const auto late = Clock::now() + wait; Clock::now() < late && !stop_;) std::this_thread::sleep_for(50ms);
}

std::string ModelHost::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

engine::EngineStats ModelHost::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<engine::RankReport> ModelHost::ranks() const {
  const std::lock_guard lock(mutex_);
  return ranks_;
}

}  // namespace verbund::serve
