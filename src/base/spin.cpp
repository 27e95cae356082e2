#include "base/spin.h"

#include <sched.h>

#include "base/unix.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbund {
namespace {

// A yield that takes longer has not run a neighbour's short step but the slice of another program.
constexpr auto kSlowYield = std::chrono::microseconds(700);
constexpr int kSleepsAfterSlowYield = 64;
// So long a yield has run somebody; a few in a row are no accident. Moving is not done often.
constexpr auto kIdleYield = std::chrono::microseconds(2);
constexpr int kSharedYields = 3;
constexpr auto kMoveEvery = std::chrono::milliseconds(5);

}  // namespace

void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield is a no-op on the cores we know
#endif
}

bool Spinner::give_core_away(Clock::time_point now) {
  ::sched_yield();
  const auto back = Clock::now();
  shared_in_a_row_ = back - now < kIdleYield ? 0 : shared_in_a_row_ + 1;
  if (!crowded_ && shared_in_a_row_ >= kSharedYields && back - moved_at_ > kMoveEvery) {
    leave_this_core();
    moved_at_ = back;
    shared_in_a_row_ = 0;
  }
  if (back - now < kSlowYield) return true;
  sleeps_due_ = kSleepsAfterSlowYield;
  return false;
}

}  // namespace verbund
