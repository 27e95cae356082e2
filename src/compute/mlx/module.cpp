// The C functions of abi.h.
#include "compute/mlx/abi.h"
#include "compute/mlx/mlx_backend.h"
#include "compute/mlx/mlx_mesh.h"

#define VERBUND_EXPORT extern "C" __attribute__((visibility("default")))

VERBUND_EXPORT const char* verbund_mlx_stamp() { return verbund::compute::kMlxStamp; }

VERBUND_EXPORT verbund::compute::Backend* verbund_mlx_make_backend() { return verbund::compute::mlx_impl::make_backend().release(); }

VERBUND_EXPORT verbund::compute::Backend* verbund_mlx_make_backend_in_gpu_form() {
  return verbund::compute::mlx_impl::make_backend_in_gpu_form().release();
}

VERBUND_EXPORT verbund::compute::MlxCounts verbund_mlx_counts(verbund::compute::Backend& backend) {
  return verbund::compute::mlx_impl::take_counts(backend);
}

VERBUND_EXPORT verbund::mesh::Mesh* verbund_mlx_make_mesh(const verbund::compute::MlxMeshOptions& options,
                                                          const verbund::Deadline& deadline) {
  return verbund::compute::mlx_impl::make_mesh(options, deadline).release();
}
