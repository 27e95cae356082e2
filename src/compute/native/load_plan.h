// What loading a weight means, worked out before anything is read: which rows of which tensor become which rows of which piece.
// Value types; any thread.
#pragma once

#include <span>
#include <vector>

#include "compute/native/packed.h"
#include "formats/tensor_source.h"

namespace verbund::compute::native {

// Rows of one part that lie in one piece.
struct LoadRun {
  const WeightPart* part;
  size_t first;  // row of the piece that the part's first row becomes
  size_t end() const { return first + part->rows.size(); }
};

// Neighbouring parts of one format form one piece; a new format begins a new one.
struct LoadPlan {
  std::vector<PieceShape> pieces;
  std::vector<std::vector<LoadRun>> runs;  // of each piece, in order, without gaps
  size_t rows = 0, cols = 0;
  uint64_t bytes = 0;
};

// Points into `parts`. fast_dense: see packed.h. Throws invalid_argument for ranges outside a tensor and parts of different widths.
LoadPlan make_load_plan(const formats::TensorSource& source, std::span<const WeightPart> parts, bool fast_dense);

// Throws invalid_argument and unimplemented if these parts cannot be summed in units of `unit` columns.
void check_unit(const LoadPlan& plan, const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit);

}  // namespace verbund::compute::native
