/* A C99 program that uses the library: proves that the headers are C, and that linking needs
 * only the library. */
#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <stdio.h>
#include <string.h>

static int check(entrain_status_t status, const char* what) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, entrain_status_name(status), entrain_last_error());
  }
  return status == ENTRAIN_OK;
}

int main(void) {
  entrain_store_t* store = NULL;
  entrain_comm_t* comm = NULL;
  entrain_comm_config_t config;
  entrain_work_t* work = NULL;
  float in[3] = {1, 2, 3}, out[3] = {0, 0, 0};
  int ok;

  entrain_comm_config_init(&config);
  ok = check(entrain_store_open("mem:c99", 0, &store), "store_open");
  config.store = store;
  ok = ok && check(entrain_comm_create(&config, &comm), "comm_create");
  ok = ok && check(entrain_all_reduce(comm, in, out, 3, ENTRAIN_F32, ENTRAIN_SUM, NULL, &work),
                   "all_reduce");
  ok = ok && check(entrain_work_wait(work, -1), "work_wait");
  ok = ok && memcmp(in, out, sizeof(in)) == 0;
  entrain_work_free(work);
  entrain_comm_destroy(comm);
  entrain_store_destroy(store);
  return ok ? 0 : 1;
}
