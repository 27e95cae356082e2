// The MLX backend (backend.h): operations are nodes of a lazy graph, which is evaluated once a step, by to_host() or else by
// end_step(). Only sums over the ranks of a mesh that is not one of MLX's own evaluate it in between.
// Runs on MLX's default device: Metal or CUDA where the wheel has them, else the CPU.
#pragma once

#include <memory>

#include "compute/backend.h"
#include "compute/mlx/abi.h"

namespace verbund::compute::mlx_impl {

std::unique_ptr<Backend> make_backend();
std::unique_ptr<Backend> make_backend_in_gpu_form();  // for tests, see ops.h
MlxCounts take_counts(Backend& backend);

}  // namespace verbund::compute::mlx_impl
