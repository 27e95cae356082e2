#include "compute/native/packed.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "compute/numerics.h"

namespace verbund::compute::native {
namespace {

using formats::Coding;
using formats::DType;

constexpr size_t kQuad = 4, kVector = 64;
// 2 * E2M1 of the sixteen mxfp4 codes, plus kMxfp4Zero.
constexpr uint8_t kMxfp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

ScaleType scale_type_of(DType type) { return type == DType::f32 ? ScaleType::f32 : type == DType::f16 ? ScaleType::f16 : ScaleType::bf16; }

DType dtype_of(ScaleType type) { return type == ScaleType::f32 ? DType::f32 : type == ScaleType::f16 ? DType::f16 : DType::bf16; }

Container container_of(const formats::WeightFormat& format) {
  if (format.coding == Coding::dense) return Container::dense;
  if (format.coding == Coding::mxfp4) return Container::mxfp4;
  constexpr Container containers[] = {Container::plane2, Container::plane2, Container::plane2, Container::plane3, Container::nibble,
                                      Container::plane5, Container::plane6, Container::byte8,  Container::byte8};
  return containers[format.bits];
}

// Bits of a code in the planes of its span.
struct Planes {
  size_t low, high;
};

Planes planes_of(Container c) {
  switch (c) {
    case Container::plane2: return {2, 0};
    case Container::plane3: return {2, 1};
    case Container::plane5: return {4, 1};
    case Container::plane6: return {4, 2};
    case Container::byte8: return {8, 0};
    default: return {4, 0};
  }
}

// Code (quad, byte) of a plane of `bits` bits: packed.h.
int plane_code(const std::byte* plane, size_t bits, size_t quad, size_t byte) {
  const size_t vector = bits == 2 ? quad / 4 : bits == 1 ? 0 : bits == 4 ? quad % 4 : quad;
  const size_t shift = bits == 2 ? quad % 4 * 2 : bits == 1 ? quad : bits == 4 ? quad / 4 * 4 : 0;
  return static_cast<int>(plane[vector * kVector + byte]) >> shift & ((1 << bits) - 1);
}

}  // namespace

PieceShape piece_shape(const formats::WeightFormat& format, size_t first_row, size_t rows, size_t cols, bool fast_dense) {
  if (format.coding != Coding::dense && (format.bits < 1 || format.bits > 8))
    throw Error(Code::unimplemented, "no native kernel for weights of the form " + format.name());
  PieceShape s;
  s.format = format;
  s.container = container_of(format);
  s.first_row = first_row;
  s.rows = rows;
  s.cols = cols;
  if (s.container == Container::dense) {
    s.block_bytes = round_up(cols * kBlockRows * formats::size_of(format.dtype), kVector);
    if (fast_dense) {
      s.container = Container::pairs;
      s.block_bytes = round_up(cols, kPairBlock) * kBlockRows * sizeof(uint16_t);
    }
    return s;
  }
  s.group = static_cast<size_t>(format.group);
  s.activation_block = s.group > kSpan ? s.group : kSpan;
  if (s.group != 16 && (s.group == 0 || s.group % kSpan != 0))
    throw Error(Code::unimplemented, "no native kernel for weights of the form " + format.name());
  if (cols % s.activation_block != 0)
    throw Error(Code::invalid_argument,
                std::to_string(cols) + " columns of " + format.name() + " are no multiple of " + std::to_string(s.activation_block),
                "native backend, load");
  s.biased = format.coding == Coding::affine && !format.zero;
  s.zero = format.coding == Coding::mxfp4 ? kMxfp4Zero : format.zero.value_or(0);
  s.scale_type = format.coding == Coding::mxfp4 ? ScaleType::e8m0 : scale_type_of(format.dtype);
  const Planes planes = planes_of(s.container);
  s.code_bits = planes.low + planes.high;
  s.scales_at = cols * kBlockRows * s.code_bits / 8;
  const size_t area = s.groups() * kBlockRows * scale_bytes(s.scale_type);
  s.biases_at = s.scales_at + area;
  s.block_bytes = round_up(s.biases_at + (s.biased ? area : 0), kVector);
  return s;
}

int held_code(const Piece& piece, const std::byte* block, size_t lane, size_t k) {
  const Planes planes = planes_of(piece.container);
  const std::byte* span = block + k / kSpan * piece.code_bits * kVector;
  const size_t quad = k % kSpan / kQuad, byte = lane * kQuad + k % kQuad;
  int code = plane_code(span, planes.low, quad, byte);
  if (planes.high > 0) code |= plane_code(span + planes.low * kVector, planes.high, quad, byte) << planes.low;
  return piece.container == Container::mxfp4 ? kMxfp4Codes[code] : code;
}

float held_scale(const Piece& piece, const std::byte* area, size_t lane, size_t group) {
  const std::byte* at = area + (group * kBlockRows + lane) * scale_bytes(piece.scale_type);
  if (piece.scale_type != ScaleType::e8m0) return formats::to_f32(at, dtype_of(piece.scale_type));
  const auto exponent = static_cast<uint32_t>(*at);
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent << 23);  // 2^-127 is a denormal
}

float held_pair_weight(const std::byte* block, size_t lane, size_t k) {
  uint16_t half;
  std::memcpy(&half, block + (k / 2 * kBlockRows + lane) * 4 + k % 2 * 2, sizeof half);
  return from_half_of_pair(half);
}

void unpack_row(const Piece& piece, size_t row, float* out) {
  const std::byte* block = piece.block(row / kBlockRows);
  const size_t lane = row % kBlockRows;
  if (piece.container == Container::dense) {
    const size_t element = formats::size_of(piece.format.dtype);
    for (size_t k = 0; k < piece.cols; ++k) out[k] = formats::to_f32(block + (k * kBlockRows + lane) * element, piece.format.dtype);
    return;
  }
  if (piece.container == Container::pairs) {
    for (size_t k = 0; k < piece.cols; ++k) out[k] = held_pair_weight(block, lane, k);
    return;
  }
  for (size_t k = 0; k < piece.cols; ++k) {
    const size_t g = k / piece.group;
    const auto code = static_cast<float>(held_code(piece, block, lane, k) - piece.zero);
    const float scale = held_scale(piece, block + piece.scales_at, lane, g);
    if (piece.container == Container::mxfp4)
      out[k] = scale * (0.5f * code);
    else if (piece.biased)
      out[k] = std::fma(scale, code, held_scale(piece, block + piece.biases_at, lane, g));
    else
      out[k] = scale * code;
  }
}

}  // namespace verbund::compute::native
