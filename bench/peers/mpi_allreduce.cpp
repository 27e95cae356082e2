// Median time of MPI_Allreduce over int64 sums, the operation of our mesh, for one size after another:
//   mpirun -n 2 mpi_allreduce 4608 65536
// Prints "BYTES MICROSECONDS" lines. Built by bench/peers/setup where an MPI compiler is installed.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int a = 1; a < argc; ++a) {
    const auto count = static_cast<size_t>(std::strtoull(argv[a], nullptr, 10)) / sizeof(int64_t);
    std::vector<int64_t> in(count, rank + 1), out(count);
    const size_t repeats = count > 16384 ? 400 : 4000;
    std::vector<double> times;
    for (size_t i = 0; i < repeats + repeats / 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      MPI_Allreduce(in.data(), out.data(), static_cast<int>(count), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      if (i >= repeats / 10) times.push_back(took.count());
    }
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
    if (rank == 0) std::printf("%zu %.3f\n", count * sizeof(int64_t), times[times.size() / 2]);
  }
  MPI_Finalize();
}
