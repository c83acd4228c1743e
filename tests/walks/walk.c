/* Makes one call of the library, and notes every function of the library that runs meanwhile, on every thread of this process:
 *
 *   entrain-run -n 2 walk all_reduce FILE      the ranks but the first note nothing
 *
 * Only a build of the preset `trace` notes anything: there the compiler calls the function below at the start of each function.
 * walks.py makes the tables of docs/walks.md from FILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 1 << 20 };

static struct {
  void* function;
  int thread;
} entered[MOST];
static atomic_int count, threads;
static atomic_bool noting;
static _Thread_local int thread_number;

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void* caller) {
  int at;
  (void)caller;
  if (!atomic_load_explicit(&noting, memory_order_relaxed)) {
    return;
  }
  if (thread_number == 0) {
    thread_number = atomic_fetch_add(&threads, 1) + 1;
  }
  at = atomic_fetch_add(&count, 1);
  if (at < MOST) {
    entered[at].function = function;
    entered[at].thread = thread_number;
  }
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void* function, void* caller) {
  (void)function;
  (void)caller;
}

static int first; /* this rank is the first */

static void note(int on) {
  atomic_store(&noting, on && first);
}

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "walk: %s\n", entrain_last_error());
    exit(1);
  }
}

/* Writes one line for each entry: thread, file of the code, address in it. */
static void write_entries(const char* path) {
  FILE* file = fopen(path, "w");
  int i, all = atomic_load(&count);
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  for (i = 0; i < all && i < MOST; i++) {
    Dl_info info;
    if (dladdr(entered[i].function, &info) != 0) {
      fprintf(file, "%d %s %#lx\n", entered[i].thread, info.dli_fname,
              (unsigned long)((uintptr_t)entered[i].function - (uintptr_t)info.dli_fbase));
    }
  }
  fclose(file);
}

/* A blocking all-reduce of 1 MiB, whose plan is known from the call before. */
static void all_reduce(entrain_comm_t* comm) {
  enum { COUNT = 1 << 18 };
  static float data[COUNT];
  int i;
  for (i = 0; i < 3; i++) {
    check(entrain_barrier(comm, NULL, NULL));
    note(i == 2);
    check(entrain_all_reduce(comm, data, data, COUNT, ENTRAIN_F32, ENTRAIN_SUM, NULL, NULL));
    note(0);
  }
}

/* The exchange of one layer between two replicas, with weights and the outer step. */
static void edit_layer(entrain_comm_t* comm) {
  enum { COUNT = 4096, EXCHANGES = 4 };
  static const size_t counts[1] = {COUNT};
  static float params[COUNT], grads[COUNT];
  entrain_mesh_config_t mesh_config;
  entrain_shard_config_t shard_config;
  entrain_edit_config_t edit_config;
  entrain_mesh_t* mesh = NULL;
  entrain_shard_t* shard = NULL;
  entrain_edit_t* edit = NULL;
  int32_t syncing;
  int i;
  entrain_mesh_config_init(&mesh_config);
  check(entrain_mesh_create(comm, &mesh_config, &mesh));
  entrain_shard_config_init(&shard_config);
  shard_config.layers = 1;
  shard_config.layer_counts = counts;
  check(entrain_shard_create(mesh, &shard_config, &shard));
  check(entrain_shard_bind(shard, params, grads, ENTRAIN_F32));
  entrain_edit_config_init(&edit_config);
  check(entrain_edit_config_preset(&edit_config, "edit", 1, NULL, 0));
  edit_config.shard = shard;
  edit_config.local_sgd_sync_interval = 1;
  edit_config.local_sgd_warmup_steps = 0;
  check(entrain_edit_create(mesh, &edit_config, &edit));
  for (i = 0; i < EXCHANGES; i++) {
    check(entrain_barrier(comm, NULL, NULL));
    note(i == EXCHANGES - 1);
    check(entrain_edit_begin_forward(edit, 1, 1, &syncing, NULL));
    check(entrain_edit_wait_layer(edit, 0));
    note(0);
    params[i] += 1.0f;
    check(entrain_edit_end_step(edit));
  }
  entrain_edit_destroy(edit);
  entrain_shard_destroy(shard);
  entrain_mesh_destroy(mesh);
}

/* A round of ACCO that commits, from the install that begins it to the one that takes its results. */
static void acco_round(entrain_comm_t* comm) {
  enum { COUNT = 4096, ROUNDS = 6 };
  static float params[COUNT];
  entrain_optim_config_t rule;
  entrain_acco_config_t config;
  entrain_optim_t* optim = NULL;
  entrain_acco_t* acco = NULL;
  void* gradients = NULL;
  int32_t finished = 0;
  int i;
  entrain_optim_config_init(&rule);
  rule.kind = ENTRAIN_OPTIM_ADAMW;
  check(entrain_optim_create(&rule, &optim));
  entrain_acco_config_init(&config);
  config.params = params;
  config.count = COUNT;
  config.optim = optim;
  config.lr = 0.01;
  check(entrain_acco_create(comm, &config, &acco));
  check(entrain_acco_gradients(acco, &gradients));
  for (i = 0; i < ROUNDS; i++) {
    ((float*)gradients)[i] += 1.0f;
    check(entrain_acco_add(acco, 1, 1));
    check(entrain_barrier(comm, NULL, NULL));
    note(i >= ROUNDS - 2); /* the round that the install before the last one begins */
    check(entrain_acco_install(acco, &finished));
    note(i == ROUNDS - 2);
  }
  note(0);
  entrain_acco_destroy(acco);
  entrain_optim_destroy(optim);
}

/* A communicator of the survivors, after the last rank has gone. */
static void shrink(entrain_comm_t* comm, int last) {
  float value = 1.0f;
  entrain_comm_t* survivors = NULL;
  check(entrain_barrier(comm, NULL, NULL));
  if (last) {
    _exit(0);
  }
  while (entrain_all_reduce(comm, &value, &value, 1, ENTRAIN_F32, ENTRAIN_SUM, NULL, NULL) == ENTRAIN_OK) {
  }
  note(1);
  check(entrain_comm_shrink(comm, NULL, &survivors));
  note(0);
  check(entrain_barrier(survivors, NULL, NULL));
  entrain_comm_destroy(survivors);
}

int main(int argc, char** argv) {
  entrain_comm_t* comm = NULL;
  int32_t rank, size;
  if (argc != 3) {
    fprintf(stderr, "usage: walk all_reduce|edit_layer|acco_round|shrink FILE\n");
    return 2;
  }
  check(entrain_comm_create_from_env(NULL, &comm));
  check(entrain_comm_rank(comm, &rank));
  check(entrain_comm_size(comm, &size));
  first = rank == 0;
  if (strcmp(argv[1], "all_reduce") == 0) {
    all_reduce(comm);
  } else if (strcmp(argv[1], "edit_layer") == 0) {
    edit_layer(comm);
  } else if (strcmp(argv[1], "acco_round") == 0) {
    acco_round(comm);
  } else if (strcmp(argv[1], "shrink") == 0) {
    shrink(comm, rank == size - 1);
  } else {
    fprintf(stderr, "walk: %s is no call\n", argv[1]);
    return 2;
  }
  if (first) {
    write_entries(argv[2]);
  }
  entrain_comm_destroy(comm);
  return 0;
}
