// The block types of GGUF and their exact translation into the codings of weight.h.
//
// A block is 32 or 256 consecutive elements of a row with its scales. Q4_K and its kin keep scales as small integers times
// an f16: their products (at most 17 bits) are exact in f32, which is therefore the type of the translated scales.
// Constant tables and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "formats/weight.h"

namespace verbund::formats {

constexpr size_t kGgufBlockMax = 256;

// One block in canonical coding, codes still one a byte; scales and biases in the format's dtype (mxfp4: a byte each).
struct DecodedBlock {
  alignas(64) std::array<uint8_t, kGgufBlockMax> codes;
  std::array<std::byte, 64> scales;
  std::array<std::byte, 64> biases;
};

struct GgufType {
  uint32_t id;
  std::string_view name;
  uint32_t block;  // elements
  uint32_t block_bytes;
  WeightFormat format;  // what it becomes
  // False if a scale in the block is not finite. Null for dense types: the elements are taken as they are.
  bool (*decode)(const std::byte* block, DecodedBlock& into);
};

// nullptr for types that are not read; gguf_type_name() still has a word for them.
const GgufType* find_gguf_type(uint32_t id);
std::string gguf_type_name(uint32_t id);

}  // namespace verbund::formats
