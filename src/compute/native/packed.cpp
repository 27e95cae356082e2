#include "compute/native/packed.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace verbund::compute::native {
namespace {

using formats::Coding;
using formats::DType;

constexpr size_t kQuad = 4, kVector = 64;
// 2 * E2M1 of the sixteen mxfp4 codes, plus kMxfp4Zero.
constexpr uint8_t kMxfp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

size_t scale_bytes(ScaleType type) { return type == ScaleType::f32 ? 4 : type == ScaleType::e8m0 ? 1 : 2; }

ScaleType scale_type_of(DType type) { return type == DType::f32 ? ScaleType::f32 : type == DType::f16 ? ScaleType::f16 : ScaleType::bf16; }

DType dtype_of(ScaleType type) { return type == ScaleType::f32 ? DType::f32 : type == ScaleType::f16 ? DType::f16 : DType::bf16; }

Container container_of(const formats::WeightFormat& format) {
  if (format.coding == Coding::dense) return Container::dense;
  if (format.coding == Coding::mxfp4) return Container::mxfp4;
  return format.bits <= 4 ? Container::nibble : format.bits <= 7 ? Container::byte7 : Container::byte8;
}

bool is_nibbles(Container c) { return c == Container::nibble || c == Container::mxfp4; }

// Where code (lane, k) sits in a block: byte offset, and for nibbles which half.
size_t byte_offset(size_t lane, size_t k) { return (k / kQuad) * kVector + lane * kQuad + k % kQuad; }
size_t nibble_offset(size_t lane, size_t k) {
  const size_t quad = k % kSpan / kQuad;
  return (k / kSpan * 4 + quad % 4) * kVector + lane * kQuad + k % kQuad;
}
bool is_high_nibble(size_t k) { return k % kSpan >= kSpan / 2; }

// Elements [j * bits, (j + 1) * bits) of a row's bit stream, one after another.
class CodeReader {
 public:
  CodeReader(const std::byte* at, const std::byte* end, int bits) : at_(at), end_(end), bits_(bits) {}
  uint8_t next() {
    while (held_ < bits_ && at_ < end_) {
      window_ |= static_cast<uint32_t>(*at_++) << held_;
      held_ += 8;
    }
    const auto code = static_cast<uint8_t>(window_ & ((1u << bits_) - 1));
    window_ >>= bits_;
    held_ -= bits_;
    return code;
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  int bits_, held_ = 0;
  uint32_t window_ = 0;
};

void pack_dense_row(size_t element, std::byte* block, const std::byte* from, size_t lane, size_t col, size_t cols) {
  std::byte* to = block + (col * kBlockRows + lane) * element;
  for (size_t k = 0; k < cols; ++k) std::memcpy(to + k * kBlockRows * element, from + k * element, element);
}

// Both nibbles of a held byte come from the same row, 16 columns apart.
void pack_nibble_row(std::byte* block, const std::byte* from, const std::byte* end, int bits, size_t lane, size_t col, size_t cols) {
  CodeReader reader(from, end, bits);
  uint8_t codes[kSpan];
  for (size_t k = 0; k < cols; k += kSpan) {
    if (bits == 4) {
      for (size_t i = 0; i < kSpan / 2; ++i) {
        const auto byte = static_cast<uint8_t>(from[k / 2 + i]);
        codes[2 * i] = byte & 15;
        codes[2 * i + 1] = byte >> 4;
      }
    } else {
      for (uint8_t& code : codes) code = reader.next();
    }
    std::byte* to = block + (col + k) / kSpan * 4 * kVector + lane * kQuad;
    for (size_t i = 0; i < kSpan / 2; ++i)
      to[i / kQuad * kVector + i % kQuad] = static_cast<std::byte>(codes[i] | codes[i + kSpan / 2] << 4);
  }
}

void pack_byte_row(std::byte* block, const std::byte* from, const std::byte* end, int bits, size_t lane, size_t col, size_t cols) {
  CodeReader reader(from, end, bits);
  for (size_t k = 0; k < cols; ++k) block[byte_offset(lane, col + k)] = bits == 8 ? from[k] : static_cast<std::byte>(reader.next());
}

void pack_scales(std::byte* area, const std::byte* from, size_t element, size_t lane, size_t group, size_t groups) {
  for (size_t g = 0; g < groups; ++g) std::memcpy(area + ((group + g) * kBlockRows + lane) * element, from + g * element, element);
}

// A row that does not exist: its products must be 0, so codes hold `zero` or scales are 0. (mxfp4 has no zero scale: it gets codes.)
void pack_empty_row(const PieceShape& shape, std::byte* block, size_t lane, size_t col, size_t cols) {
  if (shape.container == Container::dense) {
    const size_t element = formats::size_of(shape.format.dtype);
    for (size_t k = 0; k < cols; ++k) std::memset(block + ((col + k) * kBlockRows + lane) * element, 0, element);
    return;
  }
  if (is_nibbles(shape.container)) {
    for (size_t k = 0; k < cols; ++k)
      if (!is_high_nibble(k)) block[nibble_offset(lane, col + k)] = std::byte{0};  // mxfp4: code 0 is the number 0
  } else {
    for (size_t k = 0; k < cols; ++k) block[byte_offset(lane, col + k)] = std::byte{0};
  }
  const size_t element = scale_bytes(shape.scale_type);
  for (size_t g = col / shape.group; g < (col + cols) / shape.group; ++g) {
    std::memset(block + shape.scales_at + (g * kBlockRows + lane) * element, 0, element);
    if (shape.biased) std::memset(block + shape.biases_at + (g * kBlockRows + lane) * element, 0, element);
  }
}

void pack_quantised_row(const PieceShape& shape, std::byte* block, const formats::WeightMatrix& m, size_t r, size_t lane, size_t col) {
  const size_t stride = shape.format.code_row_bytes(m.cols);
  const std::byte* codes = m.codes.data() + r * stride;
  const auto pack_row = is_nibbles(shape.container) ? pack_nibble_row : pack_byte_row;
  pack_row(block, codes, codes + stride, shape.format.bits, lane, col, m.cols);
  const size_t element = scale_bytes(shape.scale_type), groups = m.cols / shape.group;
  pack_scales(block + shape.scales_at, m.scales.data() + r * groups * element, element, lane, col / shape.group, groups);
  if (shape.biased) pack_scales(block + shape.biases_at, m.biases.data() + r * groups * element, element, lane, col / shape.group, groups);
}

}  // namespace

PieceShape piece_shape(const formats::WeightFormat& format, size_t first_row, size_t rows, size_t cols) {
  PieceShape s;
  s.format = format;
  s.container = container_of(format);
  s.first_row = first_row;
  s.rows = rows;
  s.cols = cols;
  if (s.container == Container::dense) {
    s.block_bytes = round_up(cols * kBlockRows * formats::size_of(format.dtype), kVector);
    return s;
  }
  s.group = static_cast<size_t>(format.group);
  s.activation_block = s.group > kSpan ? s.group : kSpan;
  if (format.bits < 1 || format.bits > 8 || (s.group != 16 && (s.group == 0 || s.group % kSpan != 0)))
    throw Error(Code::unimplemented, "no native kernel for weights of the form " + format.name());
  if (cols % s.activation_block != 0)
    throw Error(Code::invalid_argument,
                std::to_string(cols) + " columns of " + format.name() + " are no multiple of " + std::to_string(s.activation_block),
                "native backend, load");
  s.biased = format.coding == Coding::affine && !format.zero;
  s.zero = format.coding == Coding::mxfp4 ? kMxfp4Zero : format.zero.value_or(0);
  s.scale_type = format.coding == Coding::mxfp4 ? ScaleType::e8m0 : scale_type_of(format.dtype);
  s.scales_at = cols * kBlockRows / (is_nibbles(s.container) ? 2 : 1);
  const size_t area = s.groups() * kBlockRows * scale_bytes(s.scale_type);
  s.biases_at = s.scales_at + area;
  s.block_bytes = round_up(s.biases_at + (s.biased ? area : 0), kVector);
  return s;
}

void pack(const PieceShape& shape, std::byte* data, const formats::WeightMatrix& m, size_t row, size_t col) {
  for (size_t r = 0; r < round_up(m.rows, kBlockRows); ++r) {
    std::byte* block = data + (row + r) / kBlockRows * shape.block_bytes;
    const size_t lane = r % kBlockRows;
    if (r >= m.rows) {
      pack_empty_row(shape, block, lane, col, m.cols);
    } else if (shape.container == Container::dense) {
      const size_t element = formats::size_of(shape.format.dtype);
      pack_dense_row(element, block, m.codes.data() + r * m.cols * element, lane, col, m.cols);
    } else {
      pack_quantised_row(shape, block, m, r, lane, col);
    }
  }
}

int held_code(const Piece& piece, const std::byte* block, size_t lane, size_t k) {
  if (!is_nibbles(piece.container)) return static_cast<int>(block[byte_offset(lane, k)]);
  const int byte = static_cast<int>(block[nibble_offset(lane, k)]);
  const int code = is_high_nibble(k) ? byte >> 4 : byte & 15;
  return piece.container == Container::mxfp4 ? kMxfp4Codes[code] : code;
}

float held_scale(const Piece& piece, const std::byte* area, size_t lane, size_t group) {
  const std::byte* at = area + (group * kBlockRows + lane) * scale_bytes(piece.scale_type);
  if (piece.scale_type != ScaleType::e8m0) return formats::to_f32(at, dtype_of(piece.scale_type));
  const auto exponent = static_cast<uint32_t>(*at);
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent << 23);  // 2^-127 is a denormal
}

void unpack_row(const Piece& piece, size_t row, float* out) {
  const std::byte* block = piece.block(row / kBlockRows);
  const size_t lane = row % kBlockRows;
  if (piece.container == Container::dense) {
    const size_t element = formats::size_of(piece.format.dtype);
    for (size_t k = 0; k < piece.cols; ++k) out[k] = formats::to_f32(block + (k * kBlockRows + lane) * element, piece.format.dtype);
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
