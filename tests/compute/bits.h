// Results of the parity tests as hashes, so that two machines can be compared: with VERBUND_BITS=FILE in the environment each
// case appends a line (scripts/check-aarch64 compares those of x86-64 and AArch64).
#pragma once

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "base/error.h"

namespace verbund::compute::testing {

// FNV-1a over the bits; what a NaN carries is not part of the contract.
template <class T>
uint64_t bits_hash(std::span<const T> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const T v : values) {
    unsigned char bytes[sizeof(T)] = {};
    if (!std::isnan(v)) std::memcpy(bytes, &v, sizeof(T));
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  }
  return hash;
}

template <class T>
void note_bits(const std::string& name, std::span<const T> values) {
  const char* path = std::getenv("VERBUND_BITS");
  if (!path) return;
  char line[256];
  const int length = std::snprintf(line, sizeof(line), "%s %zu %016" PRIx64 "\n", name.c_str(), values.size(), bits_hash(values));
  std::FILE* file = std::fopen(path, "a");  // appended in one write: shards share the file
  if (!file || length < 0 || static_cast<size_t>(length) >= sizeof(line) || std::fputs(line, file) < 0 || std::fclose(file) != 0)
    throw Error(Code::internal, "cannot note the bits of " + name, path);
}

inline void note_bits(const std::string& name, const std::vector<float>& values) { note_bits(name, std::span<const float>(values)); }

}  // namespace verbund::compute::testing
