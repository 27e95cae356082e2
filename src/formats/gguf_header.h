// Everything of a GGUF file but the tensors' data: metadata, tensor list, and where the data begins.
//
// The parser believes nothing: counts and lengths are compared with what is left of the file before anything is
// allocated, products are checked, names are unique, tensors neither overlap nor leave the file, and the file ends where
// the last tensor ends. Versions 2 and 3, little-endian. Pure function of the source; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/byte_source.h"
#include "formats/gguf_blocks.h"

namespace verbund::formats {

struct GgufTensor {
  std::string name;
  std::vector<size_t> shape;  // slowest first: [out, in]
  const GgufType* type = nullptr;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
};

struct GgufHeader {
  uint32_t version = 0;
  nlohmann::json metadata;
  std::vector<GgufTensor> tensors;  // in file order
  uint64_t data_begin = 0;
};

// Throws data_loss (malformed or truncated: what, at which byte, expected and real size), unimplemented (version 1,
// big-endian, a tensor type that is not read).
GgufHeader parse_gguf_header(const ByteSource& source);

}  // namespace verbund::formats
