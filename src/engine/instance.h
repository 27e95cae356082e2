// One running copy of a model on this machine's processes, seen from its owner: starts the runners, has them count their
// memory before anything is allocated, so that the owner can refuse, watches them by heartbeat, passes requests in and events out,
// and ends all of them when one is lost. The command line owns one; a node daemon will own several.
//
// Used by one thread; poll() does all the work (heartbeats included) and must be called at least every 250 ms while the
// instance lives. Only wake() may be called by others. The destructor ends every runner.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unix.h"
#include "engine/frames.h"
#include "engine/request.h"
#include "engine/runner_config.h"
#include "engine/sampler.h"

namespace verbund::engine {

// DESIGN 4.2: a rank is asked for a sign of life every kHeartbeat and is dead after kDead without one. A process that has just been
// started may need longer until it can answer at all: on a machine full of other work, kFirstWord.
constexpr std::chrono::milliseconds kHeartbeat{250};
constexpr std::chrono::milliseconds kDead{2000};
constexpr std::chrono::milliseconds kFirstWord{10'000};

struct InstanceConfig {
  std::string program;  // path of this executable
  RunnerConfig runner;  // rank and secret are filled in per runner
};

struct InstanceEvent {
  uint64_t request = 0;
  std::optional<int32_t> token;
  std::string text;                   // valid UTF-8, may be empty
  std::optional<Logprobs> logprobs;   // of the token, if the request asked
  std::optional<std::string> finish;  // "stop", "length", "cancelled", "error"
  std::optional<Error> error;         // this request's
  nlohmann::json figures;             // with finish: tokens, prefill_s, decode_s, logits_sha256
};

struct RankReport {
  size_t rank = 0;
  pid_t pid = 0;
  std::string backend;
  MemoryPlan planned;
  uint64_t weight_bytes = 0, kv_bytes = 0, peak_rss_bytes = 0;
  nlohmann::json links, trace;
};

// What rank 0 said last about its queue and memory; it says so a few times a second, also while idle.
struct EngineStats {
  uint64_t waiting = 0, running = 0, steps = 0, rows = 0, preemptions = 0;
  uint64_t drafted = 0, accepted = 0;    // tokens of speculation
  uint64_t blocks = 0, blocks_used = 0;  // of the KV cache; used: held by a running request
  std::chrono::steady_clock::time_point at{};
};

class Instance {
 public:
  using Progress = std::function<void(uint64_t bytes, uint64_t total)>;  // over all ranks

  explicit Instance(InstanceConfig config);
  ~Instance();
  Instance(const Instance&) = delete;

  // Starts the runners and has them plan. Throws what a runner reports. After it, reports() has the plans and nothing is loaded.
  void plan();
  // Has the runners plan again with another context or chunk (before load).
  void replan(const std::function<void(RunnerConfig&)>& change);
  // Loads; returns when every rank is ready. The owner has compared reports() with its budget before.
  void load(const Progress& progress, const std::function<bool()>& interrupted);

  void submit(const Request& request, bool hash_logits);
  void cancel(uint64_t request);
  // Events since the last call; waits up to `wait` for the first, or for wake(). Throws Lost::instance when a rank is lost: the error
  // names it, and every runner has been ended.
  std::vector<InstanceEvent> poll(std::chrono::milliseconds wait);
  void wake();  // ends the wait of poll(); any thread
  const EngineStats& stats() const { return stats_; }
  // Ends the runners in good order and collects their reports (bounded; what is missing stays zero).
  void stop();

  std::vector<RankReport> reports() const;

 private:
  struct Runner;
  void spawn(size_t rank);
  void ask_for_plans();
  void turn(std::chrono::milliseconds wait);  // one round of the event loop
  void heartbeat();
  void read_from(Runner& runner);
  void handle(Runner& runner, const nlohmann::json& message);
  void reap();
  [[noreturn]] void fail();  // ends everything and throws the best known cause
  void end_all(std::chrono::milliseconds grace, const char* op);
  void send_all(const nlohmann::json& message);
  std::string name(const Runner& runner) const;

  InstanceConfig config_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::vector<InstanceEvent> events_;
  EngineStats stats_;
  Fd wake_read_, wake_write_;
  bool woken_ = false;
  std::chrono::steady_clock::time_point last_ping_{}, last_turn_{};
  uint64_t pings_ = 0;
  bool failed_ = false, stopping_ = false;
};

}  // namespace verbund::engine
