#include "serve/generation.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace verbund::serve {

namespace asio = boost::asio;

std::optional<ApiError> not_ready(const ModelHost& host) {
  switch (host.state()) {
    case HostState::ready: return std::nullopt;
    case HostState::loading: {
      ApiError error(Fault::loading, "the model is still loading");
      error.retry_after_s = 2;
      return error;
    }
    case HostState::restarting: {
      ApiError error(Fault::overloaded, "the instance was lost and is starting again: " + host.reason());
      error.retry_after_s = 2;
      return error;
    }
    case HostState::stopped: break;
  }
  return ApiError(Fault::overloaded, "the server is shutting down");
}

// ---- Generation

Generation::~Generation() { cancel(); }

awaitable<void> Generation::wait(Clock::duration tick) {
  if (!events_.empty() || failed_) co_return;
  bell_.expires_after(tick);
  boost::system::error_code rung;
  co_await bell_.async_wait(asio::redirect_error(asio::use_awaitable, rung));
}

std::vector<ChoiceEvent> Generation::take() {
  pending_bytes_ = 0;
  return std::exchange(events_, {});
}

void Generation::push(ChoiceEvent event) {
  pending_bytes_ += event.engine.text.size() + sizeof(ChoiceEvent);
  events_.push_back(std::move(event));
  bell_.cancel();
}

void Generation::fail(ApiError error) {
  live_.clear();
  owner_.held_ -= held_.size();
  held_.clear();
  failed_ = std::move(error);
  bell_.cancel();
}

void Generation::cancel() {
  for (const auto& [id, choice] : live_) {
    owner_.host_.cancel(id);
    owner_.forget(id);
    owner_.metrics_.finished("abort");
  }
  live_.clear();
  owner_.held_ -= held_.size();
  held_.clear();
}

void Generation::cancel(uint32_t choice) {
  for (auto it = live_.begin(); it != live_.end(); ++it)
    if (it->second == choice) {
      owner_.host_.cancel(it->first);
      owner_.release_held(*this, it->first);
      owner_.forget(it->first);
      live_.erase(it);
      return;
    }
}

// ---- Generations

std::shared_ptr<Generation> Generations::start(std::vector<engine::Request> choices, uint32_t per_prompt) {
  if (draining_) throw ApiError(Fault::overloaded, "the server is shutting down");
  if (auto error = not_ready(host_)) throw *error;
  if (live() + choices.size() > limits_.requests_max) {
    ApiError error(Fault::rate_limit, "the queue is full: " + std::to_string(live()) + " requests run or wait, at most " +
                                          std::to_string(limits_.requests_max) + " are taken");
    error.retry_after_s = 1;
    throw error;
  }
  auto generation = std::make_shared<Generation>(*this, executor_);
  uint64_t first = 0;
  for (uint32_t i = 0; i < choices.size(); ++i) {
    choices[i].id = next_id_++;
    const uint64_t id = choices[i].id;
    if (i % per_prompt == 0) {
      first = id;
      submit(*generation, std::move(choices[i]), i);
    } else {
      generation->held_.push_back({first, std::move(choices[i]), i});
      ++held_;
    }
  }
  return generation;
}

void Generations::submit(Generation& generation, engine::Request request, uint32_t choice) {
  live_[request.id] = {&generation, choice};
  generation.live_[request.id] = choice;
  host_.submit(std::move(request));
}

void Generations::release_held(Generation& generation, uint64_t after) {
  auto held = std::exchange(generation.held_, {});
  for (Generation::Held& h : held) {
    if (h.after != after) {
      generation.held_.push_back(std::move(h));
      continue;
    }
    --held_;
    submit(generation, std::move(h.request), h.choice);
  }
}

void Generations::deliver(std::vector<engine::InstanceEvent> events) {
  for (engine::InstanceEvent& event : events) {
    const auto it = live_.find(event.request);
    if (it == live_.end()) continue;  // cancelled meanwhile
    Generation& generation = *it->second.generation;
    const uint32_t choice = it->second.choice;
    measure(generation, event);
    release_held(generation, event.request);
    if (event.finish) {
      generation.live_.erase(event.request);
      live_.erase(event.request);
    }
    generation.push({choice, std::move(event)});
  }
}

void Generations::measure(Generation& generation, const engine::InstanceEvent& event) {
  const auto now = Generation::Clock::now();
  const auto seconds = [&](Generation::Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
  Generation::Times& t = generation.times_[event.request];
  if (event.token) {
    if (t.tokens++ == 0)
      metrics_.time_to_first_token.observe(seconds(generation.begun_));
    else
      metrics_.inter_token_latency.observe(seconds(t.last));
    t.last = now;
  }
  if (!event.finish) return;
  metrics_.request_seconds.observe(seconds(generation.begun_));
  metrics_.finished(*event.finish == "cancelled" ? "abort" : *event.finish);
  metrics_.count_tokens(event.figures);
  generation.times_.erase(event.request);
}

void Generations::fail_all(const ApiError& error) {
  std::unordered_map<uint64_t, Owner> lost = std::exchange(live_, {});
  for (const auto& [id, owner] : lost) {
    metrics_.finished("error");
    if (!owner.generation->failed_) owner.generation->fail(error);
  }
}

}  // namespace verbund::serve
