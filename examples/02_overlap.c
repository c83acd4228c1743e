/* 02: communication during computation.
 *
 * Why: a blocking call leaves the processor idle while bytes travel. A call with a work handle
 * returns at once. The library moves the bytes while the program computes the next piece. Only the
 * wait at the end can take time. In a backward pass, the reduction of a layer's gradient is hidden
 * behind the computation of the layers below it.
 *
 *   entrain-run -n 4 example_02_overlap */
#include <entrain/entrain.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 8, COUNT = 100000 };

static float gradients[LAYERS][COUNT];

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    exit(1);
  }
}

/* Stands for the backward pass of one layer. */
static void compute(int layer, int32_t rank) {
  int i;
  for (i = 0; i < COUNT; i++) {
    gradients[layer][i] = sinf((float)(i + layer)) + (float)rank;
  }
}

int main(void) {
  entrain_work_t* works[LAYERS];
  int32_t rank, size, done, hidden = 0;
  entrain_comm_t* comm;
  int layer;

  check(entrain_comm_create_from_env(NULL, &comm));
  check(entrain_comm_rank(comm, &rank));
  check(entrain_comm_size(comm, &size));

  for (layer = LAYERS - 1; layer >= 0; layer--) {
    compute(layer, rank);
    /* Until the work is done, the layer's array belongs to the library. */
    check(entrain_all_reduce(comm, gradients[layer], gradients[layer], COUNT, ENTRAIN_F32,
                             ENTRAIN_AVG, NULL, &works[layer]));
  }
  for (layer = 0; layer < LAYERS; layer++) {
    check(entrain_work_test(works[layer], &done));
    hidden += done;
  }
  for (layer = 0; layer < LAYERS; layer++) {
    check(entrain_work_wait(works[layer], -1));
    entrain_work_free(works[layer]);
  }

  for (layer = 0; layer < LAYERS; layer++) {
    const float expected = sinf((float)(COUNT - 1 + layer)) + (float)(size - 1) / 2;
    if (fabsf(gradients[layer][COUNT - 1] - expected) > 0.001f) {
      fprintf(stderr, "layer %d: %g, expected %g\n", layer, (double)gradients[layer][COUNT - 1],
              (double)expected);
      return 1;
    }
  }
  printf("rank %d of %d: %d of %d layers were reduced before anybody waited\n", (int)rank,
         (int)size, (int)hidden, LAYERS);
  entrain_comm_destroy(comm);
  return 0;
}
