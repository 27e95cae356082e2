// Keeps one instance of a model running: a thread of its own starts it, passes requests in and events out, and starts it
// again after a lost rank. What callers see of it is a state, a queue and three callbacks.
//
// submit(), cancel(), state() and stats() are for any thread. The callbacks come from the host's thread: a server posts them
// to its I/O thread.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/instance.h"

namespace verbund::serve {

enum class HostState { loading, ready, restarting, stopped };

struct HostCallbacks {
  std::function<void(std::vector<engine::InstanceEvent>)> events;
  std::function<void(Error)> lost;   // the instance: every request that was submitted before has ended
  std::function<void(Error)> fatal;  // it never became ready; the host has given up
  std::function<void()> ready;
};

class ModelHost {
 public:
  // check: called when the runners have planned their memory; throws if the owner does not want it loaded.
  ModelHost(engine::InstanceConfig config, std::function<void(engine::Instance&)> check, HostCallbacks callbacks);
  ~ModelHost();  // stops

  void start();
  void stop();  // ends the runners in good order; returns when they are gone (bounded, seconds)

  void submit(engine::Request request);
  void cancel(uint64_t request);

  HostState state() const { return state_; }
  std::string reason() const;  // why it is not ready: one line, may be empty
  engine::EngineStats stats() const;
  std::vector<engine::RankReport> ranks() const;
  uint64_t restarts() const { return restarts_; }

 private:
  struct Command {
    std::optional<engine::Request> submit;
    uint64_t cancel = 0;
  };
  struct Published;
  void run();
  void serve_once();
  void push(Command command);
  void carry_out(engine::Instance& instance, std::vector<Command> commands);
  void pause(std::chrono::milliseconds wait);

  engine::InstanceConfig config_;
  std::function<void(engine::Instance&)> check_;
  HostCallbacks callbacks_;
  std::atomic<HostState> state_ = HostState::loading;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> restarts_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  engine::Instance* instance_ = nullptr;
  std::vector<Command> commands_;
  engine::EngineStats stats_;
  std::vector<engine::RankReport> ranks_;
  std::string reason_ = "loading";

  std::thread thread_;  // one for all lives: a runner dies with the thread that has started it
};

}  // namespace verbund::serve
