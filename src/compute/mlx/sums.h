// Sums over ranks in 64-bit fixed point (numerics.h), through the host or as nodes of the graph, and the rows whose values
// do not fit. Whatever the way, every rank goes on with the same bits.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "compute/mlx/border.h"
#include "compute/mlx/census.h"
#include "compute/mlx/graph_mesh.h"
#include "mesh/mesh.h"

namespace verbund::compute::mlx_impl {

// One request's error naming these rows; nothing if there are none.
void throw_poisoned(const std::vector<size_t>& rows);

// bool [rows]: all values of the row fit the fixed-point range; NaN does not.
mx::array fitting_rows(const mx::array& v);

// The sum over all ranks of v, f32. Evaluates v. Throws if a row does not fit on any rank.
mx::array sum_on_host(const mx::array& v, mesh::Mesh& mesh, const Deadline& deadline, Census& census);

// The sums of one step that are still in the graph.
class LaterSums {
 public:
  // The same as a node, which depends on every sum asked for before it.
  mx::array sum(const mx::array& v, GraphMesh& mesh, const Deadline& deadline);
  // Adds bit patterns: every element is non-zero on one rank at most.
  mx::array gather(const mx::array& v, GraphMesh& mesh, const Deadline& deadline);

  bool pending() const { return !sums_.empty(); }
  // Evaluates `roots`, and with them every sum asked for, over the mesh.
  void evaluate(std::vector<mx::array> roots, Census& census);
  // Rows of the sums evaluated that did not fit on some rank. Forgets them.
  std::vector<size_t> take_poisoned() { return std::exchange(poisoned_, {}); }
  void clear();

 private:
  mx::array chained(mx::array wire, GraphMesh& mesh, const Deadline& deadline);

  GraphMesh* mesh_ = nullptr;
  std::vector<mx::array> sums_;    // not evaluated yet
  std::vector<mx::array> counts_;  // i64 [rows, 1] each, with them: how many values do not fit
  std::vector<size_t> poisoned_;
  std::chrono::nanoseconds wait_{0};  // for all of them together
};

}  // namespace verbund::compute::mlx_impl
