// The guard over waits that MLX cannot end: sockets are shut down at the deadline, and the process ends when even that
// does not help.
#include "compute/mlx/watchdog.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/unix.h"

namespace verbund::compute::mlx_impl {
namespace {

using namespace std::chrono_literals;

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ours = Fd(fds[0]), theirs = Fd(fds[1]);
  }
  Fd ours, theirs;
};

ssize_t blocking_read(const Fd& fd) {
  char byte;
  return ::read(fd.get(), &byte, 1);
}

TEST(Watchdog, DeadlineShutsTheSocketsDown) {
  Pair pair;
  Watchdog dog;
  dog.add_sockets({pair.ours.get()});
  {
    const Watchdog::Watch watch(dog, "all_gather, rank 1 of 2", Deadline::after(100ms));
    EXPECT_EQ(blocking_read(pair.ours), 0);  // returns only because of the shutdown
  }
  EXPECT_TRUE(dog.dead());
  try {
    dog.throw_if_dead();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::deadline_exceeded);
    EXPECT_EQ(e.parts().where, "all_gather, rank 1 of 2");
    EXPECT_EQ(e.parts().what, "no answer for 0.1 s");
  }
}

TEST(Watchdog, FirstReasonStays) {
  Watchdog dog;
  dog.kill({Code::cancelled, Lost::instance, "first", {}, {}});
  dog.kill({Code::data_loss, Lost::instance, "second", {}, {}});
  try {
    dog.throw_if_dead();
    FAIL() << "no error";
  } catch (const Error& e) { EXPECT_EQ(e.parts().what, "first"); }
}

TEST(Watchdog, SocketsAreGuardedOnlyWhileTheyAreOurs) {
  Pair mine, foreign;
  Watchdog dog;
  EXPECT_EQ(dog.add_sockets({mine.ours.get()}).size(), 1u);
  EXPECT_EQ(dog.add_sockets({mine.ours.get(), foreign.ours.get()}).size(), 1u);  // the first belongs to another ring
  dog.remove_sockets({foreign.ours.get()});
  dog.kill({Code::cancelled, Lost::instance, "end", {}, {}});
  EXPECT_EQ(blocking_read(mine.theirs), 0);
  EXPECT_EQ(::write(foreign.theirs.get(), "x", 1), 1);
  EXPECT_EQ(blocking_read(foreign.ours), 1);
}

// A wait without sockets, as over JACCL, MPI or NCCL: nothing can end it but the end of the process.
TEST(WatchdogDeathTest, EndsTheProcessWhenNothingElseHelps) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        Watchdog dog;
        const Watchdog::Watch watch(dog, "all_reduce, rank 0 of 4, mlx jaccl", Deadline::after(100ms));
        std::this_thread::sleep_for(20s);
      },
      testing::ExitedWithCode(mapping(Code::deadline_exceeded).exit_code), "no answer for 0.1 s .all_reduce, rank 0 of 4, mlx jaccl");
}

}  // namespace
}  // namespace verbund::compute::mlx_impl
