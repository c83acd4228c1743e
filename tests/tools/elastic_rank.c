/* A rank of an elastic job, for entrain_run_elastic_test: elastic_rank STEPS SIZE [WHAT RANK STEP]...
 * The ranks count steps together while their number is SIZE, and finish after STEPS steps. The process with the
 * launcher's number RANK does WHAT (kill, exit) before step STEP, unless it has been restarted. If STEP is -1, it does
 * WHAT before it has a communicator, also after each restart. A rank that will fail first leaves the others by a split.
 * So they go on in a part, and the restarted process joins this part. */
#define _POSIX_C_SOURCE 200809L /* SIGKILL */
#include <entrain/entrain.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* variable) {
  const char* text = getenv(variable);
  return text == NULL || *text == 0 ? 0 : atoi(text);
}

typedef struct {
  const char* what;
  int rank;
  long step;
} failure_t;

static failure_t plan[8];
static int failures;

static void fail(const failure_t* failure) {
  printf("rank %d fails before step %ld\n", failure->rank, failure->step);
  fflush(stdout);
  if (strcmp(failure->what, "kill") == 0) {
    raise(SIGKILL);
  }
  exit(3);
}

/* Returns this rank's failure before `step`, or NULL if there is none. Writes to *any whether any rank has one. */
static const failure_t* failure_at(long step, int* any) {
  const failure_t* mine = NULL;
  int i;
  *any = 0;
  for (i = 0; i < failures; i++) {
    if (plan[i].step == step) {
      *any = 1;
      mine = plan[i].rank == number("RANK") ? &plan[i] : mine;
    }
  }
  return mine;
}

static int failed(void) {
  return fprintf(stderr, "%s\n", entrain_last_error()), 4;
}

int main(int argc, char** argv) {
  const int32_t wanted = argc > 2 ? atoi(argv[2]) : 0;
  const long steps = argc > 1 ? atol(argv[1]) : 0;
  entrain_comm_config_t config;
  entrain_comm_t* comm = NULL;
  int64_t step = 0, planned = -1; /* the last step at which failures were looked for */
  int32_t size = 0, rank = 0;
  char name[64] = "world";
  int i, any;
  const failure_t* mine;
  for (i = 3; i + 2 < argc && failures < 8; i += 3) {
    plan[failures].what = argv[i];
    plan[failures].rank = atoi(argv[i + 1]);
    plan[failures++].step = atol(argv[i + 2]);
  }
  mine = failure_at(-1, &any);
  if (mine != NULL) {
    fail(mine);
  }
  entrain_comm_config_init(&config);
  config.name = name;
  config.timeout_ns = 60000000000;
  if (number("ENTRAIN_RESTARTS") > 0) {
    for (i = 0; i < failures; i++) {
      planned = plan[i].rank == number("RANK") ? plan[i].step : planned;
    }
    for (step = 0; step <= planned; step++) {
      failure_at((long)step, &any);
      strcat(name, any ? "/0" : "");
    }
    step = 0;
  }
  if (entrain_comm_create_from_env(&config, &comm) != ENTRAIN_OK) {
    return failed();
  }
  while (1) {
    entrain_comm_t* next = NULL;
    /* Newcomers learn the step from the others. */
    if (entrain_all_reduce(comm, &step, &step, 1, ENTRAIN_I64, ENTRAIN_MAX, NULL, NULL) !=
        ENTRAIN_OK) {
      return failed();
    }
    mine = failure_at((long)step, &any);
    if (step > planned) {
      planned = step;
      if (any) {
        if (entrain_comm_split(comm, mine == NULL ? 0 : -1, 0, &next, NULL) != ENTRAIN_OK) {
          return failed();
        }
        if (next == NULL) {
          fail(mine);
        }
        entrain_comm_destroy(comm);
        comm = next;
      }
    }
    entrain_comm_size(comm, &size);
    entrain_comm_rank(comm, &rank);
    if (size == wanted && ++step >= steps) {
      break;
    }
    if (size != wanted) {
      if (entrain_comm_grow(comm, NULL, &next) != ENTRAIN_OK) {
        return failed();
      }
      if (next != NULL) {
        entrain_comm_destroy(comm);
        comm = next;
      }
    }
  }
  printf("finished as rank %d of %d after %d restarts\n", (int)rank, (int)size,
         number("ENTRAIN_RESTARTS"));
  entrain_comm_destroy(comm);
  return 0;
}
