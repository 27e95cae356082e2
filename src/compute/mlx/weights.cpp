#include "compute/mlx/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace verbund::compute::mlx_impl {
namespace {

using formats::Coding;
using formats::DType;
using formats::WeightFormat;
using formats::WeightMatrix;

mx::Dtype mlx_type(DType t) {
  switch (t) {
    case DType::f32: return mx::float32;
    case DType::f16: return mx::float16;
    case DType::bf16: return mx::bfloat16;
  }
  return mx::float32;
}

bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

bool must_widen(const WeightFormat& f) { return f.coding == Coding::affine && f.group == 16; }

// Scaling by a power of two is exact in any float type; any other factor may need bits that 16-bit types do not have.
DType bias_type(const WeightFormat& f) { return !f.zero || *f.zero == 0 || is_power_of_two(*f.zero) ? f.dtype : DType::f32; }

uint64_t piece_bytes(const WeightFormat& f, size_t rows, size_t cols) {
  if (f.coding == Coding::dense) return uint64_t(rows) * cols * size_of(f.dtype);
  if (must_widen(f)) return uint64_t(rows) * cols * sizeof(float);
  const uint64_t codes = uint64_t(rows) * f.code_row_bytes(cols), groups = uint64_t(rows) * f.group_count(cols);
  if (f.coding == Coding::mxfp4) return codes + groups;
  return codes + groups * (size_of(f.dtype) + size_of(bias_type(f)));
}

Piece make_piece(const WeightFormat& f, size_t rows, size_t cols) {
  const int r = static_cast<int>(rows), c = static_cast<int>(cols);
  if (f.coding == Coding::dense) return {f, rows, false, make_array({r, c}, mlx_type(f.dtype)), {}, {}};
  if (must_widen(f)) return {f, rows, true, make_array({r, c}, mx::float32), {}, {}};
  const int words = static_cast<int>(f.code_row_bytes(cols) / 4), groups = static_cast<int>(f.group_count(cols));
  Piece piece{f, rows, false, make_array({r, words}, mx::uint32), {}, {}};
  const bool mxfp4 = f.coding == Coding::mxfp4;
  piece.scales = make_array({r, groups}, mxfp4 ? mx::uint8 : mlx_type(f.dtype));
  if (!mxfp4) piece.biases = make_array({r, groups}, mlx_type(bias_type(f)));
  return piece;
}

void store(DType type, float value, std::byte* at) {
  if (type == DType::f32) {
    std::memcpy(at, &value, 4);
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t half = type == DType::f16 ? formats::f32_to_f16(value) : static_cast<uint16_t>(bits >> 16);
  std::memcpy(at, &half, 2);
}

// biases = -zero * scale for a band of groups.
void derive_biases(const WeightFormat& f, const std::byte* scales, size_t count, std::byte* biases, const std::string& tensor) {
  const DType to = bias_type(f);
  for (size_t i = 0; i < count; ++i) {
    const float scale = formats::to_f32(scales + i * size_of(f.dtype), f.dtype);
    const float bias = -static_cast<float>(*f.zero) * scale;
    if (to == DType::f16 && std::isfinite(scale) && std::abs(bias) > 65504.0f)
      throw Error(Code::unimplemented, "a scale is too large for the f16 biases of MLX", tensor, "use --backend native");
    store(to, bias, biases + i * size_of(to));
  }
}

void copy_band(Piece& piece, size_t row, const WeightMatrix& band, size_t cols, const std::string& tensor) {
  const WeightFormat& f = piece.format;
  if (piece.widened) {
    for (size_t r = 0; r < band.rows; ++r) formats::dequantise_row(band, r, piece.codes.data<float>() + (row + r) * cols);
    return;
  }
  const size_t row_bytes = f.code_row_bytes(cols), groups = f.group_count(cols);
  std::memcpy(piece.codes.data<std::byte>() + row * row_bytes, band.codes.data(), band.rows * row_bytes);
  if (f.coding == Coding::dense) return;
  const size_t scale_size = f.coding == Coding::mxfp4 ? 1 : size_of(f.dtype);
  std::memcpy(piece.scales->data<std::byte>() + row * groups * scale_size, band.scales.data(), band.rows * groups * scale_size);
  if (!piece.biases) return;
  std::byte* biases = piece.biases->data<std::byte>() + row * groups * size_of(bias_type(f));
  if (f.zero) return derive_biases(f, band.scales.data(), band.rows * groups, biases, tensor);
  std::memcpy(biases, band.biases.data(), band.rows * groups * scale_size);
}

void fill(Piece& piece, size_t row, const formats::TensorSource& source, const WeightPart& part, WeightMatrix& band) {
  const size_t cols = part.cols.size();
  const size_t step = std::max<size_t>(1, kBandBytes / std::max<size_t>(1, cols * sizeof(float)));
  for (size_t begin = part.rows.begin; begin < part.rows.end; begin += step) {
    const Range rows{begin, std::min(begin + step, part.rows.end)};
    source.read(part.name, rows, part.cols, band);
    copy_band(piece, row + (begin - part.rows.begin), band, cols, part.name);
  }
}

void check(const formats::TensorSource& source, std::span<const WeightPart> parts) {
  if (parts.empty()) throw Error(Code::invalid_argument, "a weight of no parts", source.path());
  for (const WeightPart& part : parts) {
    const auto& info = source.require(part.name);
    if (part.rows.begin > part.rows.end || part.rows.end > info.rows() || part.cols.begin > part.cols.end || part.cols.end > info.cols())
      throw Error(Code::invalid_argument, "rows or columns outside the tensor", part.name);
    if (part.cols.size() != parts[0].cols.size())
      throw Error(Code::invalid_argument, "parts of one weight have different widths", part.name);
  }
}

// What a product with this piece runs in on a GPU. Scales and biases of different types are both widened by MLX, to f32.
mx::Dtype product_type(const Piece& p) {
  if (!p.scales) return p.codes.dtype();
  if (!p.biases) return mx::bfloat16;  // mxfp4, whose scales are powers of two as wide as those of bf16
  return mx::promote_types(p.scales->dtype(), p.biases->dtype());
}

mx::array multiply(const Ops& ops, const mx::array& x, const Piece& p) {
  const mx::array in = ops.narrowed(x, product_type(p));
  if (!p.scales) return mx::matmul(in, mx::transpose(mx::astype(p.codes, in.dtype())));
  const char* mode = p.format.coding == Coding::mxfp4 ? "mxfp4" : "affine";
  return mx::quantized_matmul(in, p.codes, *p.scales, p.biases, true, p.format.group, p.format.bits, mode);
}

}  // namespace

uint64_t stored_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) {
  check(source, parts);
  uint64_t bytes = 0;
  for (const WeightPart& part : parts) bytes += piece_bytes(source.require(part.name).format, part.rows.size(), part.cols.size());
  return bytes;
}

