// MPI_Allreduce:  mpirun -n 2 mpi_allreduce 4608 65536
// Built by bench/peers/setup where an MPI compiler is installed.
#include <mpi.h>

#include "allreduce.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  time_all_reduce(argv + 1, argv + argc, rank, ranks, [](const int64_t* in, int64_t* out, size_t count) {
    MPI_Allreduce(in, out, static_cast<int>(count), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  });
  MPI_Finalize();
}
