// all_sum of MLX's ring over TCP on loopback:  MLX_RANK=0 MLX_HOSTFILE=hosts.json mlx_allreduce 4608 65536
// One process a rank. Timed as a program on MLX uses it: build the expression, evaluate it, wait.
#include <mlx/mlx.h>

#include <cstring>

#include "allreduce.h"

int main(int argc, char** argv) {
  namespace mx = mlx::core;
  mx::set_default_device(mx::Device::cpu);
  const mx::distributed::Group group = mx::distributed::init(/*strict=*/true, "ring");
  time_all_reduce(argv + 1, argv + argc, group.rank(), group.size(), [&](const int64_t* in, int64_t* out, size_t count) {
    mx::array sum = mx::distributed::all_sum(mx::array(in, {static_cast<int>(count)}, mx::int64), group);
    sum.eval();
    std::memcpy(out, sum.data<int64_t>(), count * sizeof(int64_t));
  });
}
