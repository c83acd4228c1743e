/* 07: EDiT with a replica that dies and is replaced.
 *
 * Why: in a long run processes die. With on_loss and admit the other replicas go on, and a new
 * process takes the place of the lost one. The program has one more branch for this: a process that
 * was started again does not meet the others, it joins their run, and goes on at their step.
 *
 * Each process is a replica. They look for the point w that is nearest to the points that they draw.
 * With the word kill, the last replica kills itself in the middle of the run:
 *
 *   entrain-run --elastic -n 3 -- example_07_elastic_edit kill */
#define _POSIX_C_SOURCE 199309L
#include <entrain/entrain.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 64, STEPS = 2000, KILLED_AT = 200, INTERVAL = 20, WARMUP = 40 };
#define RATE 0.05f
#define JOIN_NS 60000000000 /* the longest time to wait for the other replicas */

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    exit(1);
  }
}

/* Returns a number in [-1, 1). */
static float draw(uint32_t* random) {
  *random = *random * 1664525u + 1013904223u;
  return (float)(*random >> 8) / 8388608.0f - 1.0f;
}

/* Returns how often this process's rank was started again. entrain-run --elastic sets the variable. */
static int restarts(void) {
  const char* count = getenv("ENTRAIN_RESTARTS");
  return count == NULL ? 0 : atoi(count);
}

/* Makes a communicator of this process alone, in the store of the job. Only this process uses its
 * name. */
static void stand_alone(entrain_comm_t** comm) {
  const char* rank = getenv("RANK");
  entrain_comm_config_t config;
  char name[64];
  snprintf(name, sizeof(name), "replacement %d of rank %s", restarts(), rank != NULL ? rank : "?");
  entrain_comm_config_init(&config);
  config.name = name;
  config.rank = 0;
  config.world_size = 1;
  check(entrain_store_open("env:", 0, &config.store));
  check(entrain_comm_create(&config, comm));
  entrain_store_destroy(config.store);
}

/* The replicas exchange. On all of them w is the same when this function returns. */
static void exchange(entrain_edit_t* edit) {
  int32_t syncing;
  check(entrain_edit_begin_forward(edit, 1, 1, &syncing, NULL));
  check(entrain_edit_wait_layer(edit, 0));
}

/* Makes steps until the run is over. */
static void train(entrain_edit_t* edit, entrain_comm_t* replicas, float* w, int dies) {
  const struct timespec pause = {0, 1000000}; /* stands for the time of a larger model's step */
  entrain_edit_info_t info;
  int32_t scope;
  int64_t step;
  uint32_t random;
  float grads[SIZE];
  int i;
  entrain_edit_info_init(&info);
  check(entrain_edit_info(edit, &info));
  /* The place in the data follows from the replica and the step. */
  random = (uint32_t)(info.replica + 1000 * info.steps);
  for (step = info.steps; step < STEPS; step++) {
    if (dies && step == KILLED_AT) {
      raise(SIGKILL);
    }
    exchange(edit);
    for (i = 0; i < SIZE; i++) {
      grads[i] = w[i] - ((float)i / SIZE + draw(&random));
    }
    check(entrain_edit_gradient_scope(edit, &scope));
    if (scope == ENTRAIN_GRADIENTS_GLOBAL) { /* warm-up: a process that joins comes later */
      check(entrain_all_reduce(replicas, grads, grads, SIZE, ENTRAIN_F32, ENTRAIN_AVG, NULL, NULL));
    }
    for (i = 0; i < SIZE; i++) {
      w[i] -= RATE * grads[i];
    }
    check(entrain_edit_end_step(edit));
    nanosleep(&pause, NULL);
  }
}

/* Agrees on w at the end, and checks it. Returns the exit code. The communicator of the beginning has
 * lost a rank, so entrain_edit_reduce takes the place of an all-reduce. */
static int finish(entrain_edit_t* edit, const float* w) {
  entrain_edit_info_t info;
  float bounds[2] = {0, 0}, error = 0;
  int i;
  check(entrain_edit_request_sync(edit));
  exchange(edit);
  for (i = 0; i < SIZE; i++) {
    float difference = w[i] - (float)i / SIZE;
    error += difference * difference / SIZE;
    bounds[0] += w[i];
  }
  bounds[1] = -bounds[0];
  check(
      entrain_edit_reduce(edit, bounds, bounds, 2, ENTRAIN_F32, ENTRAIN_MAX, 0, NULL, NULL, NULL));
  entrain_edit_info_init(&info);
  check(entrain_edit_info(edit, &info));
  if (info.replica == 0) {
    printf("%d replicas at the end, %d lost, %d joined, mean squared error %.4f\n",
           (int)info.replicas, (int)info.losses, (int)info.joins, (double)error);
  }
  if (bounds[0] != -bounds[1]) {
    fprintf(stderr, "the replicas have different w\n");
    return 1;
  }
  if (!(error < 0.05f)) {
    fprintf(stderr, "the error did not fall as it should: %g\n", (double)error);
    return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  static float w[SIZE];
  static const size_t counts[1] = {SIZE};
  void* params[1] = {w};
  entrain_comm_t *comm, *replicas;
  entrain_mesh_config_t mesh_config;
  entrain_shard_config_t shard_config;
  entrain_edit_config_t config;
  entrain_mesh_t* mesh;
  entrain_shard_t* shard;
  entrain_edit_t* edit;
  int32_t rank, size;
  int code;

  if (restarts() > 0) {
    stand_alone(&comm);
  } else {
    check(entrain_comm_create_from_env(NULL, &comm));
  }
  check(entrain_comm_rank(comm, &rank));
  check(entrain_comm_size(comm, &size));
  entrain_mesh_config_init(&mesh_config);
  check(entrain_mesh_create(comm, &mesh_config, &mesh));
  check(entrain_mesh_comm(mesh, ENTRAIN_AXIS_SYNC, &replicas));
  entrain_shard_config_init(&shard_config);
  shard_config.layers = 1;
  shard_config.layer_counts = counts;
  check(entrain_shard_create(mesh, &shard_config, &shard));
  check(entrain_shard_bind_layers(shard, params, NULL, ENTRAIN_F32));

  entrain_edit_config_init(&config);
  check(entrain_edit_config_preset(&config, "edit", 1, NULL, 0));
  config.shard = shard;
  config.local_sgd_sync_interval = INTERVAL;
  config.local_sgd_warmup_steps = WARMUP;
  if (size > 1 || restarts() > 0) {
    config.on_loss = ENTRAIN_ON_LOSS_FINISH;
    config.admit = ENTRAIN_ADMIT_EXCHANGE;
  }
  if (restarts() > 0) {
    check(entrain_edit_join(mesh, &config, JOIN_NS, &edit)); /* also gives w */
  } else {
    check(entrain_edit_create(mesh, &config, &edit));
  }
  train(edit, replicas, w,
        argc > 1 && !strcmp(argv[1], "kill") && restarts() == 0 && rank == size - 1);
  code = finish(edit, w);
  entrain_edit_destroy(edit);
  entrain_shard_destroy(shard);
  entrain_mesh_destroy(mesh);
  entrain_comm_destroy(comm);
  return code;
}
