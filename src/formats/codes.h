// Bit streams of quantised codes (weight.h): packing and unpacking in runs of eight. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbund::formats {

// `count` is a multiple of 8; `bits` is 2, 3, 4, 5, 6 or 8. Eight codes are `bits` whole bytes, so a run of eight never
// shares a byte with its neighbour. Codes are below 2^bits.
void pack_codes(const uint8_t* codes, size_t count, int bits, std::byte* out);
void unpack_codes(const std::byte* packed, size_t count, int bits, uint8_t* codes);

}  // namespace verbund::formats
