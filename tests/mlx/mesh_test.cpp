// The mesh over MLX's ring, between real processes on loopback.
#ifdef VERBUND_MLX_BUILT
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "compute/mlx_module.h"

extern char** environ;

namespace verbund {
namespace {

pid_t start(const std::string& role, int rank, const std::vector<std::string>& endpoints) {
  std::vector<std::string> words{"test_mlx", "--role", role, std::to_string(rank)};
  words.insert(words.end(), endpoints.begin(), endpoints.end());
  std::vector<char*> args;
  for (auto& w : words) args.push_back(w.data());
  args.push_back(nullptr);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, args.data(), environ), 0);
  return pid;
}

// Exit status of each rank; -1 for one that had to be killed because it did not end.
std::vector<int> run(const std::string& role, int ranks, int started) {
  std::vector<compute::MlxReservation> reserved;
  std::vector<std::string> endpoints;
  for (int r = 0; r < ranks; ++r) { endpoints.push_back(reserved.emplace_back("127.0.0.1").endpoint()); }
  std::vector<pid_t> pids;
  for (int r = 0; r < started; ++r) pids.push_back(start(role, r, endpoints));
  std::vector<int> status(pids.size(), -1);
  const Deadline deadline = Deadline::after(std::chrono::seconds(40));
  for (size_t r = 0; r < pids.size(); ++r) {
    int code = 0;
    pid_t ended = 0;
    while ((ended = waitpid(pids[r], &code, WNOHANG)) == 0 && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (ended == 0) {
      kill(pids[r], SIGKILL);
      waitpid(pids[r], &code, 0);
    } else if (WIFEXITED(code)) {
      status[r] = WEXITSTATUS(code);
    }
  }
  return status;
}

std::vector<int> all_fine(int ranks) { return std::vector<int>(static_cast<size_t>(ranks), 0); }

TEST(MlxMesh, ContractOfTwoRanks) { EXPECT_EQ(run("contract", 2, 2), all_fine(2)); }
TEST(MlxMesh, ContractOfThreeRanks) { EXPECT_EQ(run("contract", 3, 3), all_fine(3)); }
TEST(MlxMesh, SubgroupsAndMessagesBetweenRanksThatAreNoNeighbours) { EXPECT_EQ(run("subgroups", 4, 4), all_fine(4)); }
TEST(MlxMesh, OtherOperationIsAnError) { EXPECT_EQ(run("diverged_operation", 3, 3), all_fine(3)); }
TEST(MlxMesh, OtherLengthIsAnError) { EXPECT_EQ(run("diverged_length", 2, 2), all_fine(2)); }
TEST(MlxMesh, OtherMeshIsAnError) { EXPECT_EQ(run("diverged_mesh", 2, 2), all_fine(2)); }
TEST(MlxMesh, DeadlineEndsTheWait) { EXPECT_EQ(run("late", 2, 2), all_fine(2)); }
TEST(MlxMesh, DeadPeerEndsTheWait) { EXPECT_EQ(run("dies", 2, 2), all_fine(2)); }
TEST(MlxMesh, CancelEndsTheWaitOfASubgroup) { EXPECT_EQ(run("cancelled", 2, 2), all_fine(2)); }
TEST(MlxMesh, PeerThatNeverComesEndsTheOpening) { EXPECT_EQ(run("nobody_comes", 2, 1), all_fine(1)); }
TEST(MlxMesh, BackendOverTheMesh) { EXPECT_EQ(run("backend", 2, 2), all_fine(2)); }
TEST(MlxMesh, BackendOverTheMeshOfThree) { EXPECT_EQ(run("backend", 3, 3), all_fine(3)); }

TEST(MlxMesh, SumsOfAStepAreOneEvaluation) { EXPECT_EQ(run("graph_of_sums", 2, 2), all_fine(2)); }
TEST(MlxMesh, SumsOfAStepOfThreeRanks) { EXPECT_EQ(run("graph_of_sums", 3, 3), all_fine(3)); }
TEST(MlxMesh, DeadlineEndsTheWaitForSums) { EXPECT_EQ(run("late_sums", 2, 2), all_fine(2)); }

TEST(MlxMesh, RefusesBadOptions) {
  const auto attempt = [](const compute::MlxMeshOptions& options) {
    try {
      compute::make_mlx_mesh(options, Deadline::after(std::chrono::seconds(1)));
    } catch (const Error& e) { return e.code(); }
    return Code::internal;
  };
  EXPECT_EQ(attempt({"ring", 2, {"127.0.0.1:5000", "127.0.0.1:5001"}}), Code::invalid_argument);
  EXPECT_EQ(attempt({"ring", 0, {"127.0.0.1:5000", "127.0.0.1"}}), Code::invalid_argument);
  EXPECT_EQ(attempt({"ring", 0, {"127.0.0.1:5000", "127.0.0.1:99999"}}), Code::invalid_argument);
  EXPECT_EQ(attempt({"ring", 0, {"127.0.0.1:5000", "host\",\"x:5001"}}), Code::invalid_argument);
  EXPECT_EQ(attempt({"pigeon", 0, {}}), Code::unavailable);
}

}  // namespace
}  // namespace verbund
#endif
