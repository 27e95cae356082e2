// Times a peer's all-reduce the way `verbund bench link` times ours: int64 sums, one call after another with all ranks in lockstep, after a
// warm-up, the median of rank 0. Each size is an argument (bytes); prints "BYTES MICROSECONDS" lines. A size takes about a second.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// `reduce(in, out, count)` sums `in` over all ranks into `out`. Every rank calls with the same sizes.
template <class Reduce>
void time_all_reduce(const char* const* sizes, const char* const* end, int rank, int ranks, Reduce&& reduce) {
  using Clock = std::chrono::steady_clock;
  for (; sizes != end; ++sizes) {
    const auto count = static_cast<size_t>(std::strtoull(*sizes, nullptr, 10)) / sizeof(int64_t);
    std::vector<int64_t> in(count, rank + 1), out(count);
    std::vector<double> times;
    const auto call = [&] {
      const auto start = Clock::now();
      reduce(in.data(), out.data(), count);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    };
    const auto median = [&] {
      std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
      return times[times.size() / 2];
    };
    for (int i = 0; i < 40; ++i) call();
    if (out.front() != int64_t{ranks} * (ranks + 1) / 2) std::fprintf(stderr, "wrong sum\n"), std::exit(1);
    // Rank 0 says how many calls fit into a second: the others add nothing to its number.
    std::vector<int64_t> calls(count, rank == 0 ? static_cast<int64_t>(std::clamp(1e6 / median(), 20.0, 4000.0)) : 0);
    reduce(calls.data(), out.data(), count);
    times.clear();
    for (int64_t i = out.front(); i > 0; --i) call();
    if (rank == 0) std::printf("%zu %.3f\n", count * sizeof(int64_t), median());
  }
}
