/* One rank of a job that tests/faults.py breaks. Calls collectives, on the world or on the rows
 * and columns of a mesh, until a call fails. Then prints the rank that the library blames. With
 * --fault this rank is the one that breaks.
 * Reads RANK, WORLD_SIZE and ENTRAIN_STORE. */
#define _POSIX_C_SOURCE 200809L

#include <entrain/entrain.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 16, LARGE = 1 << 16, SMALL = 2 };

static struct {
  const char* log;
  const char* fault;            /* "": none */
  long step_ms, shard_size, at; /* --at: rounds before the fault */
  int destroy;                  /* destroys its objects first */
} flags = {"", "", 0, 1, 0, 0};

static entrain_runtime_t* runtime;
static entrain_comm_t *world, *parts[2];
static entrain_peer_id_t ids[MOST_RANKS];
static int32_t rank, size;
static float data[LARGE];

/* Exits if a call fails before the ranks are at work. */
static void need(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "culprit_rank: %s\n", entrain_last_error());
    exit(3);
  }
}

static void read_flags(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const char* const name = argv[i];
    if (strcmp(name, "--log") == 0) {
      flags.log = argv[i + 1];
    } else if (strcmp(name, "--fault") == 0) {
      flags.fault = argv[i + 1];
    } else {
      const long value = strtol(argv[i + 1], NULL, 10);
      if (strcmp(name, "--step-ms") == 0) {
        flags.step_ms = value;
      } else if (strcmp(name, "--shard-size") == 0) {
        flags.shard_size = value;
      } else if (strcmp(name, "--at") == 0) {
        flags.at = value;
      } else if (strcmp(name, "--destroy") == 0) {
        flags.destroy = value != 0;
      } else {
        fprintf(stderr, "culprit_rank: unknown flag %s\n", name);
        exit(2);
      }
    }
  }
}

static void meet(void) {
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  need(entrain_runtime_create(&config, &runtime));
  entrain_comm_config_t comm;
  entrain_comm_config_init(&comm);
  comm.runtime = runtime;
  need(entrain_comm_create_from_env(&comm, &world));
  need(entrain_comm_rank(world, &rank));
  need(entrain_comm_size(world, &size));
  entrain_peer_id_t own;
  need(entrain_runtime_peer_id(runtime, &own));
  need(entrain_all_gather(world, &own, ids, sizeof(own), ENTRAIN_U8, NULL, NULL));
  parts[0] = world;
  if (flags.shard_size > 1) {
    const int32_t side = (int32_t)flags.shard_size;
    need(entrain_comm_split(world, rank / side, rank, &parts[0], NULL));
    need(entrain_comm_split(world, rank % side, rank, &parts[1], NULL));
  }
}

static void destroy(void) {
  for (int i = 1; i >= 0; --i) {
    if (parts[i] != world) {
      entrain_comm_destroy(parts[i]);
    }
  }
  entrain_comm_destroy(world);
  entrain_runtime_destroy(runtime);
}

static void end(int code) {
  if (flags.destroy) {
    destroy();
  }
  _exit(code);
}

/* Breaks this rank in the middle of the others' round. */
static void break_down(void) {
  entrain_comm_t* const comm = parts[0];
  if (strcmp(flags.fault, "exit") == 0) {
    exit(0);
  } else if (strcmp(flags.fault, "argument") == 0) {
    const entrain_status_t status =
        entrain_all_reduce(comm, data, data, SMALL, 99, ENTRAIN_SUM, NULL, NULL);
    fprintf(stderr, "culprit_rank: rank %d: %s\n", (int)rank, entrain_last_error());
    end(status == ENTRAIN_INVALID_ARGUMENT ? 1 : 4);
  } else if (strcmp(flags.fault, "count") == 0) {
    entrain_all_reduce(comm, data, data, SMALL + 1, ENTRAIN_F32, ENTRAIN_SUM, NULL, NULL);
  } else if (strcmp(flags.fault, "collective") == 0) {
    entrain_barrier(comm, NULL, NULL);
  } else if (strcmp(flags.fault, "late") == 0) {
    sleep(600);
  } else if (strcmp(flags.fault, "abort") == 0) {
    entrain_comm_abort(comm, "the loss is not finite");
    end(1);
  }
}

static entrain_status_t one_round(void) {
  for (int i = 0; i < 2 && parts[i] != NULL; ++i) {
    for (int large = 0; large < 2; ++large) {
      const entrain_status_t status = entrain_all_reduce(
          parts[i], data, data, large ? LARGE : SMALL, ENTRAIN_F32, ENTRAIN_SUM, NULL, NULL);
      if (status != ENTRAIN_OK) {
        return status;
      }
    }
  }
  return ENTRAIN_OK;
}

static void say_who(void) {
  entrain_error_t error;
  entrain_error_init(&error);
  entrain_last_error_record(&error);
  int guilty = -1;
  for (int r = 0; r < size; ++r) {
    guilty = memcmp(&ids[r], &error.peer_id, sizeof(error.peer_id)) == 0 ? r : guilty;
  }
  char who[32] = "nobody";
  if (guilty >= 0) {
    snprintf(who, sizeof(who), "rank %d of world", guilty);
  }
  fprintf(stderr, "culprit_rank: rank %d: %s: %s [guilty: %s]\n", (int)rank,
          entrain_status_name(error.code), error.text, who);
}

int main(int argc, char** argv) {
  read_flags(argc, argv);
  meet();
  for (long round = 0;; ++round) {
    if (*flags.fault != '\0' && round == flags.at) {
      break_down();
    }
    if (one_round() != ENTRAIN_OK) {
      break;
    }
    if (round == 0) {
      FILE* const log = fopen(flags.log, "a");
      if (log != NULL) {
        fprintf(log, "{\"replica\":%d}\n", (int)rank);
        fclose(log);
      }
    }
    if (flags.step_ms > 0) {
      const struct timespec step = {flags.step_ms / 1000, flags.step_ms % 1000 * 1000000};
      nanosleep(&step, NULL);
    }
  }
  say_who();
  end(1);
  return 0;
}
