// Commands from the control thread to the rank loop. Any thread may push; the rank loop alone takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

namespace verbund::engine {

class Mailbox {
 public:
  void push(nlohmann::json message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    ready_.notify_one();
  }

  // All that is there; waits up to `wait` if there is nothing.
  std::vector<nlohmann::json> take(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    if (messages_.empty() && wait.count() > 0) ready_.wait_for(lock, wait, [this] { return !messages_.empty(); });
    std::vector<nlohmann::json> taken(std::make_move_iterator(messages_.begin()), std::make_move_iterator(messages_.end()));
    messages_.clear();
    return taken;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<nlohmann::json> messages_;
};

}  // namespace verbund::engine
