// The module's functions for tests (compute/mlx/abi.h): what a backend puts into MLX's graphs, and the form of a GPU.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "compute/mlx/abi.h"
#include "compute/mlx_module.h"

namespace verbund::test {

template <class Fn>
Fn* module_function(const char* name) {
  static void* const module = dlopen(compute::mlx_module_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const address = module ? dlsym(module, name) : nullptr;
  if (address == nullptr) throw std::runtime_error(std::string("the MLX module has no function ") + name);
  return reinterpret_cast<Fn*>(address);
}

inline compute::MlxCounts take_counts(compute::Backend& backend) {
  return module_function<compute::MlxCountsFn>(compute::kMlxCountsName)(backend);
}

inline std::unique_ptr<compute::Backend> make_gpu_form() {
  return std::unique_ptr<compute::Backend>(module_function<compute::MlxGpuFormFn>(compute::kMlxGpuFormName)());
}

}  // namespace verbund::test
