#include "formats/weight.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/codes.h"

namespace verbund::formats {
namespace {

constexpr std::array<float, 16> kE2M1{0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

void widen_row(const WeightMatrix& m, size_t row, float* out) {
  const size_t size = size_of(m.format.dtype);
  const std::byte* at = m.codes.data() + row * m.cols * size;
  for (size_t i = 0; i < m.cols; ++i) out[i] = to_f32(at + i * size, m.format.dtype);
}

void affine_group(const WeightMatrix& m, size_t group_index, const uint8_t* codes, float* out) {
  const size_t size = size_of(m.format.dtype), n = static_cast<size_t>(m.format.group);
  const float scale = to_f32(m.scales.data() + group_index * size, m.format.dtype);
  if (m.format.zero) {
    for (size_t i = 0; i < n; ++i) out[i] = scale * static_cast<float>(int(codes[i]) - *m.format.zero);
  } else {
    const float bias = to_f32(m.biases.data() + group_index * size, m.format.dtype);
    for (size_t i = 0; i < n; ++i) out[i] = std::fma(scale, static_cast<float>(codes[i]), bias);
  }
}

void mxfp4_group(const WeightMatrix& m, size_t group_index, const uint8_t* codes, float* out) {
  const int exponent = std::to_integer<int>(m.scales[group_index]);
  const float scale = exponent == 255 ? NAN : std::ldexp(1.f, exponent - 127);
  for (int i = 0; i < m.format.group; ++i) out[i] = kE2M1[codes[i]] * scale;
}

}  // namespace

std::string_view to_string(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
  }
  return "?";
}

size_t WeightFormat::code_row_bytes(size_t cols) const {
  return coding == Coding::dense ? cols * size_of(dtype) : (cols * static_cast<size_t>(bits) + 7) / 8;
}

uint64_t WeightFormat::bytes(size_t rows, size_t cols) const {
  const uint64_t groups = group_count(cols);
  uint64_t row = code_row_bytes(cols);
  if (coding == Coding::mxfp4) row += groups;
  if (coding == Coding::affine) row += groups * size_of(dtype) * (zero ? 1 : 2);
  return row * rows;
}

std::string WeightFormat::name() const {
  if (coding == Coding::dense) return std::string(to_string(dtype));
  if (coding == Coding::mxfp4) return "mxfp4";
  return "affine" + std::to_string(bits) + " g" + std::to_string(group);
}

void WeightMatrix::resize(const WeightFormat& to, size_t row_count, size_t col_count) {
  format = to;
  rows = row_count;
  cols = col_count;
  const size_t scale_size = format.coding == Coding::affine ? size_of(format.dtype) : 1;
  const size_t scale_bytes = rows * format.group_count(cols) * scale_size;
  codes.resize(rows * format.code_row_bytes(cols));
  scales.resize(scale_bytes);
  biases.resize(format.coding == Coding::affine && !format.zero ? scale_bytes : 0);
}

float to_f32(const std::byte* at, DType t) {
  if (t == DType::f32) {
    float v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return t == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero and subnormals: exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t f32_to_f16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v), magnitude = u & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                       // below 2^-14: a multiple of 2^-24
    // Adding 2^-1 puts the unit of the last place at 2^-24: the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

uint16_t f32_to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void dequantise_row(const WeightMatrix& m, size_t row, float* out) {
  if (m.format.coding == Coding::dense) return widen_row(m, row, out);
  const size_t group = static_cast<size_t>(m.format.group), groups = m.format.group_count(m.cols);
  const std::byte* packed = m.codes.data() + row * m.format.code_row_bytes(m.cols);
  std::array<uint8_t, 128> codes;
  for (size_t g = 0; g < groups; ++g) {
    unpack_codes(packed + g * group * m.format.bits / 8, group, m.format.bits, codes.data());
    const size_t index = row * groups + g;
    if (m.format.coding == Coding::affine)
      affine_group(m, index, codes.data(), out + g * group);
    else
      mxfp4_group(m, index, codes.data(), out + g * group);
  }
}

}  // namespace verbund::formats
