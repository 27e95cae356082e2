#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace verbund::engine {
namespace {

// Length of the longest end of `text` that is the beginning of `stop`, but not all of it.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped_) return {};
  std::string text = std::move(held_) + std::string(piece);
  held_.clear();

  size_t begin = std::string::npos, end = std::string::npos;  // of the stop string that is complete first
  for (const std::string& stop : stops_) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin)) begin = at, end = at + stop.size();
  }
  if (begin != std::string::npos) {
    stopped_ = true;
    matched_ = text.substr(begin, end - begin);
    text.resize(begin);
    return text;
  }

  size_t hold = 0;
  for (const std::string& stop : stops_) hold = std::max(hold, overlap(text, stop));
  held_ = text.substr(text.size() - hold);
  text.resize(text.size() - hold);
  return text;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace verbund::engine
