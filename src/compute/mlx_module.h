// The loader of libverbund_mlx, the module that holds everything that needs MLX: the backend (make_mlx_backend() of
// backend.h) and the mesh over MLX's own communication groups (below).
//
// The module is opened with dlopen on first use and stays open; a process that never asks for MLX never maps libmlx.
// Module and program share no symbols: each holds its own copy of the static libraries it needs, and only the C functions
// of mlx/abi.h are looked up. Errors cross the border as verbund::Error. All functions may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unix.h"
#include "compute/backend.h"
#include "mesh/mesh.h"

namespace verbund::compute {

// Where the module is expected: beside the running program.
std::string mlx_module_path();

// As make_mlx_backend(), from a module at a given path. Throws unavailable saying what is missing and how to get it.
std::unique_ptr<Backend> make_mlx_backend_from(const std::string& module_path);

struct MlxMeshOptions {
  // Name of the MLX group: "ring" (TCP; endpoints needed), or what the surrounding launcher has prepared through its
  // environment: "jaccl", "mpi", "nccl".
  std::string group = "ring";
  int rank = 0;
  std::vector<std::string> endpoints;  // ring: "a.b.c.d:port" or "mlx:a.b.c.d:port" of every rank, in rank order
};

// Reserves a port for this rank's end of a ring; endpoint() is "mlx:a.b.c.d:port". Needs no module. Keep it until
// make_mlx_mesh() has returned: nobody else is given the port, and MLX binds it beside the reservation.
class MlxReservation {
 public:
  explicit MlxReservation(const std::string& address);  // IPv4; throws invalid_argument, unavailable
  const std::string& endpoint() const { return endpoint_; }

 private:
  Fd socket_;
  std::string endpoint_;
};

// Buffers of one ring in each of its members: MLX allocates and clears two of 8 MiB for each of its two sockets. A rank is
// in the ring of the whole mesh, in one for each subgroup that is neither all nor itself alone, and in one for each rank
// that it exchanges messages with and that is not its neighbour.
constexpr uint64_t kMlxRingBytes = 32 << 20;

// Every rank calls this at about the same time (MLX retries its connections for half a minute). Sets and clears
// MLX_HOSTFILE and MLX_RANK in the environment meanwhile: no other thread may read the environment then.
// See docs/mlx.md for how waits end.
std::unique_ptr<mesh::Mesh> make_mlx_mesh(const MlxMeshOptions& options, const Deadline& deadline);

}  // namespace verbund::compute
