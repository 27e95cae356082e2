#include "formats/gguf_blocks.h"

#include <array>
#include <cstring>

#include "formats/bytes16.h"

namespace verbund::formats {
namespace {

// Names in the comments follow the layouts: d scale, m or dmin offset (f16), q low bits, qh or h high bits, s sub-block scales.

using Bytes = const uint8_t*;
Bytes bytes(const std::byte* p) { return reinterpret_cast<Bytes>(p); }

bool finite_f16(Bytes p) { return (p[1] & 0x7c) != 0x7c; }

float f16_at(Bytes p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return f16_to_f32(bits);
}

uint32_t u32_at(Bytes p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Where a decoded block goes: a row of a tile.
struct BlockOut {
  uint8_t* codes;
  std::byte *scales, *biases;
  size_t step;  // bytes from a group's scale to the next one's
};

void put_f16(std::byte* at, Bytes from) { std::memcpy(at, from, 2); }
void put_f32(std::byte* at, float v) { std::memcpy(at, &v, sizeof v); }

// Sixteen bytes: low nibbles are elements 0..15, high nibbles 16..31.
void split_nibbles(Bytes q, uint8_t* codes) {
  const auto both = load16<Bytes16>(q);
  store16(codes, both & 15);
  store16(codes + 16, both >> 4);
}

// Bit j of `high` becomes bit 4 of code j: eight bits at a time are spread to the bytes of a word.
void add_fifth_bits(uint32_t high, uint8_t* codes) {
  constexpr uint64_t kEach = 0x0101010101010101u, kDiagonal = 0x8040201008040201u, kLow7 = 0x7f7f7f7f7f7f7f7fu;
  for (int i = 0; i < 4; ++i, high >>= 8) {
    const uint64_t one_bit_each = (high & 255) * kEach & kDiagonal;
    uint64_t run;
    std::memcpy(&run, codes + 8 * i, sizeof run);
    run |= ((one_bit_each + kLow7) >> 7 & kEach) << 4;
    std::memcpy(codes + 8 * i, &run, sizeof run);
  }
}

bool decode_q4_0(Bytes b, const BlockOut& to) {  // d, q[16]
  split_nibbles(b + 2, to.codes);
  put_f16(to.scales, b);
  return finite_f16(b);
}

bool decode_q4_1(Bytes b, const BlockOut& to) {  // d, m, q[16]
  split_nibbles(b + 4, to.codes);
  put_f16(to.scales, b);
  put_f16(to.biases, b + 2);
  return finite_f16(b) & finite_f16(b + 2);
}

bool decode_q5_0(Bytes b, const BlockOut& to) {  // d, qh, q[16]
  split_nibbles(b + 6, to.codes);
  add_fifth_bits(u32_at(b + 2), to.codes);
  put_f16(to.scales, b);
  return finite_f16(b);
}

bool decode_q5_1(Bytes b, const BlockOut& to) {  // d, m, qh, q[16]
  split_nibbles(b + 8, to.codes);
  add_fifth_bits(u32_at(b + 4), to.codes);
  put_f16(to.scales, b);
  put_f16(to.biases, b + 2);
  return finite_f16(b) & finite_f16(b + 2);
}

bool decode_q8_0(Bytes b, const BlockOut& to) {                                               // d, i8 q[32]
  for (int j = 0; j < 32; j += 16) store16(to.codes + j, load16<Bytes16>(b + 2 + j) ^ 0x80);  // i8 + 128
  put_f16(to.scales, b);
  return finite_f16(b);
}

// Two-bit fields of Q2_K and Q3_K: per half of 128, four planes of 32.
Bytes16 pairs_at(Bytes q, int half, int plane, int i) { return load16<Bytes16>(q + 32 * half + i) >> (2 * plane) & 3; }

bool decode_q2_k(Bytes b, const BlockOut& to) {  // s[16], q[64], d, dmin
  for (int half = 0; half < 2; ++half)
    for (int plane = 0; plane < 4; ++plane)
      for (int i = 0; i < 32; i += 16) store16(to.codes + 128 * half + 32 * plane + i, pairs_at(b + 16, half, plane, i));
  const float d = f16_at(b + 80), dmin = f16_at(b + 82);
  for (size_t g = 0; g < 16; ++g) {
    put_f32(to.scales + g * to.step, d * static_cast<float>(b[g] & 15));
    put_f32(to.biases + g * to.step, -(dmin * static_cast<float>(b[g] >> 4)));
  }
  return finite_f16(b + 80) & finite_f16(b + 82);
}

bool decode_q3_k(Bytes b, const BlockOut& to) {  // h[32], q[64], s[12], d
  const Bytes s = b + 96;
  for (int half = 0; half < 2; ++half)
    for (int plane = 0; plane < 4; ++plane)
      for (int i = 0; i < 32; i += 16) {
        const Bytes16 third = (load16<Bytes16>(b + i) >> (4 * half + plane) & 1) << 2;
        store16(to.codes + 128 * half + 32 * plane + i, pairs_at(b + 32, half, plane, i) | third);
      }
  const float d = f16_at(b + 108);
  for (size_t g = 0; g < 16; ++g) {
    const int low = s[g % 8] >> (4 * (g / 8)) & 15, high = s[8 + g % 4] >> (2 * (g / 4)) & 3;
    put_f32(to.scales + g * to.step, d * static_cast<float>((low | high << 4) - 32));
  }
  return finite_f16(b + 108);
}

// Eight pairs of six bits in twelve bytes: scale and minimum of each sub-block of Q4_K and Q5_K.
void put_k_scales(Bytes s, float d, float dmin, const BlockOut& to) {
  for (size_t j = 0; j < 8; ++j) {
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    put_f32(to.scales + j * to.step, d * static_cast<float>(scale));
    put_f32(to.biases + j * to.step, -(dmin * static_cast<float>(minimum)));
  }
}

bool decode_q4_k(Bytes b, const BlockOut& to) {  // d, dmin, s[12], q[128]
  for (int pair = 0; pair < 4; ++pair)           // each run of 32 bytes holds two sub-blocks, low nibbles first
    for (int i = 0; i < 32; i += 16) {
      const auto both = load16<Bytes16>(b + 16 + 32 * pair + i);
      store16(to.codes + 64 * pair + i, both & 15);
      store16(to.codes + 64 * pair + 32 + i, both >> 4);
    }
  put_k_scales(b + 4, f16_at(b), f16_at(b + 2), to);
  return finite_f16(b) & finite_f16(b + 2);
}

bool decode_q5_k(Bytes b, const BlockOut& to) {  // d, dmin, s[12], qh[32], q[128]
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; i += 16) {
      const auto both = load16<Bytes16>(b + 48 + 32 * pair + i), high = load16<Bytes16>(b + 16 + i) >> (2 * pair);
      store16(to.codes + 64 * pair + i, (both & 15) | (high & 1) << 4);
      store16(to.codes + 64 * pair + 32 + i, both >> 4 | (high & 2) << 3);
    }
  put_k_scales(b + 4, f16_at(b), f16_at(b + 2), to);
  return finite_f16(b) & finite_f16(b + 2);
}

bool decode_q6_k(Bytes b, const BlockOut& to) {  // ql[128], qh[64], i8 s[16], d
  for (int half = 0; half < 2; ++half)
    for (int plane = 0; plane < 4; ++plane)
      for (int i = 0; i < 32; i += 16) {
        const Bytes16 four = load16<Bytes16>(b + 64 * half + 32 * (plane % 2) + i) >> (4 * (plane / 2)) & 15;
        const Bytes16 two = load16<Bytes16>(b + 128 + 32 * half + i) >> (2 * plane) & 3;
        store16(to.codes + 128 * half + 32 * plane + i, four | two << 4);
      }
  const float d = f16_at(b + 208);
  for (size_t g = 0; g < 16; ++g) put_f32(to.scales + g * to.step, d * static_cast<float>(static_cast<int8_t>(b[192 + g])));
  return finite_f16(b + 208);
}

bool decode_mxfp4(Bytes b, const BlockOut& to) {  // e, q[16]
  split_nibbles(b + 1, to.codes);
  *to.scales = std::byte{b[0]};
  return b[0] != 255;
}

template <bool (*kDecode)(Bytes, const BlockOut&), size_t kScaleBytes>
bool decode_rows(const std::byte* first, size_t stride, size_t rows, CodeTile& into) {
  bool finite = true;
  for (size_t r = 0; r < rows; ++r)
    finite &= kDecode(bytes(first + r * stride),
                      {into.codes[r], into.scales + r * kScaleBytes, into.biases + r * kScaleBytes, kTileRows * kScaleBytes});
  return finite;
}

WeightFormat dense(DType t) { return {Coding::dense, t, 0, 0, {}}; }
WeightFormat symmetric(DType scales, int bits, int group, int zero) { return {Coding::affine, scales, bits, group, zero}; }
WeightFormat biased(DType scales, int bits, int group) { return {Coding::affine, scales, bits, group, {}}; }

const std::array<GgufType, 14> kTypes{{
    {0, "F32", 1, 4, dense(DType::f32), nullptr},
    {1, "F16", 1, 2, dense(DType::f16), nullptr},
    {30, "BF16", 1, 2, dense(DType::bf16), nullptr},
    {2, "Q4_0", 32, 18, symmetric(DType::f16, 4, 32, 8), decode_rows<decode_q4_0, 2>},
    {3, "Q4_1", 32, 20, biased(DType::f16, 4, 32), decode_rows<decode_q4_1, 2>},
    {6, "Q5_0", 32, 22, symmetric(DType::f16, 5, 32, 16), decode_rows<decode_q5_0, 2>},
    {7, "Q5_1", 32, 24, biased(DType::f16, 5, 32), decode_rows<decode_q5_1, 2>},
    {8, "Q8_0", 32, 34, symmetric(DType::f16, 8, 32, 128), decode_rows<decode_q8_0, 2>},
    {10, "Q2_K", 256, 84, biased(DType::f32, 2, 16), decode_rows<decode_q2_k, 4>},
    {11, "Q3_K", 256, 110, symmetric(DType::f32, 3, 16, 4), decode_rows<decode_q3_k, 4>},
    {12, "Q4_K", 256, 144, biased(DType::f32, 4, 32), decode_rows<decode_q4_k, 4>},
    {13, "Q5_K", 256, 176, biased(DType::f32, 5, 32), decode_rows<decode_q5_k, 4>},
    {14, "Q6_K", 256, 210, symmetric(DType::f32, 6, 16, 32), decode_rows<decode_q6_k, 4>},
    {39, "MXFP4", 32, 17, {Coding::mxfp4, DType::f32, 4, 32, {}}, decode_rows<decode_mxfp4, 1>},
}};

struct OtherType {
  uint32_t id;
  std::string_view name;
};
constexpr std::array<OtherType, 21> kOthers{{
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},   {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},   {41, "Q1_0"},  {4, "Q4_2"},
}};

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

std::string gguf_type_name(uint32_t id) {
  if (const GgufType* type = find_gguf_type(id)) return std::string(type->name);
  for (const OtherType& other : kOthers)
    if (other.id == id) return std::string(other.name);
  return "number " + std::to_string(id);
}

}  // namespace verbund::formats
