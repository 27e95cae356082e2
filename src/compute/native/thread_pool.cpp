#include "compute/native/thread_pool.h"

#include <utility>

#include "base/error.h"
#include "base/unix.h"

namespace verbund::compute::native {
namespace {

// Longer than the gaps inside a step, those between two steps and the waits for other ranks mostly included, and short against a
// scheduler's time slice.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kLooksPerClock = 32;

template <class Done>
bool spin_until(Spinner& spinner, Done done) {
  if (!spinner.worthwhile()) return done();
  Spinner::Clock::time_point end{};
  for (int i = 1;; ++i) {
    if (done()) return true;
    if (i % kLooksPerClock != 0) {
      cpu_pause();
      continue;
    }
    const auto now = Spinner::Clock::now();
    if (end == Spinner::Clock::time_point{}) end = now + kSpin;
    if (now >= end || !spinner.give_core_away(now)) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(unsigned threads) : spinner_(threads > available_cores()) {
  for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  wake_workers();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::wake_workers() {
  signal_.fetch_add(1);
  if (sleepers_.load() > 0) signal_.notify_all();
}

void ThreadPool::run(size_t tasks, Task task, void* context) {
  if (tasks > UINT32_MAX) throw Error(Code::internal, "too many tasks in one parallel_for", "thread pool");
  task_.store(task, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  tasks_.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
  claim_.store(generation << 32 | tasks, std::memory_order_release);
  wake_workers();
  run_tasks();
  const auto all_done = [this, tasks] { return finished_.load(std::memory_order_acquire) == tasks; };
  if (!spin_until(spinner_, all_done)) {
    spinner_.slept();
    caller_sleeps_.store(true);
    for (uint32_t seen = finished_.load(); seen != tasks; seen = finished_.load()) finished_.wait(seen);
    caller_sleeps_.store(false);
  }
  if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Claims and runs tasks of the current job until none is left. False: there was nothing to do.
bool ThreadPool::run_tasks() {
  bool any = false;
  uint64_t word = claim_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(word) != 0) {
    const Task task = task_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const uint32_t tasks = tasks_.load(std::memory_order_relaxed);
    if (!claim_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    any = true;
    try {
      if (!failed_.load(std::memory_order_relaxed)) task(context, tasks - static_cast<uint32_t>(word));
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    if (finished_.fetch_add(1) + 1 == tasks && caller_sleeps_.load()) finished_.notify_one();
    word = claim_.load(std::memory_order_acquire);
  }
  return any;
}

void ThreadPool::work() {
  Spinner spinner(spinner_.crowded());
  while (!stopping_) {
    const uint32_t seen = signal_.load();
    if (run_tasks()) continue;
    if (spin_until(spinner, [this, seen] { return signal_.load(std::memory_order_relaxed) != seen; })) continue;
    spinner.slept();
    sleepers_.fetch_add(1);
    signal_.wait(seen);
    sleepers_.fetch_sub(1);
  }
}

}  // namespace verbund::compute::native
