#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "roof.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbund::bench {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kStride = 8 * kLine;  // read by one turn of the loop
constexpr size_t kAhead = 4096;        // of the prefetch
constexpr uint64_t kRoundBytes = 64u << 20;

class Buffer {
 public:
  explicit Buffer(uint64_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes_ + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no memory for a working set of " + std::to_string(bytes) + " bytes");
    mapped_ = at;
    begin_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(at) + kHuge - 1) / kHuge * kHuge);
#ifdef MADV_HUGEPAGE
    ::madvise(begin_, bytes_, MADV_HUGEPAGE);
#endif
    std::memset(begin_, 1, bytes_);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { ::munmap(mapped_, bytes_ + kHuge); }
  const std::byte* begin() const { return begin_; }

 private:
  static constexpr uint64_t kHuge = 2u << 20;
  uint64_t bytes_;
  void* mapped_;
  std::byte* begin_;
};

using ReadFn = void (*)(const std::byte* at, size_t bytes);  // bytes: a multiple of kStride

// The empty asm keeps what was read, so that the loads are not optimised away.
template <bool kPrefetch>
void read_portable(const std::byte* at, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += kStride) {
    for (size_t k = 0; k < kStride; k += 8) {
      if (kPrefetch && k % kLine == 0) __builtin_prefetch(at + i + k + kAhead);
      uint64_t word;
      std::memcpy(&word, at + i + k, 8);
      sum |= word;
    }
  }
  asm volatile("" ::"r"(sum));
}

#if defined(__x86_64__)
template <bool kPrefetch>
__attribute__((target("avx512f"))) void read_avx512(const std::byte* at, size_t bytes) {
  __m512i sums[8] = {};
  for (size_t i = 0; i < bytes; i += kStride) {
#pragma GCC unroll 8
    for (size_t k = 0; k < 8; ++k) {
      if (kPrefetch) __builtin_prefetch(at + i + k * kLine + kAhead);
      sums[k] = _mm512_or_si512(sums[k], _mm512_load_si512(at + i + k * kLine));
    }
  }
  for (__m512i sum : sums) asm volatile("" ::"v"(sum));
}

template <bool kPrefetch>
__attribute__((target("avx2"))) void read_avx2(const std::byte* at, size_t bytes) {
  __m256i sums[8] = {};
  for (size_t i = 0; i < bytes; i += kStride) {
#pragma GCC unroll 16
    for (size_t k = 0; k < 16; ++k) {
      if (kPrefetch && k % 2 == 0) __builtin_prefetch(at + i + k * 32 + kAhead);
      sums[k % 8] = _mm256_or_si256(sums[k % 8], _mm256_load_si256(reinterpret_cast<const __m256i*>(at + i + k * 32)));
    }
  }
  for (__m256i sum : sums) asm volatile("" ::"x"(sum));
}
#endif

template <bool kPrefetch>
ReadFn widest_read() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512<kPrefetch>;
  if (__builtin_cpu_supports("avx2")) return read_avx2<kPrefetch>;
#endif
  return read_portable<kPrefetch>;
}

}  // namespace

double best_rate(unsigned threads, double seconds, double units, const std::function<void(unsigned)>& call) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  Clock::time_point begun{};
  double best = 0;
  int rounds = 0;
  bool last = false;
  // Runs on one thread while the others wait: closes a round and opens the next one.
  const auto turn = [&]() noexcept {
    const auto now = Clock::now();
    if (rounds++ > 0) best = std::max(best, units * threads / std::chrono::duration<double>(now - begun).count());
    last = now >= end && rounds > 2;
    begun = Clock::now();
  };
  std::barrier gate(static_cast<std::ptrdiff_t>(threads), turn);
  const auto work = [&](unsigned thread) {
    for (;;) {
      gate.arrive_and_wait();
      if (last) return;
      call(thread);
    }
  };
  std::vector<std::thread> others;
  for (unsigned t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& t : others) t.join();
  return best;
}

Bandwidth read_bandwidth(uint64_t bytes, unsigned threads, double seconds) {
  const uint64_t part = bytes / threads / kStride * kStride;
  const uint64_t repeats = std::max<uint64_t>(1, kRoundBytes / bytes);
  const Buffer buffer(bytes);
  const auto measure = [&](ReadFn read) {
    return best_rate(threads, seconds / 2, static_cast<double>(part * repeats), [&](unsigned thread) {
      for (uint64_t i = 0; i < repeats; ++i) read(buffer.begin() + thread * part, part);
    });
  };
  return {bytes, threads, measure(widest_read<false>()), measure(widest_read<true>())};
}

}  // namespace verbund::bench
