// The answers that are being computed for one API request: one engine request a choice, and the queue of what they have
// said that nobody has written yet. Generations hands events to them and counts who waits.
//
// I/O thread only. A Generation that is dropped cancels what still runs.
#pragma once

#include "engine/instance.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/model_host.h"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace verbund::serve {

class Generations;

// What one choice has said.
struct ChoiceEvent {
  uint32_t choice = 0;
  engine::InstanceEvent engine;
};

class Generation {
 public:
  using Clock = std::chrono::steady_clock;

  Generation(Generations& owner, boost::asio::any_io_executor executor) : owner_(owner), bell_(executor) {}
  ~Generation();
  Generation(const Generation&) = delete;

  // Ends when there are events or a failure, and after `tick` in any case.
  awaitable<void> wait(Clock::duration tick);
  std::vector<ChoiceEvent> take();
  // The whole request has failed (the instance is lost, the server ends): there will be no more events.
  const std::optional<ApiError>& failed() const { return failed_; }
  size_t pending_bytes() const { return pending_bytes_; }
  void cancel();  // all choices
  void cancel(uint32_t choice);

 private:
  friend class Generations;
  void push(ChoiceEvent event);
  void fail(ApiError error);

  Generations& owner_;
  boost::asio::steady_timer bell_;
  std::vector<ChoiceEvent> events_;
  size_t pending_bytes_ = 0;
  std::optional<ApiError> failed_;
  std::unordered_map<uint64_t, uint32_t> live_;  // engine id -> choice
  // Choices that wait for the first one of their prompt: then the prompt is in the prefix cache and is computed once.
  struct Held {
    uint64_t after;  // engine id
    engine::Request request;
    uint32_t choice;
  };
  std::vector<Held> held_;
  Clock::time_point begun_ = Clock::now();
  struct Times {
    Clock::time_point last{};
    uint32_t tokens = 0;
  };
  std::unordered_map<uint64_t, Times> times_;
};

struct GenerationLimits {
  size_t requests_max = 16 + 256;  // running and waiting, a choice counts as one
};

class Generations {
 public:
  Generations(ModelHost& host, GenerationLimits limits, Metrics& metrics, boost::asio::any_io_executor executor)
      : host_(host), limits_(limits), metrics_(metrics), executor_(std::move(executor)) {}

  // choices: `per_prompt` consecutive ones share their prompt. Throws loading (not ready), rate_limit (queue full).
  std::shared_ptr<Generation> start(std::vector<engine::Request> choices, uint32_t per_prompt);

  // Posted by the host's callbacks.
  void deliver(std::vector<engine::InstanceEvent> events);
  void fail_all(const ApiError& error);
  void drain() { draining_ = true; }

  size_t live() const { return live_.size() + held_; }

 private:
  friend class Generation;
  struct Owner {
    Generation* generation;
    uint32_t choice;
  };
  void submit(Generation& generation, engine::Request request, uint32_t choice);
  void release_held(Generation& generation, uint64_t after);
  void forget(uint64_t id) { live_.erase(id); }
  void measure(Generation& generation, const engine::InstanceEvent& event);

  ModelHost& host_;
  GenerationLimits limits_;
  Metrics& metrics_;
  boost::asio::any_io_executor executor_;
  std::unordered_map<uint64_t, Owner> live_;
  size_t held_ = 0;
  uint64_t next_id_ = 1;
  bool draining_ = false;
};

// Why a request cannot be taken now, or nullopt.
std::optional<ApiError> not_ready(const ModelHost& host);

}  // namespace verbund::serve
