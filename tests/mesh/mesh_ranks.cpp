#include "mesh/mesh_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/unix.h"
#include "mesh/verbs/endpoint.h"

namespace verbund::mesh::testing {
namespace {

int ready_pipe = -1;  // of the child this process is

Outcome outcome_of(const std::function<void()>& function) {
  Outcome outcome;
  const auto begun = std::chrono::steady_clock::now();
  try {
    function();
  } catch (const Error& e) { outcome = {true, e.code(), e.what(), 0}; }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return outcome;
}

int count_entries(const char* folder) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{}));
}

}  // namespace

std::string to_string(const Channel& channel) {
  if (channel.transport != Transport::verbs) return std::string(mesh::to_string(channel.transport));
  return channel.queue_pair == QueuePairKind::uc ? "verbs_uc" : "verbs_rc";
}

const std::string& verbs_library() {
  static const std::string library = verbs::find_candidates({}).candidates.empty() ? kFakeVerbs : "";
  return library;
}

std::string lacking_for(const Channel& channel, bool across_processes) {
  if (channel.transport != Transport::verbs) return {};
  const auto found = verbs::find_candidates(across_processes ? "" : verbs_library());
  return found.candidates.empty() ? found.problem + " (make test-rdma has one)" : "";
}

MeshConfig config_of(const World& world, int rank) {
  MeshConfig config;
  config.rank = rank;
  config.size = world.size;
  config.epoch = 7;
  config.secret = "0123456789abcdef0123456789abcdef";
  config.transport = world.channel.transport;
  config.verbs = {true, world.channel.queue_pair, verbs_library()};
  config.jitter_seed = world.jitter_seed;
  config.spin_us = world.spin_us;
  return config;
}

std::vector<Outcome> run_threads(const World& world, const RankFunction& function) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> endpoints;
  for (int r = 0; r < world.size; ++r) {
    listeners.push_back(listen(config_of(world, r)));
    endpoints.push_back(listeners.back()->endpoint());
  }
  std::vector<Outcome> outcomes(static_cast<size_t>(world.size));
  std::barrier done(world.size);
  std::vector<std::thread> threads;
  for (int r = 0; r < world.size; ++r)
    threads.emplace_back([&, r] {
      const auto at = static_cast<size_t>(r);
      std::unique_ptr<Mesh> mesh;
      outcomes[at] = outcome_of([&] {
        mesh = connect_mesh(config_of(world, r), *listeners[at], endpoints, soon());
        function(*mesh);
      });
      done.arrive_and_wait();
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

void expect_all(const World& world, const RankFunction& function) {
  const auto outcomes = run_threads(world, function);
  for (size_t r = 0; r < outcomes.size(); ++r) EXPECT_FALSE(outcomes[r].failed) << "rank " << r << ": " << outcomes[r].what;
}

Processes::Processes(const World& world, const RankFunction& function) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> endpoints;
  for (int r = 0; r < world.size; ++r) {
    listeners.push_back(listen(config_of(world, r)));
    endpoints.push_back(listeners.back()->endpoint());
  }
  for (int r = 0; r < world.size; ++r) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      for (auto& child : children_) ::close(child.results);
      ready_pipe = ends[1];
      auto mine = std::move(listeners[static_cast<size_t>(r)]);
      listeners.clear();
      Outcome outcome;
      {
        std::unique_ptr<Mesh> mesh;
        outcome = outcome_of([&] {
          mesh = connect_mesh(config_of(world, r), *mine, endpoints, soon());
          function(*mesh);
        });
      }
      const std::string text = std::string(1, outcome.failed ? 'E' : 'K') + static_cast<char>('a' + static_cast<int>(outcome.code)) +
                               std::to_string(outcome.seconds) + "\n" + outcome.what;
      if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(2);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(ends[1]);
    children_.push_back({pid, ends[0]});
  }
}

Processes::~Processes() {
  for (auto& child : children_) {
    if (child.pid > 0) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
    }
    if (child.results >= 0) ::close(child.results);
  }
}

void Processes::ready() {
  if (::write(ready_pipe, "R", 1) != 1) ::_exit(3);
}

void Processes::wait_ready(int rank) {
  char byte = 0;
  ASSERT_EQ(::read(children_[static_cast<size_t>(rank)].results, &byte, 1), 1);
  ASSERT_EQ(byte, 'R');
}

void Processes::kill(int rank, int signal) { ::kill(children_[static_cast<size_t>(rank)].pid, signal); }

Outcome Processes::wait(int rank, double seconds_max) {
  Child& child = children_[static_cast<size_t>(rank)];
  std::string text;
  const Deadline deadline = soon(seconds_max);
  for (char bytes[4096];;) {
    pollfd p{child.results, POLLIN, 0};
    if (::poll(&p, 1, deadline.left_ms()) <= 0) return {true, Code::internal, "rank did not end in time", seconds_max};
    const ssize_t n = ::read(child.results, bytes, sizeof bytes);
    if (n <= 0) break;
    text.append(bytes, static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  child.pid = -1;
  text.erase(0, text.find_first_not_of('R'));
  if (text.size() < 3) return {true, Code::internal, "rank ended without a word, status " + std::to_string(status), 0};
  const size_t line = text.find('\n');
  Outcome outcome{text[0] == 'E', static_cast<Code>(text[1] - 'a'), text.substr(line + 1), std::stod(text.substr(2, line - 2))};
  if (!outcome.failed && status != 0) outcome = {true, Code::internal, "an expectation failed in the rank's process", outcome.seconds};
  return outcome;
}

int open_descriptors() { return count_entries("/proc/self/fd"); }
int running_threads() { return count_entries("/proc/self/task"); }

}  // namespace verbund::mesh::testing
