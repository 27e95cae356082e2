// Times a peer's all-reduce the way bench_mesh times ours: int64 sums, one call after another with all ranks in lockstep, a
// warm-up of a tenth, the median of rank 0. Each size is an argument (bytes); prints "BYTES MICROSECONDS" lines.
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
  for (; sizes != end; ++sizes) {
    const auto count = static_cast<size_t>(std::strtoull(*sizes, nullptr, 10)) / sizeof(int64_t);
    std::vector<int64_t> in(count, rank + 1), out(count);
    const size_t repeats = count > 16384 ? 200 : 2000;
    std::vector<double> times;
    for (size_t i = 0; i < repeats + repeats / 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      reduce(in.data(), out.data(), count);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      if (i >= repeats / 10) times.push_back(took.count());
    }
    if (out.front() != int64_t{ranks} * (ranks + 1) / 2) std::fprintf(stderr, "wrong sum\n"), std::exit(1);
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
    if (rank == 0) std::printf("%zu %.3f\n", count * sizeof(int64_t), times[times.size() / 2]);
  }
}
