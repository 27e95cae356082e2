// Runs one function on every rank of a fresh mesh: ranks as threads of this process, or as processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "mesh/connect.h"

namespace verbund::mesh::testing {

inline Deadline soon(double seconds = 10) { return Deadline::after(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))); }

// Transports that a suite runs over; verbs counts twice.
struct Channel {
  Transport transport = Transport::shm;
  QueuePairKind queue_pair = QueuePairKind::automatic;
  bool operator==(const Channel&) const = default;
};
constexpr Channel kShm{}, kTcp{Transport::tcp}, kUc{Transport::verbs, QueuePairKind::uc}, kRc{Transport::verbs, QueuePairKind::rc};
const std::vector<Channel> kChannels{kShm, kTcp, kUc, kRc};
std::string to_string(const Channel& channel);  // "shm", "tcp", "verbs_uc", "verbs_rc"
// The verbs library for tests: the system's where it has a device, else the fake one, whose ranks must be threads of one process.
const std::string& verbs_library();
inline const std::string kFakeVerbs = VERBUND_BUILD_DIR "/libfake_verbs.so";
// Why tests over it cannot run here; empty: they can.
std::string lacking_for(const Channel& channel, bool across_processes);

struct World {
  Channel channel;
  int size = 2;
  uint64_t jitter_seed = 0;
  int64_t spin_us = -1;
};

MeshConfig config_of(const World& world, int rank);

// What became of each rank: the Error it ended with, or none.
struct Outcome {
  bool failed = false;
  Code code = Code::internal;
  std::string what;
  double seconds = 0;
};

using RankFunction = std::function<void(Mesh&)>;

// Threads. Each rank's mesh lives until all functions have returned, as the ranks of an instance do.
std::vector<Outcome> run_threads(const World& world, const RankFunction& function);
// The same, and no rank may fail.
void expect_all(const World& world, const RankFunction& function);

// One process a rank. A rank's function runs in a forked child; an Error comes back as its Outcome through a pipe.
class Processes {
 public:
  Processes(const World& world, const RankFunction& function);
  ~Processes();
  void kill(int rank, int signal);
  // Waits until the rank has called ready() from its function.
  void wait_ready(int rank);
  Outcome wait(int rank, double seconds_max = 15);
  static void ready();  // in a child

 private:
  struct Child {
    pid_t pid = -1;
    int results = -1;
  };
  std::vector<Child> children_;
};

int open_descriptors();
int running_threads();

}  // namespace verbund::mesh::testing
