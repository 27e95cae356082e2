#include "engine/runner.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "engine/frames.h"
#include "engine/leader.h"
#include "engine/runner_config.h"
#include "engine/runner_parts.h"

namespace verbund::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto kSendWait = 5s;    // the owner reads all the time; a longer stall means it is gone or stopped
constexpr auto kStartWait = 60s;  // for the first frames
constexpr auto kAbortGrace = 1s;  // for the compute thread to leave its wait before the process ends anyway

class Runner {
 public:
  explicit Runner(int fd) : channel_(Fd(fd), "owner") {}

  int run() {
    // From the first moment on: planning and loading take long on a busy machine, and a rank that cannot answer is taken for dead.
    std::thread control([this] { control_loop(); });
    const int code = plan_and_compute();
    done_ = true;
    control.join();
    return code;
  }

 private:
  int plan_and_compute() {
    try {
      nlohmann::json commit = receive({"plan"}, kStartWait);
      while (commit.at("op") == "plan") {
        parts_.reset();
        const RunnerConfig config = runner_config_from_json(commit.at("config"));
        std::this_thread::sleep_for(std::chrono::milliseconds(config.faults.slow_plan_ms));
        parts_ = std::make_unique<RunnerParts>(config);
        where_ = "rank " + std::to_string(parts_->config().rank);
        send(parts_->planned());
        commit = receive({"plan", "commit"}, parts_->config().load_wait);
      }
      return compute(commit);
    } catch (...) { return report_error(current_error(where_)); }
  }

  int compute(const nlohmann::json& commit) {
    try {
      parts_->connect(commit.at("endpoints").get<std::vector<std::string>>(), [this](mesh::Mesh& m) { set_mesh(&m); });
      parts_->load([this](uint64_t bytes, uint64_t total) { send({{"op", "progress"}, {"bytes", bytes}, {"total", total}}); });
      send(parts_->ready());
      parts_->serve(mailbox_, [this](nlohmann::json message) { send(message); });
      send(parts_->report());
      set_mesh(nullptr);
      return 0;
    } catch (...) {
      const Error error = current_error(where_);
      set_mesh(nullptr);
      return report_error(error);
    }
  }

  // Reads frames until compute is done; the only thread that does.
  void control_loop() {
    try {
      while (!done_) {
        pollfd p{channel_.fd(), POLLIN, 0};
        ::poll(&p, 1, 50);
        while (auto message = channel_.poll()) handle(std::move(*message));
      }
    } catch (const Error& e) { end_waits(std::string("the owner is gone: ") + e.what()); }
  }

  void handle(nlohmann::json message) {
    const std::string op = message.value("op", std::string());
    if (op == "ping")
      send({{"op", "pong"}, {"n", message.value("n", uint64_t(0))}});
    else if (op == "abort")
      end_waits(message.value("reason", std::string("aborted")));
    else
      mailbox_.push(std::move(message));
  }

  // Cancels the data waits and makes sure that the process ends even if the compute thread is stuck elsewhere.
  void end_waits(const std::string& reason) {
    {
      const std::lock_guard lock(mesh_mutex_);
      if (mesh_) mesh_->cancel(reason);
    }
    mailbox_.push({{"op", "stop"}});
    const Deadline grace = Deadline::after(kAbortGrace);
    while (!done_ && !grace.expired()) std::this_thread::sleep_for(10ms);
    if (!done_) ::_exit(mapping(Code::cancelled).exit_code);
  }

  void set_mesh(mesh::Mesh* mesh) {
    const std::lock_guard lock(mesh_mutex_);
    mesh_ = mesh;
  }

  void send(const nlohmann::json& message) { channel_.send(message, Deadline::after(kSendWait)); }

  nlohmann::json receive(std::initializer_list<std::string_view> ops, std::chrono::nanoseconds wait) {
    const Deadline deadline = Deadline::after(wait);
    for (;;) {
      for (const nlohmann::json& message : mailbox_.take(std::chrono::milliseconds(std::min(deadline.left_ms(), 1000)))) {
        const std::string got = message.value("op", std::string());
        if (std::find(ops.begin(), ops.end(), got) != ops.end()) return message;  // the owner sends nothing more before the answer
        if (got == "stop") throw Error({Code::cancelled, Lost::instance, "stopped before the start", {}, {}});
      }
      if (deadline.expired())
        throw Error({Code::deadline_exceeded, Lost::instance, "no '" + std::string(*ops.begin()) + "' from the owner", {}, {}});
    }
  }

  int report_error(const Error& error) {
    try {
      send({{"op", "error"}, {"error", to_json(error)}});
    } catch (...) {
      std::fprintf(stderr, "verbund runner: %s\n", error.what());  // nobody else is left to tell
    }
    return mapping(error.code()).exit_code;
  }

  FrameChannel channel_;
  std::string where_ = "runner";
  Mailbox mailbox_;
  std::unique_ptr<RunnerParts> parts_;
  std::mutex mesh_mutex_;
  mesh::Mesh* mesh_ = nullptr;
  std::atomic<bool> done_ = false;
};

}  // namespace

int run_runner(int fd) {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);  // Ctrl-C reaches the whole foreground group; the owner decides
  Runner runner(fd);
  return runner.run();
}

}  // namespace verbund::engine
