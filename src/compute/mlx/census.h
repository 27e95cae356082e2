// Counts what a backend puts into MLX's graphs, for tests (abi.h: MlxCounts). Off until asked for the first time.
//
// Counted twice: every node as it is on this device, and with each of MLX's fused operations (rms_norm, rope, attention,
// compiled chains) as the single primitive that it is on a GPU, whose graph a machine without one cannot build.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "compute/mlx/abi.h"
#include "compute/mlx/border.h"

namespace verbund::compute::mlx_impl {

class Census {
 public:
  // `out` was made of `inputs` by one fused operation.
  void note_fused(const char* name, const std::vector<mx::array>& inputs, const mx::array& out);
  // Called with the roots of every evaluation, before it.
  void note_evaluation(const std::vector<mx::array>& roots);
  void note_host_sum() { ++counts_.host_sums; }
  MlxCounts take();

 private:
  struct Fused {
    const char* name;
    std::vector<std::uintptr_t> inputs;
  };
  void count_nodes(const std::vector<mx::array>& roots);
  void count_kernels(const std::vector<mx::array>& roots);

  bool on_ = false;
  MlxCounts counts_;
  std::unordered_map<std::uintptr_t, Fused> fused_;  // by id of the result; ids, because a reference would keep buffers alive
};

}  // namespace verbund::compute::mlx_impl
