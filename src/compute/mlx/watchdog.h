// Ends waits that MLX cannot end by itself (docs/DESIGN.md section 4.2).
//
// MLX's communication blocks without a time limit. The watchdog knows the operation under way and its deadline; when the
// deadline passes, or someone cancels, it shuts down the sockets of the ring, which makes MLX's threads fail and the
// operation return. Groups that run over something else (JACCL, MPI, NCCL) offer no such handle: there, and if a ring
// does not return within kGrace either, the watchdog prints the reason and ends the process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"

namespace verbund::compute::mlx_impl {

class Watchdog {
 public:
  Watchdog();
  ~Watchdog();

  // One operation at a time, on the thread that uses the mesh.
  class Watch {
   public:
    Watch(Watchdog& dog, std::string operation, const Deadline& deadline);
    ~Watch();

   private:
    Watchdog& dog_;
  };

  // The sockets of a ring, for as long as the ring lives. Returns those that belong to no other ring already.
  std::vector<int> add_sockets(const std::vector<int>& candidates);
  void remove_sockets(const std::vector<int>& sockets);

  // The first reason stays; every wait ends. Any thread.
  void kill(Error::Parts reason);
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  void throw_if_dead() const;

 private:
  static constexpr std::chrono::milliseconds kTick{10};
  static constexpr std::chrono::seconds kGrace{2};

  struct Active {
    std::string operation;
    Deadline deadline;
  };
  void watch();
  void interrupt_locked();
  [[noreturn]] void end_process_locked();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::atomic<bool> dead_{false};
  std::optional<Error> reason_;
  std::chrono::steady_clock::time_point killed_at_;
  std::optional<Active> active_;
  std::vector<int> sockets_;
  std::thread thread_;
};

}  // namespace verbund::compute::mlx_impl
