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
    try {
      nlohmann::json commit = receive({"plan"}, kStartWait);
      while (commit.at("op") == "plan") {
        parts_.reset();
        parts_ = std::make_unique<RunnerParts>(runner_config_from_json(commit.at("config")));
        where_ = "rank " + std::to_string(parts_->config().rank);
        send(parts_->planned());
        commit = receive({"plan", "commit"}, parts_->config().load_wait);
      }
      std::thread control([this] { control_loop(); });
      const int code = compute(commit);
      done_ = true;
      control.join();
      return code;
    } catch (...) { return report_error(current_error(where_)); }
  }

 private:
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

  // Reads frames until compute is done. The only thread that reads after the start.
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
      while (auto message = channel_.poll()) {
        const std::string got = message->value("op", std::string());
        if (std::find(ops.begin(), ops.end(), got) != ops.end()) return *message;
        if (got == "ping") send({{"op", "pong"}, {"n", message->value("n", uint64_t(0))}});
        if (got == "stop" || got == "abort") throw Error({Code::cancelled, Lost::instance, "stopped before the start", {}, {}});
      }
      if (deadline.expired())
        throw Error({Code::deadline_exceeded, Lost::instance, "no '" + std::string(*ops.begin()) + "' from the owner", {}, {}});
      pollfd p{channel_.fd(), POLLIN, 0};
      ::poll(&p, 1, std::min(deadline.left_ms(), 1000));
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
