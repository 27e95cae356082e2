#include "formats/gguf_blocks.h"

#include <cstring>

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

void put_f32(std::array<std::byte, 64>& at, int index, float v) { std::memcpy(at.data() + 4 * index, &v, sizeof v); }

// Sixteen bytes: low nibbles are elements 0..15, high nibbles 16..31.
void split_nibbles(Bytes q, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = q[j] & 15;
    codes[j + 16] = q[j] >> 4;
  }
}

void add_fifth_bits(uint32_t high, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] |= static_cast<uint8_t>((high >> j & 1) << 4);
}

bool decode_q4_0(const std::byte* block, DecodedBlock& to) {  // d, q[16]
  const Bytes b = bytes(block);
  split_nibbles(b + 2, to.codes.data());
  std::memcpy(to.scales.data(), b, 2);
  return finite_f16(b);
}

bool decode_q4_1(const std::byte* block, DecodedBlock& to) {  // d, m, q[16]
  const Bytes b = bytes(block);
  split_nibbles(b + 4, to.codes.data());
  std::memcpy(to.scales.data(), b, 2);
  std::memcpy(to.biases.data(), b + 2, 2);
  return finite_f16(b) && finite_f16(b + 2);
}

bool decode_q5_0(const std::byte* block, DecodedBlock& to) {  // d, qh, q[16]
  const Bytes b = bytes(block);
  split_nibbles(b + 6, to.codes.data());
  add_fifth_bits(u32_at(b + 2), to.codes.data());
  std::memcpy(to.scales.data(), b, 2);
  return finite_f16(b);
}

bool decode_q5_1(const std::byte* block, DecodedBlock& to) {  // d, m, qh, q[16]
  const Bytes b = bytes(block);
  split_nibbles(b + 8, to.codes.data());
  add_fifth_bits(u32_at(b + 4), to.codes.data());
  std::memcpy(to.scales.data(), b, 2);
  std::memcpy(to.biases.data(), b + 2, 2);
  return finite_f16(b) && finite_f16(b + 2);
}

bool decode_q8_0(const std::byte* block, DecodedBlock& to) {  // d, i8 q[32]
  const Bytes b = bytes(block);
  for (int j = 0; j < 32; ++j) to.codes[j] = b[2 + j] ^ 0x80;  // i8 + 128
  std::memcpy(to.scales.data(), b, 2);
  return finite_f16(b);
}

// Two-bit fields of Q2_K and Q3_K: per half of 128, four planes of 32.
void split_pairs(Bytes q, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int plane = 0; plane < 4; ++plane)
      for (int i = 0; i < 32; ++i) codes[128 * half + 32 * plane + i] = q[32 * half + i] >> (2 * plane) & 3;
}

bool decode_q2_k(const std::byte* block, DecodedBlock& to) {  // s[16], q[64], d, dmin
  const Bytes b = bytes(block);
  split_pairs(b + 16, to.codes.data());
  const float d = f16_at(b + 80), dmin = f16_at(b + 82);
  for (int g = 0; g < 16; ++g) {
    put_f32(to.scales, g, d * static_cast<float>(b[g] & 15));
    put_f32(to.biases, g, -(dmin * static_cast<float>(b[g] >> 4)));
  }
  return finite_f16(b + 80) && finite_f16(b + 82);
}

bool decode_q3_k(const std::byte* block, DecodedBlock& to) {  // h[32], q[64], s[12], d
  const Bytes b = bytes(block), s = b + 96;
  split_pairs(b + 32, to.codes.data());
  for (int plane = 0; plane < 8; ++plane)
    for (int i = 0; i < 32; ++i) to.codes[32 * plane + i] |= static_cast<uint8_t>((b[i] >> plane & 1) << 2);
  const float d = f16_at(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = s[g % 8] >> (4 * (g / 8)) & 15, high = s[8 + g % 4] >> (2 * (g / 4)) & 3;
    put_f32(to.scales, g, d * static_cast<float>((low | high << 4) - 32));
  }
  return finite_f16(b + 108);
}

// Eight pairs of six bits in twelve bytes: scale and minimum of each sub-block of Q4_K and Q5_K.
void put_k_scales(Bytes s, float d, float dmin, DecodedBlock& to) {
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    put_f32(to.scales, j, d * static_cast<float>(scale));
    put_f32(to.biases, j, -(dmin * static_cast<float>(minimum)));
  }
}

