// A mesh::Mesh over the groups of mlx::core::distributed (mlx_module.h has the options).
#pragma once

#include <memory>

#include "base/deadline.h"
#include "compute/mlx_module.h"
#include "mesh/mesh.h"

namespace verbund::compute::mlx_impl {

std::unique_ptr<mesh::Mesh> make_mesh(const MlxMeshOptions& options, const Deadline& deadline);

}  // namespace verbund::compute::mlx_impl
