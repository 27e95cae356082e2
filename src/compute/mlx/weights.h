// Weights in MLX's own layouts, and products with them.
//
// dense keeps its element type. affine with groups of 32, 64 or 128 keeps its codes as they are (the bit stream of
// formats/weight.h is MLX's layout) with scales and biases in the source's type; a `zero` becomes biases = -zero * scale
// in that type when zero is a power of two (exact), else in f32. mxfp4 is MLX's mxfp4. Groups of 16 have no MLX form and
// are widened to f32: never worse than the source, but 4 bytes a weight, and stored_bytes() says so.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compute/backend.h"
#include "compute/mlx/border.h"
#include "compute/mlx/ops.h"
#include "formats/tensor_source.h"

namespace verbund::compute::mlx_impl {

// Consecutive rows of one format. q, k and v of a K-quant file may differ, hence several.
struct Piece {
  formats::WeightFormat format;
  size_t rows;
  bool widened;                     // stored as f32 although `format` is quantised
  mx::array codes;                  // dense or widened: [rows, cols]; else u32 [rows, cols * bits / 32]
  std::optional<mx::array> scales;  // [rows, cols / group]
  std::optional<mx::array> biases;
};

struct MlxWeight final : Weight {
  std::vector<Piece> pieces;
};

constexpr uint64_t kBandBytes = 4 << 20;  // of the source, read at a time

uint64_t stored_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts);
// Bytes of the f32 copies that a product on the CPU makes of 16-bit dense pieces.
uint64_t widening_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts);
std::unique_ptr<MlxWeight> load_weight(const formats::TensorSource& source, std::span<const WeightPart> parts);

// x W^T: [n, w.rows], in f32 or, on a GPU, in the 16-bit type of the scales (ops.h).
mx::array multiply(const Ops& ops, const mx::array& x, const MlxWeight& w);
mx::array take_f32(const MlxWeight& table, const mx::array& row_ids);  // the rows as f32: [n, w.cols]

}  // namespace verbund::compute::mlx_impl
