/* 03: a program that already uses MPI.
 *
 * Why: mpirun has started the ranks, and MPI knows them. Entrain makes its communicator from MPI's
 * communicator. Afterwards Entrain does not need MPI. The program names no store, and sets no
 * variables.
 *
 *   mpicc 03_mpi_launch.c $(pkg-config --cflags --libs entrain) && mpirun -n 4 ./a.out */
#include <entrain/entrain.h>
#include <entrain/mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    exit(1); /* mpirun then ends the other ranks */
  }
}

int main(int argc, char** argv) {
  entrain_comm_t *comm = NULL, *half_comm = NULL;
  MPI_Comm half;
  int mpi_rank = 0, mpi_size = 0, half_rank = 0, expected = 0, i;
  int32_t rank = 0, size = 0;
  float sum[3];

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
  check(entrain_comm_create_from_mpi(MPI_COMM_WORLD, NULL, &comm));

  /* The even ranks, or the odd ranks, in descending order. Entrain numbers the ranks as the MPI
   * communicator does. */
  MPI_Comm_split(MPI_COMM_WORLD, mpi_rank % 2, -mpi_rank, &half);
  MPI_Comm_rank(half, &half_rank);
  check(entrain_comm_create_from_mpi(half, NULL, &half_comm));
  check(entrain_comm_rank(half_comm, &rank));
  if (rank != half_rank) {
    fprintf(stderr, "rank %d of the half is %d in Entrain\n", half_rank, (int)rank);
    return 1;
  }
  entrain_comm_destroy(half_comm);
  MPI_Comm_free(&half);
  MPI_Finalize();

  check(entrain_comm_rank(comm, &rank));
  check(entrain_comm_size(comm, &size));
  for (i = 0; i < 3; i++) {
    sum[i] = (float)(rank + i);
  }
  check(entrain_all_reduce(comm, sum, sum, 3, ENTRAIN_F32, ENTRAIN_SUM, NULL, NULL));
  for (i = 0; i < 3; i++) {
    expected = size * (size - 1) / 2 + size * i;
    if (rank != mpi_rank || size != mpi_size || sum[i] != (float)expected) {
      fprintf(stderr, "rank %d of %d: element %d is %g, expected %d\n", (int)rank, (int)size, i,
              (double)sum[i], expected);
      return 1;
    }
  }
  printf("rank %d of %d: the sum of element 0 is %g\n", (int)rank, (int)size, (double)sum[0]);
  entrain_comm_destroy(comm);
  return 0;
}
