/* A program that every launcher starts in the same way: elastic restart|stay FOLDER. Its ranks make a communicator
 * from the environment and sum, until FOLDER/stop exists. A rank whose number is in FOLDER/kill kills itself.
 * When a rank is lost, the others either exit with 1, so that the launcher starts them again (restart), or go on
 * without it, in a communicator that they make in ENTRAIN_STORE (stay). FOLDER/log gets a line for each of these
 * events. */
#define _POSIX_C_SOURCE 200809L
#include <entrain/entrain.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char* folder;
static int32_t rank, size;

static const char* path(const char* name) {
  static char text[4096];
  snprintf(text, sizeof(text), "%s/%s", folder, name);
  return text;
}

static void note(const char* event, int number) {
  char line[128];
  const int bytes =
      snprintf(line, sizeof(line), "%s %d: rank %d of %d\n", event, number, (int)rank, (int)size);
  const int file = open(path("log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0 || write(file, line, (size_t)bytes) != bytes) {
    abort();
  }
  close(file);
}

static void die_if_told(void) {
  FILE* const file = fopen(path("kill"), "r");
  int victim = -1;
  if (file != NULL) {
    if (fscanf(file, "%d", &victim) == 1 && victim == rank && unlink(path("kill")) == 0) {
      raise(SIGKILL);
    }
    fclose(file);
  }
}

static int failed(const char* what, entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s: rank %d of %d: %s\n", what, (int)rank, (int)size, entrain_last_error());
  }
  return status != ENTRAIN_OK;
}

static void measure(entrain_comm_t* comm) {
  entrain_comm_rank(comm, &rank);
  entrain_comm_size(comm, &size);
  note("began", 0);
}

/* Returns NULL on an error. */
static entrain_comm_t* without(int lost) {
  entrain_comm_config_t config;
  entrain_store_t* store = NULL;
  entrain_comm_t* comm = NULL;
  entrain_comm_config_init(&config);
  if (failed("store", entrain_store_open(getenv("ENTRAIN_STORE"), 0, &store))) {
    return NULL;
  }
  config.store = store;
  config.name = "survivors";
  config.rank = rank > lost ? rank - 1 : rank;
  config.world_size = size - 1;
  failed("survivors", entrain_comm_create(&config, &comm));
  entrain_store_destroy(store);
  return comm;
}

int main(int argc, char** argv) {
  entrain_comm_t* comm = NULL;
  int64_t sums[2] = {0, 0};
  if (argc != 3) {
    return 2;
  }
  folder = argv[2];
  if (failed("create", entrain_comm_create_from_env(NULL, &comm))) {
    return 3;
  }
  measure(comm);
  while (sums[1] == 0) {
    const struct timespec pause = {0, 5000000};
    entrain_status_t status;
    sums[0] = rank + 1;
    sums[1] = access(path("stop"), F_OK) == 0;
    die_if_told();
    status = entrain_all_reduce(comm, sums, sums, 2, ENTRAIN_I64, ENTRAIN_SUM, NULL, NULL);
    if (status != ENTRAIN_OK) {
      entrain_error_t error;
      entrain_error_init(&error);
      entrain_comm_error(comm, &error);
      note("lost", error.guilty_rank);
      entrain_comm_destroy(comm);
      if (strcmp(argv[1], "stay") != 0) {
        return failed("sum", status);
      }
      comm = without(error.guilty_rank);
      if (comm == NULL) {
        return 3;
      }
      measure(comm);
      sums[1] = 0;
    } else if (sums[0] != (int64_t)size * (size + 1) / 2) {
      fprintf(stderr, "rank %d of %d: the sum is %ld\n", (int)rank, (int)size, (long)sums[0]);
      return 4;
    }
    nanosleep(&pause, NULL); /* work, so that the sums do not fill two cores */
  }
  note("done", 0);
  entrain_comm_destroy(comm);
  return 0;
}
