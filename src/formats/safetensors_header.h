// The header of one safetensors file: names, types, shapes and places of its tensors.
//
// As with GGUF nothing is believed: the header's length is capped and compared with the file, the JSON is read as a
// stream of events with exactly the nesting the format has, every range is checked against shape and file, ranges
// do not overlap, and the file ends where the last one ends. Pure function of the source; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/byte_source.h"

namespace verbund::formats {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as written: "F32", "BF16", "U32", ...
  std::vector<size_t> shape;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
};

// Entries in the order of their data. Throws data_loss naming file, tensor, expected and real size.
std::vector<SafetensorsEntry> parse_safetensors_header(const ByteSource& source);

// Bytes of one element; nullopt for types this program has never heard of (their tensors are listed, not read).
std::optional<size_t> safetensors_item_bytes(std::string_view dtype);

}  // namespace verbund::formats
