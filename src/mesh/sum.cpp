#include "mesh/sum.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace verbund::mesh {
namespace {

#if defined(__x86_64__) && defined(__GNUC__)
#define VERBUND_SUM_AVX2 1
#endif

// Inlined into each of the versions below, which compile it for their instruction set. Additions alone: no version rounds differently.
#define VERBUND_INLINE inline __attribute__((always_inline))

// Vectors of the compiler: 64 bytes, in as many registers as the instruction set needs. Integers are unsigned, so that they wrap instead
// of overflowing; the reduced values are checked by those who made them.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
template <class T>
using Vector [[gnu::vector_size(64)]] = Wrapping<T>;

template <class V>
VERBUND_INLINE void add_one(std::byte* into, const std::byte* left, const std::byte* right) {
  V a, b;
  std::memcpy(&a, left, sizeof a);
  std::memcpy(&b, right, sizeof b);
  a = a + b;
  std::memcpy(into, &a, sizeof a);
}

// into = left + right, of `bytes`; into may be one of them.
template <class T>
VERBUND_INLINE void add(std::byte* into, const std::byte* left, const std::byte* right, size_t bytes) {
  size_t i = 0;
  for (; i + sizeof(Vector<T>) <= bytes; i += sizeof(Vector<T>)) add_one<Vector<T>>(into + i, left + i, right + i);
  for (; i < bytes; i += sizeof(T)) add_one<Wrapping<T>>(into + i, left + i, right + i);
}

// 4 KiB blocks: the running sum stays in L1 while the sources pass by.
constexpr size_t kBlockBytes = 4096;

using Sources = std::span<const std::byte* const>;

template <class T>
VERBUND_INLINE void sum(std::span<std::byte> own, Sources lower, Sources higher) {
  for (size_t begin = 0; begin < own.size(); begin += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, own.size() - begin);
    std::byte* into = own.data() + begin;
    if (lower.size() >= 2) {
      alignas(64) std::array<std::byte, kBlockBytes> running;
      add<T>(running.data(), lower[0] + begin, lower[1] + begin, bytes);
      for (size_t s = 2; s < lower.size(); ++s) add<T>(running.data(), running.data(), lower[s] + begin, bytes);
      add<T>(into, running.data(), into, bytes);
    } else if (lower.size() == 1) {
      add<T>(into, lower[0] + begin, into, bytes);
    }
    for (const std::byte* source : higher) add<T>(into, into, source + begin, bytes);
  }
}

#ifdef VERBUND_SUM_AVX2
template <class T>
__attribute__((target("avx2"))) void sum_avx2(std::span<std::byte> own, Sources lower, Sources higher) {
  sum<T>(own, lower, higher);
}
const bool has_avx2 = __builtin_cpu_supports("avx2");
#endif

template <class T>
void sum_best(std::span<T> own, Sources lower, Sources higher) {
#ifdef VERBUND_SUM_AVX2
  if (has_avx2) return sum_avx2<T>(std::as_writable_bytes(own), lower, higher);
#endif
  sum<T>(std::as_writable_bytes(own), lower, higher);
}

}  // namespace

void sum_in_order(std::span<float> own, Sources lower, Sources higher) { sum_best(own, lower, higher); }
void sum_in_order(std::span<int64_t> own, Sources lower, Sources higher) { sum_best(own, lower, higher); }

}  // namespace verbund::mesh
