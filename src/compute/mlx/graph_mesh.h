// A mesh whose sums can be nodes of a graph: one over MLX's own groups (mesh.cpp). A step over it is one evaluation, while
// with any other mesh each sum goes through the host.
#pragma once

#include <functional>

#include "base/deadline.h"
#include "compute/mlx/border.h"

namespace verbund::compute::mlx_impl {

class GraphMesh {
 public:
  virtual ~GraphMesh() = default;
  // The sum over all ranks of x, an integer array, once the graph is evaluated. All ranks ask for the same sums in the
  // same order, and each sum depends on the one before it.
  virtual mx::array sum_later(const mx::array& x) = 0;
  // Evaluates a graph that holds every sum asked for since the last time, after the ranks have agreed on which they are.
  virtual void evaluate_sums(const std::function<void()>& evaluate, const Deadline& deadline) = 0;
};

}  // namespace verbund::compute::mlx_impl
