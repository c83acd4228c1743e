/* Creates communicators from the environment, twice with the first still there, and once more when
 * both are gone, and checks them. Exits 3 with the library's text when creation fails. */
#include <entrain/entrain.h>
#include <stdio.h>

static int use(entrain_comm_t* comm) {
  int32_t rank = -1, size = -1;
  int64_t sum;
  entrain_comm_rank(comm, &rank);
  entrain_comm_size(comm, &size);
  sum = rank + 1;
  if (entrain_all_reduce(comm, &sum, &sum, 1, ENTRAIN_I64, ENTRAIN_SUM, NULL, NULL) != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    return 0;
  }
  printf("rank %d of %d: sum %ld\n", (int)rank, (int)size, (long)sum);
  return sum == (int64_t)size * (size + 1) / 2;
}

static entrain_comm_t* create(void) {
  entrain_comm_t* comm = NULL;
  if (entrain_comm_create_from_env(NULL, &comm) != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
  }
  return comm;
}

int main(void) {
  entrain_comm_t* first = create();
  entrain_comm_t* second = first == NULL ? NULL : create();
  entrain_comm_t* third = NULL;
  int ok;
  if (second == NULL) {
    entrain_comm_destroy(first);
    return 3;
  }
  ok = use(first) && use(second);
  entrain_comm_destroy(first);
  ok = use(second) && ok;
  entrain_comm_destroy(second);
  third = create();
  if (third == NULL) {
    return 3;
  }
  ok = use(third) && ok;
  entrain_comm_destroy(third);
  return ok ? 0 : 1;
}
