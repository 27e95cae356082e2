#include "mesh/sum.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace verbund::mesh {
namespace {

// Wraps instead of overflowing: signed overflow would be undefined, and the reduced values are checked by those who made them.
float add(float a, float b) { return a + b; }
int64_t add(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }

template <class T>
T load(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void add_to(T* __restrict into, const std::byte* __restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) into[i] = add(into[i], load<T>(from, i));
}

// 4 KiB blocks: the running sum stays in L1 while the sources pass by.
constexpr size_t kBlockBytes = 4096;

template <class T>
void sum(std::span<T> own, std::span<const std::byte* const> lower, std::span<const std::byte* const> higher) {
  constexpr size_t kBlock = kBlockBytes / sizeof(T);
  for (size_t begin = 0; begin < own.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, own.size() - begin), offset = begin * sizeof(T);
    T* into = own.data() + begin;
    if (lower.size() >= 2) {
      std::array<T, kBlock> running;
      std::memcpy(running.data(), lower[0] + offset, count * sizeof(T));
      for (size_t s = 1; s < lower.size(); ++s) add_to(running.data(), lower[s] + offset, count);
      for (size_t i = 0; i < count; ++i) into[i] = add(running[i], into[i]);
    } else if (lower.size() == 1) {
      add_to(into, lower[0] + offset, count);  // a + b == b + a, bit for bit
    }
    for (const std::byte* source : higher) add_to(into, source + offset, count);
  }
}

}  // namespace

void sum_in_order(std::span<float> own, std::span<const std::byte* const> lower, std::span<const std::byte* const> higher) {
  sum(own, lower, higher);
}
void sum_in_order(std::span<int64_t> own, std::span<const std::byte* const> lower, std::span<const std::byte* const> higher) {
  sum(own, lower, higher);
}

}  // namespace verbund::mesh
