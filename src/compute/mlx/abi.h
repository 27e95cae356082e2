// What the program looks up in libverbund_mlx. Both sides are C++ of one build: the stamp says so, and a module of
// another build is refused instead of being called with another idea of these types.
#pragma once

#include <cstdint>
#include <map>
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
#define VERBUND_MLX_ABI 2
constexpr const char* kMlxStamp = "verbund-mlx abi " VERBUND_MLX_TEXT(VERBUND_MLX_ABI) " built with " __VERSION__;

using MlxStampFn = const char*();
using MlxBackendFn = Backend*();                                        // throws Error
using MlxMeshFn = mesh::Mesh*(const MlxMeshOptions&, const Deadline&);  // throws Error

// What a backend has done since it was last asked; asking switches the counting on. For tests.
struct MlxCounts {
  std::map<std::string, size_t> nodes;        // of all graphs evaluated, by primitive, as they are on this device
  std::map<std::string, size_t> kernels;      // the same with each fused operation as one, as on a GPU
  size_t evaluations = 0;                     // of graphs: each ends in a wait of the host
  size_t host_sums = 0;                       // sums over ranks that went through the host
  uint64_t active_bytes = 0, peak_bytes = 0;  // MLX's memory now, and at most
};
using MlxCountsFn = MlxCounts(Backend&);
using MlxGpuFormFn = Backend*();  // the operations as written for a GPU, on whatever device there is; throws Error

constexpr const char* kMlxStampName = "verbund_mlx_stamp";
constexpr const char* kMlxBackendName = "verbund_mlx_make_backend";
constexpr const char* kMlxMeshName = "verbund_mlx_make_mesh";
constexpr const char* kMlxCountsName = "verbund_mlx_counts";
constexpr const char* kMlxGpuFormName = "verbund_mlx_make_backend_in_gpu_form";

}  // namespace verbund::compute
