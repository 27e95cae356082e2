// The MLX backend (backend.h): operations are nodes of a lazy graph; to_host(), end_step() and add_reduced() over more
// than one rank evaluate it. Runs on MLX's default device: Metal or CUDA where the wheel has them, else the CPU.
#pragma once

#include <memory>

#include "compute/backend.h"

namespace verbund::compute::mlx_impl {

std::unique_ptr<Backend> make_backend();

}  // namespace verbund::compute::mlx_impl
