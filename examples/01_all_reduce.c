/* 01: the mean over all ranks.
 *
 * Why: an all-reduce averages gradients, and data-parallel training needs no other call. The rest
 * of Entrain serves to call it less often, on less data, or while the program computes. The process
 * finds its rank, the number of ranks and the other ranks by itself. It reads the variables that
 * the launcher has set:
 *
 *   example_01_all_reduce                    alone: one rank
 *   entrain-run -n 4 example_01_all_reduce   four ranks on this machine
 *
 * torchrun, mpirun and srun work as well. */
#include <entrain/entrain.h>
#include <stdio.h>
#include <stdlib.h>

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    exit(1);
  }
}

int main(void) {
  enum { COUNT = 1000 };
  float data[COUNT];
  int32_t rank, size;
  entrain_comm_t* comm;
  int i;

  check(entrain_comm_create_from_env(NULL, &comm));
  check(entrain_comm_rank(comm, &rank));
  check(entrain_comm_size(comm, &size));

  for (i = 0; i < COUNT; i++) {
    data[i] = (float)(rank + i);
  }
  /* In place: the result replaces the input. The last argument is NULL, so the call returns when it
   * is done. */
  check(entrain_all_reduce(comm, data, data, COUNT, ENTRAIN_F32, ENTRAIN_AVG, NULL, NULL));

  for (i = 0; i < COUNT; i++) {
    const float mean = (float)(size - 1) / 2 + (float)i;
    if (data[i] < mean - 0.001f || data[i] > mean + 0.001f) {
      fprintf(stderr, "element %d is %g, expected %g\n", i, (double)data[i], (double)mean);
      return 1;
    }
  }
  printf("rank %d of %d: the mean of element 0 is %g\n", (int)rank, (int)size, (double)data[0]);
  entrain_comm_destroy(comm);
  return 0;
}
