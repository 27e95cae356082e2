// A point in time by which a wait must end. Passed down as a parameter, never invented deep inside
// (docs/DESIGN.md section 4.2). Value type; any thread.
#pragma once

#include <algorithm>
#include <chrono>

namespace verbund {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::nanoseconds wait) {
    const auto now = Clock::now();
    return Deadline(now, now + std::chrono::duration_cast<Clock::duration>(wait));
  }

  bool expired() const { return Clock::now() >= at_; }
  std::chrono::nanoseconds left() const { return std::max<std::chrono::nanoseconds>(at_ - Clock::now(), std::chrono::nanoseconds(0)); }
  // For poll(2): rounded up, so that a wait never spins through its last millisecond.
  int left_ms() const { return static_cast<int>(std::min<int64_t>((left().count() + 999'999) / 1'000'000, 1'000'000'000)); }
  double waited_s() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  Clock::time_point at() const { return at_; }

 private:
  Deadline(Clock::time_point begun, Clock::time_point at) : begun_(begun), at_(at) {}
  Clock::time_point begun_, at_;
};

}  // namespace verbund
