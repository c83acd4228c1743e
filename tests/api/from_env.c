/* Creates communicators from the environment and checks them: two that exist together, and one more
 * when both are gone. Exits 3 with the status and the library's text when creation
 * fails. An argument is the key file of the runtime's config. */
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

static int failed(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s: %s\n", entrain_status_name(status), entrain_last_error());
  }
  return status != ENTRAIN_OK;
}

int main(int argc, char** argv) {
  entrain_runtime_config_t runtime_config;
  entrain_comm_config_t config;
  entrain_comm_t *first = NULL, *second = NULL, *third = NULL;
  int ok;
  entrain_comm_config_init(&config);
  if (argc > 1) {
    entrain_runtime_config_init(&runtime_config);
    runtime_config.key_file = argv[1];
    if (failed(entrain_runtime_create(&runtime_config, &config.runtime))) {
      return 3;
    }
  }
  if (failed(entrain_comm_create_from_env(&config, &first)) ||
      failed(entrain_comm_create_from_env(&config, &second))) {
    entrain_comm_destroy(first);
    entrain_runtime_destroy(config.runtime);
    return 3;
  }
  ok = use(first) && use(second);
  entrain_comm_destroy(first);
  ok = use(second) && ok;
  entrain_comm_destroy(second);
  if (failed(entrain_comm_create_from_env(&config, &third))) {
    entrain_runtime_destroy(config.runtime);
    return 3;
  }
  ok = use(third) && ok;
  entrain_comm_destroy(third);
  entrain_runtime_destroy(config.runtime);
  return ok ? 0 : 1;
}
