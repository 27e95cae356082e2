// How a thread waits a short time for another one without standing in its way: it looks often, and whenever it looks at the clock it
// gives the core away for a moment.
//
// The system likes to put two threads that wake each other on one core, however many others are free, and leaves them there while both
// keep running. Where there are cores enough, a Spinner notices that and moves its thread. If another program takes the core for
// its whole slice, the next waits had better sleep at once.
// A Spinner belongs to one thread.
#pragma once

#include <chrono>

namespace verbund {

void cpu_pause();  // between two looks

class Spinner {
 public:
  using Clock = std::chrono::steady_clock;

  // crowded: more threads compute here than there are cores, so that another core is no better.
  explicit Spinner(bool crowded = false) : crowded_(crowded) {}

  bool crowded() const { return crowded_; }
  bool worthwhile() const { return sleeps_due_ == 0; }
  // The thread goes to sleep instead of spinning on.
  void slept() { sleeps_due_ -= sleeps_due_ > 0; }
  // Gives the core away, `now` being the time. False: it took long; sleep.
  bool give_core_away(Clock::time_point now);

 private:
  bool crowded_;
  int sleeps_due_ = 0;
  int shared_in_a_row_ = 0;  // yields that somebody made use of
  Clock::time_point moved_at_{};
};

}  // namespace verbund
