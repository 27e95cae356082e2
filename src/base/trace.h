// Where the time of a step goes: named spans per rank, written as Chrome trace events (chrome://tracing, Perfetto).
// A Trace belongs to one thread. A null Trace* costs one branch a span.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace verbund {

class Trace {
 public:
  struct Event {
    const char* name;  // static text
    int32_t layer;     // -1: none
    uint64_t step;
    int64_t begin_us, duration_us;  // since the Unix epoch, so that ranks line up
  };

  void set_step(uint64_t step) { step_ = step; }
  void add(const char* name, int32_t layer, int64_t begin_us, int64_t end_us) {
    if (events_.size() < kEventsMax) events_.push_back({name, layer, step_, begin_us, end_us - begin_us});
  }
  const std::vector<Event>& events() const { return events_; }

  static int64_t now_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

 private:
  static constexpr size_t kEventsMax = 1'000'000;
  std::vector<Event> events_;
  uint64_t step_ = 0;
};

class TraceSpan {
 public:
  TraceSpan(Trace* trace, const char* name, int32_t layer = -1)
      : trace_(trace), name_(name), layer_(layer), begin_us_(trace ? Trace::now_us() : 0) {}
  TraceSpan(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_) trace_->add(name_, layer_, begin_us_, Trace::now_us());
  }

 private:
  Trace* trace_;
  const char* name_;
  int32_t layer_;
  int64_t begin_us_;
};

}  // namespace verbund
