#include "formats/codes.h"

#include <bit>
#include <cstring>

namespace verbund::formats {

static_assert(std::endian::native == std::endian::little, "codes and file numbers are little-endian in memory");

namespace {

template <int Bits>
void pack(const uint8_t* codes, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; i += 8, out += Bits) {
    uint64_t run = 0;
    for (int k = 0; k < 8; ++k) run |= uint64_t(codes[i + k]) << (k * Bits);
    std::memcpy(out, &run, Bits);
  }
}

template <int Bits>
void unpack(const std::byte* packed, size_t count, uint8_t* codes) {
  for (size_t i = 0; i < count; i += 8, packed += Bits) {
    uint64_t run = 0;
    std::memcpy(&run, packed, Bits);
    for (int k = 0; k < 8; ++k) codes[i + k] = static_cast<uint8_t>(run >> (k * Bits) & ((1u << Bits) - 1));
  }
}

}  // namespace

void pack_codes(const uint8_t* codes, size_t count, int bits, std::byte* out) {
  switch (bits) {
    case 2: return pack<2>(codes, count, out);
    case 3: return pack<3>(codes, count, out);
    case 4: return pack<4>(codes, count, out);
    case 5: return pack<5>(codes, count, out);
    case 6: return pack<6>(codes, count, out);
    default: std::memcpy(out, codes, count);
  }
}

void unpack_codes(const std::byte* packed, size_t count, int bits, uint8_t* codes) {
  switch (bits) {
    case 2: return unpack<2>(packed, count, codes);
    case 3: return unpack<3>(packed, count, codes);
    case 4: return unpack<4>(packed, count, codes);
    case 5: return unpack<5>(packed, count, codes);
    case 6: return unpack<6>(packed, count, codes);
    default: std::memcpy(codes, packed, count);
  }
}

}  // namespace verbund::formats
