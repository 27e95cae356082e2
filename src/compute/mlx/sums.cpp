#include "compute/mlx/sums.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "compute/numerics.h"

namespace verbund::compute::mlx_impl {
namespace {

mx::array fitting(const mx::array& v) { return mx::less_equal(mx::abs(v), mx::array(kFixedMax)); }

// i64 [rows, cols + 1]: fixed point, zero where a value does not fit, and the number of those in the last column.
// v * 2^30 is exact in f32 and its integer part exact in int64, so no rounding but the wanted one happens here; GPUs
// without f64 compute the same.
mx::array to_wire(const mx::array& y) {
  const mx::array v = mx::astype(y, mx::float32), fits = fitting(v);
  const mx::array safe = mx::where(fits, v, mx::array(0.0f));
  const mx::array fixed = mx::astype(mx::round(mx::multiply(safe, mx::array(static_cast<float>(kFixedOne)))), mx::int64);
  const mx::array poisoned = mx::sum(mx::astype(mx::logical_not(fits), mx::int32), 1, /*keepdims=*/true);
  return mx::concatenate({fixed, mx::astype(poisoned, mx::int64)}, 1);
}

}  // namespace

void throw_poisoned(const std::vector<size_t>& rows) {
  if (rows.empty()) return;
  std::string list;
  for (const size_t row : rows) list += (list.empty() ? "rows " : ", ") + std::to_string(row);
  throw Error(Error::Parts{Code::invalid_argument, Lost::request, "a partial sum left the fixed-point range (2^20) or is not a number",
                           list, "the prompt or the model's weights overflow; other requests are not affected"});
}

mx::array fitting_rows(const mx::array& v) { return mx::all(fitting(v), 1); }

mx::array sum_on_host(const mx::array& v, mesh::Mesh& mesh, const Deadline& deadline, Census& census) {
  const size_t rows = static_cast<size_t>(v.shape(0)), cols = static_cast<size_t>(v.shape(1));
  mx::array wire = to_wire(v);
  census.note_host_sum();
  census.note_evaluation({wire});
  mx::eval(wire);
  std::vector<int64_t> sums(wire.size());
  std::memcpy(sums.data(), wire.data<int64_t>(), wire.nbytes());
  mesh.all_reduce(std::span(sums), deadline);

  std::vector<size_t> bad;
  mx::array total = make_array(v.shape(), mx::float32);
  for (size_t r = 0; r < rows; ++r) {
    const int64_t* row = sums.data() + r * (cols + 1);
    if (row[cols] != 0) bad.push_back(r);
    std::transform(row, row + cols, total.data<float>() + r * cols, from_fixed);
  }
  throw_poisoned(bad);
  return total;
}

mx::array LaterSums::sum(const mx::array& v, GraphMesh& mesh, const Deadline& deadline) {
  const mx::array wire = chained(to_wire(v), mesh, deadline);
  const int rows = v.shape(0), cols = v.shape(1);
  counts_.push_back(mx::slice(wire, {0, cols}, {rows, cols + 1}));
  const mx::array fixed = mx::astype(mx::slice(wire, {0, 0}, {rows, cols}), mx::float32);
  return mx::multiply(fixed, mx::array(static_cast<float>(1.0 / kFixedOne)));
}

mx::array LaterSums::gather(const mx::array& v, GraphMesh& mesh, const Deadline& deadline) {
  return mx::view(chained(mx::view(v, mx::int32), mesh, deadline), mx::float32);
}

mx::array LaterSums::chained(mx::array wire, GraphMesh& mesh, const Deadline& deadline) {
  if (mesh_ != nullptr && mesh_ != &mesh) throw Error(Code::invalid_argument, "sums of one step over two meshes", "MLX, add_reduced");
  mesh_ = &mesh;
  wait_ += deadline.left();
  if (!sums_.empty()) wire = mx::depends({wire}, {sums_.back()})[0];
  sums_.push_back(mesh.sum_later(wire));
  return sums_.back();
}

void LaterSums::evaluate(std::vector<mx::array> roots, Census& census) {
  // Whatever comes of it: what failed is not tried again, and the mesh is dead then.
  for (mx::array& sum : std::exchange(sums_, {})) roots.push_back(std::move(sum));
  const std::vector<mx::array> counts = std::exchange(counts_, {});
  roots.insert(roots.end(), counts.begin(), counts.end());
  GraphMesh* mesh = std::exchange(mesh_, nullptr);
  const Deadline deadline = Deadline::after(std::exchange(wait_, std::chrono::nanoseconds(0)));
  census.note_evaluation(roots);
  if (mesh == nullptr) return mx::eval(std::move(roots));
  mesh->evaluate_sums([&] { mx::eval(std::move(roots)); }, deadline);
  for (const mx::array& c : counts) {
    const auto stride = c.strides(0);
    for (int r = 0; r < c.shape(0); ++r)
      if (c.data<int64_t>()[r * stride] != 0) poisoned_.push_back(static_cast<size_t>(r));
  }
}

void LaterSums::clear() { *this = LaterSums(); }

}  // namespace verbund::compute::mlx_impl
