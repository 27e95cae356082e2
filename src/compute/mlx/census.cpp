#include "compute/mlx/census.h"

#include <mlx/primitives.h>

#include <algorithm>
#include <unordered_set>

namespace verbund::compute::mlx_impl {
namespace {

bool is_pending(const mx::array& a) { return a.has_primitive() && a.status() == mx::array::Status::unscheduled; }

}  // namespace

void Census::note_fused(const char* name, const std::vector<mx::array>& inputs, const mx::array& out) {
  if (!on_) return;
  Fused fused{name, {}};
  for (const mx::array& in : inputs) fused.inputs.push_back(in.id());
  fused_[out.id()] = std::move(fused);
}

void Census::note_evaluation(const std::vector<mx::array>& roots) {
  if (!on_) return;
  ++counts_.evaluations;
  count_nodes(roots);
  count_kernels(roots);
  fused_.clear();
}

MlxCounts Census::take() {
  counts_.active_bytes = mx::get_active_memory();
  counts_.peak_bytes = mx::get_peak_memory();
  mx::reset_peak_memory();
  on_ = true;
  return std::exchange(counts_, {});
}

// By primitive: the results of one primitive with several are one node.
void Census::count_nodes(const std::vector<mx::array>& roots) {
  std::unordered_set<const mx::Primitive*> seen;
  std::vector<mx::array> open = roots;
  while (!open.empty()) {
    const mx::array a = std::move(open.back());
    open.pop_back();
    if (!is_pending(a) || !seen.insert(&a.primitive()).second) continue;
    ++counts_.nodes[a.primitive().name()];
    for (const mx::array& in : a.inputs()) open.push_back(in);
  }
}

// Below the result of a fused operation nothing is counted until its inputs are reached.
void Census::count_kernels(const std::vector<mx::array>& roots) {
  struct Step {
    mx::array array;
    const Fused* inside;
  };
  std::unordered_set<const mx::Primitive*> seen;
  std::vector<Step> open;
  for (const mx::array& root : roots) open.push_back({root, nullptr});
  while (!open.empty()) {
    Step at = std::move(open.back());
    open.pop_back();
    if (at.inside && std::find(at.inside->inputs.begin(), at.inside->inputs.end(), at.array.id()) != at.inside->inputs.end())
      at.inside = nullptr;
    if (!is_pending(at.array) || !seen.insert(&at.array.primitive()).second) continue;
    if (!at.inside) {
      const auto found = fused_.find(at.array.id());
      if (found != fused_.end()) at.inside = &found->second;
      ++counts_.kernels[at.inside ? at.inside->name : at.array.primitive().name()];
    }
    for (const mx::array& in : at.array.inputs()) open.push_back({in, at.inside});
  }
}

}  // namespace verbund::compute::mlx_impl
