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
    uint32_t rows, sequences;       // of the step: tokens computed, and for how many sequences
    int64_t bytes;                  // moved between ranks; -1: not told
    int64_t begin_ns, duration_ns;  // since the Unix epoch, so that ranks line up
  };

  // What the spans that end from now on belong to.
  void set_step(uint64_t step, uint32_t rows, uint32_t sequences) { step_ = step, rows_ = rows, sequences_ = sequences; }
  // Keeps the first kEventsMax events; the last of them says that others are missing.
  void add(const char* name, int32_t layer, int64_t bytes, int64_t begin_ns, int64_t end_ns) {
    if (events_.size() == kEventsMax) return;
    if (events_.size() == kEventsMax - 1) name = "the trace is full: what came later is missing";
    events_.push_back({name, layer, step_, rows_, sequences_, bytes, begin_ns, end_ns - begin_ns});
  }
  const std::vector<Event>& events() const { return events_; }

  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  static constexpr size_t kEventsMax = 1'000'000;

 private:
  std::vector<Event> events_;
  uint64_t step_ = 0;
  uint32_t rows_ = 0, sequences_ = 0;
};

class TraceSpan {
 public:
  explicit TraceSpan(Trace* trace, const char* name, int32_t layer = -1, int64_t bytes = -1)
      : trace_(trace), name_(name), layer_(layer), bytes_(bytes), begin_ns_(trace ? Trace::now_ns() : 0) {}
  TraceSpan(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_) trace_->add(name_, layer_, bytes_, begin_ns_, Trace::now_ns());
  }

 private:
  Trace* trace_;
  const char* name_;
  int32_t layer_;
  int64_t bytes_;
  int64_t begin_ns_;
};

}  // namespace verbund
