// How a matrix of weights is written down, and a piece of one in memory.
//
// Every file format is read into one of three codings, so that nothing above this folder knows GGUF or MLX layouts:
//   dense   the elements themselves (f32, f16, bf16)
//   affine  w = scale * (q - zero)            if `zero` is set   (symmetric: Q4_0, Q8_0, Q3_K, Q6_K, ...)
//           w = fma(scale, q, bias)           else               (MLX affine, Q4_1, Q4_K, ...)
//           q: `bits` wide unsigned, one scale (and bias) for `group` consecutive columns of a row
//   mxfp4   w = 2^(e-127) * E2M1(q), q 4 bits wide, groups of 32, e one byte (OCP Microscaling Formats 1.0)
// Value types; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace verbund::formats {

enum class DType : uint8_t { f32, f16, bf16 };
constexpr size_t size_of(DType t) { return t == DType::f32 ? 4 : 2; }
std::string_view to_string(DType t);

enum class Coding : uint8_t { dense, affine, mxfp4 };

struct WeightFormat {
  Coding coding = Coding::dense;
  DType dtype = DType::f32;  // dense: of the elements; affine: of scales and biases (the narrowest that is exact)
  int bits = 0;              // affine: 2, 3, 4, 5, 6, 8; mxfp4: 4
  int group = 0;             // affine: 16, 32, 64, 128; mxfp4: 32
  std::optional<int> zero;   // affine: set when the bias is derived from the scale, then no biases are stored
  bool operator==(const WeightFormat&) const = default;

  size_t code_row_bytes(size_t cols) const;  // bytes of one row's elements or codes
  size_t group_count(size_t cols) const { return coding == Coding::dense ? 0 : cols / static_cast<size_t>(group); }
  uint64_t bytes(size_t rows, size_t cols) const;  // codes + scales + biases of a rows x cols piece in this form
  std::string name() const;                        // "bf16", "affine4 g32", "mxfp4"
};

// rows x cols in memory, rows one after another. A row's codes are a little-endian bit stream, least significant bit
// first: element j is bits [j*bits, (j+1)*bits). cols is a multiple of 32 unless dense, and of `group`.
struct WeightMatrix {
  WeightFormat format;
  size_t rows = 0, cols = 0;
  std::vector<std::byte> codes;   // rows * code_row_bytes(cols); dense: the elements
  std::vector<std::byte> scales;  // affine: rows * cols/group of dtype; mxfp4: u8 each
  std::vector<std::byte> biases;  // affine without `zero`: as scales

  void resize(const WeightFormat& format, size_t rows, size_t cols);  // keeps capacity: a reader reuses one buffer
};

float to_f32(const std::byte* at, DType t);  // exact
uint16_t f32_to_f16(float v);                // round to nearest even, overflow to infinity, NaN stays NaN
uint16_t f32_to_bf16(float v);               // likewise
float f16_to_f32(uint16_t bits);
inline float bf16_to_f32(uint16_t bits) {
  const uint32_t u = uint32_t(bits) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// Row `row` as f32: the reference every kernel is compared with. `out` holds `cols` floats.
void dequantise_row(const WeightMatrix& m, size_t row, float* out);

}  // namespace verbund::formats
