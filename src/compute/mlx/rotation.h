// Rotary positions: MLX's fused rotation where the table is one of plain angles, else the table itself.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "compute/backend.h"
#include "compute/mlx/border.h"

namespace verbund::compute::mlx_impl {

// 1 / frequency of each pair if the table holds cos and sin of position * frequency and nothing else (no attention
// factor, no angles that are not proportional to the position); this is what MLX's rotation takes.
std::optional<std::vector<float>> wavelengths_of(const RopeTable& table);

// The wavelengths of the tables seen so far.
class Wavelengths {
 public:
  const std::optional<mx::array>& of(const RopeTable& table);

 private:
  // A table is known again by where it lies and by its row of position 1: another one may come to lie in its place.
  struct Known {
    const RopeTable* table;
    std::vector<float> row;
    std::optional<mx::array> values;
  };
  std::vector<Known> known_;
};

// Rows of the table for one step, signs folded into sin, 1 and 0 beyond the rotated dims.
struct Rotation {
  mx::array cos, sin;  // [batch, 1, positions, dim], one of batch and positions being 1
};
Rotation rotation_of(const RopeTable& table, RopeMode mode, size_t dim, const std::vector<uint32_t>& positions, bool batch);
mx::array rotate(const mx::array& x, const Rotation& rotation, size_t pairs, RopeMode mode);

}  // namespace verbund::compute::mlx_impl
