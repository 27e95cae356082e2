#include "compute/native/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <stdexcept>

namespace verbund::compute::native {
namespace {

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const unsigned threads : {1u, 2u, 3u, 8u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (size_t round = 0; round < 2000; ++round) {
      const size_t tasks = round % 37;
      std::vector<int> runs(tasks, 0);
      pool.parallel_for(tasks, [&](size_t i) { ++runs[i]; });
      for (size_t i = 0; i < tasks; ++i) ASSERT_EQ(runs[i], 1) << threads << " threads, round " << round;
    }
  }
}

TEST(ThreadPool, WorkersWakeUpAgainAfterSleeping) {
  ThreadPool pool(4);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than workers spin
    std::atomic<int> sum{0};
    pool.parallel_for(100, [&](size_t i) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(ThreadPool, ThrowsTheFirstFailureAndGoesOn) {
  for (const unsigned threads : {1u, 4u}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.parallel_for(50,
                                   [](size_t i) {
                                     if (i == 20) throw std::runtime_error("task 20");
                                   }),
                 std::runtime_error);
    std::atomic<int> runs{0};
    pool.parallel_for(50, [&](size_t) { ++runs; });
    EXPECT_EQ(runs, 50);
  }
}

}  // namespace
}  // namespace verbund::compute::native
