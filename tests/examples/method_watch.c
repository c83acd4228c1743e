/* Loaded in front of libentrain (LD_PRELOAD): writes the method of each EDiT and ACCO object that a program makes to the
 * file TEST_METHODS, a line each. The method is named by the options that reach the library, whatever the program calls
 * it. tests/python/watch does the same for Python. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <entrain/entrain.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* These tune a method, or say how it runs. Of the others, the ones in sizes matter as being zero or not. */
static const char* const tuned[] = {"local_sgd_sync_interval",
                                    "local_sgd_sync_time",
                                    "min_total_global_steps",
                                    "local_sgd_warmup_steps",
                                    "gradient_accumulation_steps",
                                    "outer_lr",
                                    "outer_momentum",
                                    "ewma_warmup_steps",
                                    "prefetch",
                                    "on_loss",
                                    "admit",
                                    "most_replicas",
                                    "threads",
                                    "silence",
                                    "newcomer_warmup",
                                    "timeout_ns",
                                    "seed"};
static const char* const sizes[] = {"clip_pseudo_grad", "fragments", "overlap_steps"};

static int is_in(const char* name, const char* const* list, size_t count) {
  size_t i;
  for (i = 0; i < count; i++) {
    if (strcmp(name, list[i]) == 0) {
      return 1;
    }
  }
  return 0;
}

static double value_of(const entrain_option_t* option, const void* config) {
  const char* at = (const char*)config + option->offset;
  int32_t i32;
  int64_t i64;
  uint64_t u64;
  double f64;
  switch (option->type) {
    case ENTRAIN_OPTION_I64:
      return (double)(memcpy(&i64, at, sizeof(i64)), i64);
    case ENTRAIN_OPTION_U64:
      return (double)(memcpy(&u64, at, sizeof(u64)), u64);
    case ENTRAIN_OPTION_F64:
      return (memcpy(&f64, at, sizeof(f64)), f64);
    default:
      return (double)(memcpy(&i32, at, sizeof(i32)), i32);
  }
}

/* Returns whether the options of the two configs make the same method. */
static int same(const entrain_edit_config_t* a, const entrain_edit_config_t* b) {
  int32_t i;
  for (i = 0; i < entrain_option_count(ENTRAIN_METHOD_EDIT); i++) {
    entrain_option_t option;
    double x, y;
    entrain_option_init(&option);
    entrain_option(ENTRAIN_METHOD_EDIT, i, &option);
    x = value_of(&option, a);
    y = value_of(&option, b);
    if (is_in(option.name, tuned, sizeof(tuned) / sizeof(*tuned))) {
      continue;
    }
    if (is_in(option.name, sizes, sizeof(sizes) / sizeof(*sizes))
            ? (x > option.least) != (y > option.least)
            : x != y) {
      return 0;
    }
  }
  return 1;
}

static void note(const char* name) {
  const char* path = getenv("TEST_METHODS");
  FILE* file = path == NULL ? NULL : fopen(path, "a");
  if (file != NULL) {
    fprintf(file, "%s\n", name);
    fclose(file);
  }
}

static int32_t layers_of(const entrain_shard_t* shard) {
  int32_t layers = 0;
  entrain_shard_layer_t layer;
  entrain_shard_layer_init(&layer);
  while (entrain_shard_layer_info(shard, layers, &layer) == ENTRAIN_OK) {
    layers++;
  }
  return layers;
}

entrain_status_t entrain_edit_create(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                     entrain_edit_t** edit) {
  entrain_status_t (*create)(entrain_mesh_t*, const entrain_edit_config_t*, entrain_edit_t**);
  char names[256] = "";
  int32_t i;
  *(void**)&create = dlsym(RTLD_NEXT, "entrain_edit_create");
  for (i = 0; i < entrain_edit_preset_count(); i++) {
    entrain_edit_config_t preset;
    entrain_edit_config_init(&preset);
    entrain_edit_config_preset(&preset, entrain_edit_preset_name(i), layers_of(config->shard), NULL,
                               0);
    /* "published" is a set of defaults, not a method. */
    if (strcmp(entrain_edit_preset_name(i), "published") != 0 && same(config, &preset)) {
      strcat(names, names[0] == '\0' ? "" : "/");
      strcat(names, entrain_edit_preset_name(i));
    }
  }
  note(names[0] == '\0' ? "none" : names);
  return create(mesh, config, edit);
}

entrain_status_t entrain_acco_create(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                     entrain_acco_t** acco) {
  static const char* const names[] = {"acco", "dpu", "wp", "zero1"};
  entrain_status_t (*create)(entrain_comm_t*, const entrain_acco_config_t*, entrain_acco_t**);
  *(void**)&create = dlsym(RTLD_NEXT, "entrain_acco_create");
  note(names[config->method]);
  return create(comm, config, acco);
}