// 128 bytes: each run of 32 holds two sub-blocks, low nibbles first.
void split_k_nibbles(Bytes q, uint8_t* codes) {
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      codes[64 * pair + i] = q[32 * pair + i] & 15;
      codes[64 * pair + 32 + i] = q[32 * pair + i] >> 4;
    }
}

bool decode_q4_k(const std::byte* block, DecodedBlock& to) {  // d, dmin, s[12], q[128]
  const Bytes b = bytes(block);
  split_k_nibbles(b + 16, to.codes.data());
  put_k_scales(b + 4, f16_at(b), f16_at(b + 2), to);
  return finite_f16(b) && finite_f16(b + 2);
}

bool decode_q5_k(const std::byte* block, DecodedBlock& to) {  // d, dmin, s[12], qh[32], q[128]
  const Bytes b = bytes(block), high = b + 16;
  split_k_nibbles(b + 48, to.codes.data());
  for (int sub = 0; sub < 8; ++sub)
    for (int i = 0; i < 32; ++i) to.codes[32 * sub + i] |= static_cast<uint8_t>((high[i] >> sub & 1) << 4);
  put_k_scales(b + 4, f16_at(b), f16_at(b + 2), to);
  return finite_f16(b) && finite_f16(b + 2);
}

bool decode_q6_k(const std::byte* block, DecodedBlock& to) {  // ql[128], qh[64], i8 s[16], d
  const Bytes b = bytes(block);
  for (int half = 0; half < 2; ++half) {
    const Bytes low = b + 64 * half, high = b + 128 + 32 * half;
    uint8_t* codes = to.codes.data() + 128 * half;
    for (int plane = 0; plane < 4; ++plane)
      for (int i = 0; i < 32; ++i) {
        const int four = low[32 * (plane % 2) + i] >> (4 * (plane / 2)) & 15, two = high[i] >> (2 * plane) & 3;
        codes[32 * plane + i] = static_cast<uint8_t>(four | two << 4);
      }
  }
  const float d = f16_at(b + 208);
  for (int g = 0; g < 16; ++g) put_f32(to.scales, g, d * static_cast<float>(static_cast<int8_t>(b[192 + g])));
  return finite_f16(b + 208);
}

bool decode_mxfp4(const std::byte* block, DecodedBlock& to) {  // e, q[16]
  const Bytes b = bytes(block);
  split_nibbles(b + 1, to.codes.data());
  to.scales[0] = block[0];
  return b[0] != 255;
}

WeightFormat dense(DType t) { return {Coding::dense, t, 0, 0, {}}; }
WeightFormat symmetric(DType scales, int bits, int group, int zero) { return {Coding::affine, scales, bits, group, zero}; }
WeightFormat biased(DType scales, int bits, int group) { return {Coding::affine, scales, bits, group, {}}; }

const std::array<GgufType, 14> kTypes{{
    {0, "F32", 1, 4, dense(DType::f32), nullptr},
    {1, "F16", 1, 2, dense(DType::f16), nullptr},
    {30, "BF16", 1, 2, dense(DType::bf16), nullptr},
    {2, "Q4_0", 32, 18, symmetric(DType::f16, 4, 32, 8), decode_q4_0},
    {3, "Q4_1", 32, 20, biased(DType::f16, 4, 32), decode_q4_1},
    {6, "Q5_0", 32, 22, symmetric(DType::f16, 5, 32, 16), decode_q5_0},
    {7, "Q5_1", 32, 24, biased(DType::f16, 5, 32), decode_q5_1},
    {8, "Q8_0", 32, 34, symmetric(DType::f16, 8, 32, 128), decode_q8_0},
    {10, "Q2_K", 256, 84, biased(DType::f32, 2, 16), decode_q2_k},
    {11, "Q3_K", 256, 110, symmetric(DType::f32, 3, 16, 4), decode_q3_k},
    {12, "Q4_K", 256, 144, biased(DType::f32, 4, 32), decode_q4_k},
    {13, "Q5_K", 256, 176, biased(DType::f32, 5, 32), decode_q5_k},
    {14, "Q6_K", 256, 210, symmetric(DType::f32, 6, 16, 32), decode_q6_k},
    {39, "MXFP4", 32, 17, {Coding::mxfp4, DType::f32, 4, 32, {}}, decode_mxfp4},
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
