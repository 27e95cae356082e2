// The block types of GGUF and their exact translation into the codings of weight.h.
//
// A block is 32 or 256 consecutive elements of a row with its scales. Q4_K and its kin keep scales as small integers times
// an f16: their products (at most 17 bits) are exact in f32, which is therefore the type of the translated scales.
// Constant tables and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "formats/code_tile.h"
#include "formats/weight.h"

namespace verbund::formats {

struct GgufType {
  uint32_t id;
  std::string_view name;
  uint32_t block;  // elements
  uint32_t block_bytes;
  WeightFormat format;  // what it becomes
  // Translates one block of each of up to 16 rows, `stride` bytes apart, into the tile's first rows and columns. False if a
  // scale in them is not finite. Null for dense types: the elements are taken as they are.
  bool (*decode)(const std::byte* first, size_t stride, size_t rows, CodeTile& into);
};

// nullptr for types that are not read; gguf_type_name() still has a word for them.
const GgufType* find_gguf_type(uint32_t id);
std::string gguf_type_name(uint32_t id);

}  // namespace verbund::formats