uint64_t widening_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) {
  uint64_t bytes = 0;
  for (const WeightPart& part : parts) {
    const WeightFormat& f = source.require(part.name).format;
    if (f.coding == Coding::dense && f.dtype != DType::f32) bytes += uint64_t(part.rows.size()) * part.cols.size() * sizeof(float);
  }
  return bytes;
}

std::unique_ptr<MlxWeight> load_weight(const formats::TensorSource& source, std::span<const WeightPart> parts) {
  check(source, parts);
  auto weight = std::make_unique<MlxWeight>();
  weight->cols = parts[0].cols.size();
  WeightMatrix band;
  for (size_t first = 0; first < parts.size();) {
    const WeightFormat format = source.require(parts[first].name).format;
    size_t last = first, rows = 0;
    for (; last < parts.size() && source.require(parts[last].name).format == format; ++last) rows += parts[last].rows.size();
    if (rows == 0) {
      first = last;
      continue;
    }
    Piece piece = make_piece(format, rows, weight->cols);
    for (size_t row = 0; first < last; row += parts[first].rows.size(), ++first) fill(piece, row, source, parts[first], band);
    weight->rows += rows;
    weight->bytes += piece_bytes(format, rows, weight->cols);
    weight->pieces.push_back(std::move(piece));
  }
  return weight;
}

mx::array multiply(const Ops& ops, const mx::array& x, const MlxWeight& w) {
  if (w.pieces.size() == 1) return multiply(ops, x, w.pieces[0]);
  std::vector<mx::array> columns;
  for (const Piece& piece : w.pieces) columns.push_back(multiply(ops, x, piece));
  return mx::concatenate(std::move(columns), 1);
}

mx::array take_f32(const MlxWeight& table, const mx::array& row_ids) {
  if (table.pieces.size() != 1) throw Error(Code::invalid_argument, "an embedding table must be of one format", "MLX, embed");
  const Piece& p = table.pieces[0];
  const mx::array codes = mx::take(p.codes, row_ids, 0);
  if (!p.scales) return mx::astype(codes, mx::float32);
  const mx::array scales = mx::take(*p.scales, row_ids, 0);
  if (!p.biases) return mx::dequantize(codes, scales, std::nullopt, p.format.group, p.format.bits, "mxfp4", std::nullopt, mx::float32);
  // Scale and bias are widened first: dequantize computes in their type.
  return mx::dequantize(codes, mx::astype(scales, mx::float32), mx::astype(mx::take(*p.biases, row_ids, 0), mx::float32), p.format.group,
                        p.format.bits);
}

}  // namespace verbund::compute::mlx_impl
