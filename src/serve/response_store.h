// Responses that were asked to be kept: in memory, an hour at most, the least recently used go first. Any thread.
#pragma once

#include <chrono>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>

namespace verbund::serve {

struct StoredResponse {
  nlohmann::ordered_json response;  // the object as it was answered
  nlohmann::ordered_json input;     // all input items of the conversation up to it
};

class ResponseStore {
 public:
  explicit ResponseStore(size_t bytes_max = 64 << 20) : bytes_max_(bytes_max) {}

  void put(const std::string& id, StoredResponse stored);
  std::optional<StoredResponse> get(const std::string& id);
  bool erase(const std::string& id);
  size_t bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string id;
    StoredResponse stored;
    size_t bytes;
    Clock::time_point at;
  };
  void drop(std::list<Entry>::iterator entry);
  void drop_old();

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  size_t bytes_ = 0, bytes_max_;
};

}  // namespace verbund::serve
