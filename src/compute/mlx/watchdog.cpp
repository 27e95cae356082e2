#include "compute/mlx/watchdog.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace verbund::compute::mlx_impl {

Watchdog::Watchdog() : thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Watchdog::Watch::Watch(Watchdog& dog, std::string operation, const Deadline& deadline) : dog_(dog) {
  std::lock_guard lock(dog_.mutex_);
  dog_.active_ = Active{std::move(operation), deadline};
}

Watchdog::Watch::~Watch() {
  std::lock_guard lock(dog_.mutex_);
  dog_.active_.reset();
}

std::vector<int> Watchdog::add_sockets(const std::vector<int>& candidates) {
  std::lock_guard lock(mutex_);
  std::vector<int> added;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(added),
               [&](int s) { return std::find(sockets_.begin(), sockets_.end(), s) == sockets_.end(); });
  sockets_.insert(sockets_.end(), added.begin(), added.end());
  if (dead()) interrupt_locked();
  return added;
}

void Watchdog::remove_sockets(const std::vector<int>& sockets) {
  std::lock_guard lock(mutex_);
  std::erase_if(sockets_, [&](int s) { return std::find(sockets.begin(), sockets.end(), s) != sockets.end(); });
}

void Watchdog::kill(Error::Parts reason) {
  std::lock_guard lock(mutex_);
  if (dead()) return;
  reason_.emplace(std::move(reason));
  killed_at_ = std::chrono::steady_clock::now();
  dead_.store(true, std::memory_order_release);
  interrupt_locked();
}

void Watchdog::throw_if_dead() const {
  if (!dead()) return;
  std::lock_guard lock(mutex_);
  throw *reason_;
}

void Watchdog::interrupt_locked() {
  for (const int s : sockets_) ::shutdown(s, SHUT_RDWR);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kTick, [this] { return stop_; });
    if (stop_ || !active_) continue;
    if (!dead() && active_->deadline.expired()) {
      char waited[32];
      std::snprintf(waited, sizeof waited, "%.1f", active_->deadline.waited_s());
      reason_.emplace(Error::Parts{Code::deadline_exceeded, Lost::instance, "no answer for " + std::string(waited) + " s",
                                   active_->operation, "a rank has stopped or is far behind; see its log"});
      killed_at_ = std::chrono::steady_clock::now();
      dead_.store(true, std::memory_order_release);
      interrupt_locked();
    }
    if (dead() && (sockets_.empty() || std::chrono::steady_clock::now() - killed_at_ > kGrace)) end_process_locked();
  }
}

// _exit: destructors would wait for the very threads that hang.
void Watchdog::end_process_locked() {
  std::fprintf(stderr, "verbund: %s; the wait of MLX cannot be ended otherwise, so this process ends\n", reason_->what());
  std::fflush(stderr);
  _exit(mapping(reason_->code()).exit_code);
}

}  // namespace verbund::compute::mlx_impl
