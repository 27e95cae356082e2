// Sixteen bytes, or four words, at once: what the translation of weights needs of SIMD, in the compiler's own vectors, so
// that every machine's base instruction set serves (SSE2, NEON). Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbund::formats {

using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Words4 = uint32_t __attribute__((vector_size(16)));

template <class V>
V load16(const void* at) {
  V v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

template <class V>
void store16(void* at, V v) {
  std::memcpy(at, &v, sizeof v);
}

// a0 b0 a1 b1 ... of the lower and of the upper eight bytes.
inline Bytes16 interleave_low(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes16 interleave_high(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

}  // namespace verbund::formats
