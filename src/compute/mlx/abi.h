// What the program looks up in libverbund_mlx. Both sides are C++ of one build: the stamp says so, and a module of
// another build is refused instead of being called with another idea of these types.
#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "compute/backend.h"
#include "compute/mlx_module.h"
#include "mesh/mesh.h"

#define VERBUND_MLX_TEXT_(x) #x
#define VERBUND_MLX_TEXT(x) VERBUND_MLX_TEXT_(x)

namespace verbund::compute {

// Raise with every change of backend.h, mesh.h, tensor_source.h or error.h that moves a virtual function or a field.
#define VERBUND_MLX_ABI 1
constexpr const char* kMlxStamp = "verbund-mlx abi " VERBUND_MLX_TEXT(VERBUND_MLX_ABI) " built with " __VERSION__;

using MlxStampFn = const char*();
using MlxBackendFn = Backend*();                                        // throws Error
using MlxMeshFn = mesh::Mesh*(const MlxMeshOptions&, const Deadline&);  // throws Error

constexpr const char* kMlxStampName = "verbund_mlx_stamp";
constexpr const char* kMlxBackendName = "verbund_mlx_make_backend";
constexpr const char* kMlxMeshName = "verbund_mlx_make_mesh";

}  // namespace verbund::compute
