// The threads of one native backend.
//
// parallel_for(n, f) runs f(0) .. f(n-1), each once, on the calling thread and the workers, and returns when all are
// done. Which thread runs which task is not fixed, so a task must depend on its index alone; then results do not depend
// on the number of threads. With one thread there are no workers and nothing is synchronised.
// One thread at a time calls parallel_for, and not from inside a task. Waiting spins for a bounded time, giving the core away in
// between (base/spin.h), and then sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/spin.h"

namespace verbund::compute::native {

class ThreadPool {
 public:
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // The first exception of a task is thrown here after all tasks have ended; tasks not begun by then are skipped.
  template <class F>
  void parallel_for(size_t tasks, F&& f) {
    if (workers_.empty() || tasks <= 1) {
      for (size_t i = 0; i < tasks; ++i) f(i);
      return;
    }
    using Callable = std::remove_reference_t<F>;
    run(
        tasks, [](void* context, size_t i) { (*static_cast<Callable*>(context))(i); }, const_cast<std::remove_const_t<Callable>*>(&f));
  }

 private:
  using Task = void (*)(void* context, size_t i);
  void run(size_t tasks, Task task, void* context);
  void work();
  bool run_tasks();
  void wake_workers();

  Spinner spinner_;  // of the calling thread
  std::vector<std::thread> workers_;
  // generation << 32 | tasks not yet claimed. A claim is one compare-exchange on the whole word, so a late worker can
  // never take a task of a newer job with the fields of an older one.
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};  // changes with every job: what sleeping workers wait on
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> tasks_{0};
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

}  // namespace verbund::compute::native
