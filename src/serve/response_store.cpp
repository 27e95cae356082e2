#include "serve/response_store.h"

#include "serve/http.h"

namespace verbund::serve {
namespace {

constexpr std::chrono::hours kLife{1};

}  // namespace

void ResponseStore::put(const std::string& id, StoredResponse stored) {
  // A parsed tree takes a few times its text.
  const size_t bytes = 4 * (json_text(stored.response).size() + json_text(stored.input).size());
  const std::lock_guard lock(mutex_);
  if (const auto it = index_.find(id); it != index_.end()) drop(it->second);
  if (bytes > bytes_max_) return;
  entries_.push_front({id, std::move(stored), bytes, Clock::now()});
  index_[id] = entries_.begin();
  bytes_ += bytes;
  while (bytes_ > bytes_max_) drop(std::prev(entries_.end()));
}

std::optional<StoredResponse> ResponseStore::get(const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_old();
  const auto it = index_.find(id);
  if (it == index_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->stored;
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(id);
  if (it == index_.end()) return false;
  drop(it->second);
  return true;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::drop(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  index_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::drop_old() {
  const auto now = Clock::now();
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto next = std::next(it);
    if (now - it->at > kLife) drop(it);
    it = next;
  }
}

}  // namespace verbund::serve
