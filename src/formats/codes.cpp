#include "formats/codes.h"

#include <bit>
#include <cstring>

#include "formats/bytes16.h"

namespace verbund::formats {

static_assert(std::endian::native == std::endian::little, "codes and file numbers are little-endian in memory");

namespace {

// Eight codes, one a byte, are moved together in three steps (pairs, fours, eight) inside one 64-bit register.
template <int Bits>
uint64_t gather(uint64_t x) {
  x = (x & 0x00ff00ff00ff00ffu) | (x >> 8 & 0x00ff00ff00ff00ffu) << Bits;
  x = (x & 0x0000ffff0000ffffu) | (x >> 16 & 0x0000ffff0000ffffu) << (2 * Bits);
  return (x & 0xffffffffu) | x >> 32 << (4 * Bits);
}

// The way back.
template <int Bits>
uint64_t spread(uint64_t x) {
  constexpr uint64_t kFour = (uint64_t(1) << (4 * Bits)) - 1, kPair = (uint64_t(1) << (2 * Bits)) - 1, kOne = (uint64_t(1) << Bits) - 1;
  constexpr uint64_t kPairs = kPair | kPair << 32, kOnes = (kOne | kOne << 16) | (kOne | kOne << 16) << 32;
  x = (x & kFour) | (x >> (4 * Bits) & kFour) << 32;
  x = (x & kPairs) | (x >> (2 * Bits) & kPairs) << 16;
  return (x & kOnes) | (x >> Bits & kOnes) << 8;
}

template <int Bits>
void pack(const uint8_t* codes, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; i += 8, out += Bits) {
    uint64_t run;
    std::memcpy(&run, codes + i, sizeof run);
    run = gather<Bits>(run);
    std::memcpy(out, &run, Bits);
  }
}

template <int Bits>
void unpack(const std::byte* packed, size_t count, uint8_t* codes) {
  for (size_t i = 0; i < count; i += 8, packed += Bits) {
    uint64_t run = 0;
    std::memcpy(&run, packed, Bits);
    run = spread<Bits>(run);
    std::memcpy(codes + i, &run, sizeof run);
  }
}

// Two codes of half the width from each: the low one first.
template <int Bits>
void halve(Bytes16 both, uint8_t* to) {
  const Bytes16 low = both & uint8_t{(1 << Bits) - 1}, high = both >> Bits;
  store16(to, interleave_low(low, high));
  store16(to + 16, interleave_high(low, high));
}

// The common widths of whole models, sixteen bytes at a time.
size_t unpack_fours(const std::byte* packed, size_t count, uint8_t* codes) {
  const size_t whole = count / 32 * 32;
  for (size_t i = 0; i < whole; i += 32) halve<4>(load16<Bytes16>(packed + i / 2), codes + i);
  return whole;
}

size_t unpack_twos(const std::byte* packed, size_t count, uint8_t* codes) {
  const size_t whole = count / 64 * 64;
  for (size_t i = 0; i < whole; i += 64) {
    uint8_t fours[32];
    halve<4>(load16<Bytes16>(packed + i / 4), fours);
    halve<2>(load16<Bytes16>(fours), codes + i);
    halve<2>(load16<Bytes16>(fours + 16), codes + i + 32);
  }
  return whole;
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
    case 2: {
      const size_t done = unpack_twos(packed, count, codes);
      return unpack<2>(packed + done / 4, count - done, codes + done);
    }
    case 3: return unpack<3>(packed, count, codes);
    case 4: {
      const size_t done = unpack_fours(packed, count, codes);
      return unpack<4>(packed + done / 2, count - done, codes + done);
    }
    case 5: return unpack<5>(packed, count, codes);
    case 6: return unpack<6>(packed, count, codes);
    default: std::memcpy(codes, packed, count);
  }
}

}  // namespace verbund::formats
