/* 06: EDiT inside a training framework.
 *
 * Why: a framework has its own arrays, its own passes, its own optimizer, and often its own
 * sharding. It needs no part of this library but the exchange. Three calls do that, from the places
 * at which a framework lets others act: before a pass, before a layer is used, after a step.
 *
 * The first part below is the framework. It knows nothing of Entrain. It trains a network of two
 * layers from micro-batches, and computes the activations again in the backward pass instead of
 * keeping them. The second part is the whole embedding. Each process is a replica:
 *
 *   entrain-run -n 4 example_06_embed_edit */
#include <entrain/entrain.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Somebody's framework ---------------------------------------------------------------------- */

#define RATE 0.1f
enum { INPUTS = 6, UNITS = 12, BATCH = 16, MICROBATCHES = 2, STEPS = 400, LAYERS = 2 };

typedef struct {
  size_t count;
  float *weights, *grads; /* arrays of the framework */
} layer_t;

typedef struct framework_t {
  layer_t layers[LAYERS];
  uint32_t random;
  /* The places at which others may act. */
  void* user;
  void (*before_pass)(void* user, int microbatch);
  void (*before_layer)(void* user, int layer);
  void (*before_update)(void* user, const struct framework_t* framework);
  void (*after_update)(void* user);
} framework_t;

/* Returns a number in [-1, 1). */
static float draw(framework_t* f) {
  f->random = f->random * 1664525u + 1013904223u;
  return (float)(f->random >> 8) / 8388608.0f - 1.0f;
}

static float* array(size_t count) {
  float* a = calloc(count, sizeof(float));
  if (a == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return a;
}

static void framework_create(framework_t* f) {
  static const size_t counts[LAYERS] = {UNITS * (INPUTS + 1), UNITS + 1};
  size_t i;
  int l;
  for (l = 0; l < LAYERS; l++) {
    layer_t* layer = &f->layers[l];
    layer->count = counts[l];
    layer->weights = array(counts[l]);
    layer->grads = array(counts[l]);
    for (i = 0; i < counts[l]; i++) {
      layer->weights[i] = draw(f) / 2;
    }
  }
}

static void framework_destroy(framework_t* f) {
  int l;
  for (l = 0; l < LAYERS; l++) {
    free(f->layers[l].weights);
    free(f->layers[l].grads);
  }
}

static void first_layer(const float* w, const float* x, float* units) {
  int u, i;
  for (u = 0; u < UNITS; u++, w += INPUTS + 1) {
    float sum = w[INPUTS];
    for (i = 0; i < INPUTS; i++) {
      sum += w[i] * x[i];
    }
    units[u] = tanhf(sum);
  }
}

static float second_layer(const float* w, const float* units) {
  float y = w[UNITS];
  int u;
  for (u = 0; u < UNITS; u++) {
    y += w[u] * units[u];
  }
  return y;
}

/* Adds the gradients of one sample, `error` = dLoss / dy. */
static void backward(framework_t* f, const float* x, float error) {
  const float* w = f->layers[1].weights;
  float *first = f->layers[0].grads, *second = f->layers[1].grads;
  float units[UNITS];
  int u, i;
  first_layer(f->layers[0].weights, x, units); /* recomputation */
  second[UNITS] += error;
  for (u = 0; u < UNITS; u++, first += INPUTS + 1) {
    float slope = error * w[u] * (1 - units[u] * units[u]);
    second[u] += error * units[u];
    first[INPUTS] += slope;
    for (i = 0; i < INPUTS; i++) {
      first[i] += slope * x[i];
    }
  }
}

/* Runs one micro-batch, `train`: also backward. Returns its mean squared error. */
static double run(framework_t* f, int microbatch, int train) {
  static const float count = BATCH * MICROBATCHES;
  float x[BATCH][INPUTS], units[BATCH][UNITS], error[BATCH];
  double loss = 0;
  int n, i;
  f->before_pass(f->user, microbatch);
  for (n = 0; n < BATCH; n++) {
    error[n] = 0; /* minus the value to learn */
    for (i = 0; i < INPUTS; i++) {
      x[n][i] = draw(f);
      error[n] -= (i < 2 ? x[n][i] * x[n][i] : x[n][i]) / 2;
    }
  }
  f->before_layer(f->user, 0);
  for (n = 0; n < BATCH; n++) {
    first_layer(f->layers[0].weights, x[n], units[n]);
  }
  f->before_layer(f->user, 1);
  for (n = 0; n < BATCH; n++) {
    error[n] += second_layer(f->layers[1].weights, units[n]);
    loss += (double)(error[n] * error[n]) / BATCH;
  }
  for (n = BATCH - 1; train && n >= 0; n--) {
    backward(f, x[n], 2 * error[n] / count);
  }
  return loss;
}

static double train_step(framework_t* f) {
  double loss = 0;
  size_t i;
  int m, l;
  for (m = 0; m < MICROBATCHES; m++) {
    loss += run(f, m, 1) / MICROBATCHES;
  }
  f->before_update(f->user, f);
  for (l = 0; l < LAYERS; l++) {
    layer_t* layer = &f->layers[l];
    for (i = 0; i < layer->count; i++) {
      layer->weights[i] -= RATE * layer->grads[i];
    }
    memset(layer->grads, 0, layer->count * sizeof(float));
  }
  f->after_update(f->user);
  return loss;
}

/* ---- The embedding ------------------------------------------------------------------------------ */

typedef struct {
  entrain_comm_t* comm;
  entrain_mesh_t* mesh;
  entrain_shard_t* shard;
  entrain_edit_t* edit;
} embedding_t;

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    exit(1);
  }
}

/* If an exchange is due, begins it. Passes that are not for training say training = 0. */
static void before_pass(void* user, int microbatch) {
  int32_t syncing;
  check(entrain_edit_begin_forward(((embedding_t*)user)->edit, 1, microbatch == 0, &syncing, NULL));
}

/* Waits until the layer has the weights of its exchange. */
static void before_layer(void* user, int layer) {
  check(entrain_edit_wait_layer(((embedding_t*)user)->edit, layer));
}

/* While warm-up lasts, gradients are averaged over the replicas, by whatever the framework has for
 * this. Later a replica keeps its own gradients. */
static void before_update(void* user, const framework_t* f) {
  embedding_t* e = user;
  entrain_comm_t* replicas;
  int32_t scope;
  int l;
  check(entrain_edit_gradient_scope(e->edit, &scope));
  check(entrain_mesh_comm(e->mesh, ENTRAIN_AXIS_SYNC, &replicas));
  for (l = 0; scope == ENTRAIN_GRADIENTS_GLOBAL && l < LAYERS; l++) {
    const layer_t* layer = &f->layers[l];
    check(entrain_all_reduce(replicas, layer->grads, layer->grads, layer->count, ENTRAIN_F32,
                             ENTRAIN_AVG, NULL, NULL));
  }
}

static void after_update(void* user) {
  check(entrain_edit_end_step(((embedding_t*)user)->edit));
}

static void embed(embedding_t* e, framework_t* f) {
  entrain_mesh_config_t mesh;
  entrain_shard_config_t shard;
  entrain_edit_config_t edit;
  size_t counts[LAYERS];
  void* weights[LAYERS];
  int l;
  for (l = 0; l < LAYERS; l++) {
    counts[l] = f->layers[l].count;
    weights[l] = f->layers[l].weights;
  }
  entrain_mesh_config_init(&mesh);
  check(entrain_mesh_create(e->comm, &mesh, &e->mesh));
  entrain_shard_config_init(&shard);
  shard.layers = LAYERS;
  shard.layer_counts = counts;
  check(entrain_shard_create(e->mesh, &shard, &e->shard));
  check(entrain_shard_bind_layers(e->shard, weights, NULL, ENTRAIN_F32)); /* no gradients */
  check(entrain_shard_broadcast(e->shard, NULL)); /* all replicas begin with equal weights */

  entrain_edit_config_init(&edit);
  check(entrain_edit_config_preset(&edit, "edit", LAYERS, NULL, 0));
  edit.shard = e->shard;
  edit.gradient_accumulation_steps = MICROBATCHES;
  edit.local_sgd_sync_interval = 8;
  edit.local_sgd_warmup_steps = 16;
  check(entrain_edit_create(e->mesh, &edit, &e->edit));

  f->user = e;
  f->before_pass = before_pass;
  f->before_layer = before_layer;
  f->before_update = before_update;
  f->after_update = after_update;
}

/* Makes the last exchange. After it, all replicas have the same weights. */
static void agree(embedding_t* e) {
  int l;
  check(entrain_edit_request_sync(e->edit));
  before_pass(e, 0);
  for (l = 0; l < LAYERS; l++) {
    before_layer(e, l);
  }
}

static void release(embedding_t* e) {
  entrain_edit_destroy(e->edit);
  entrain_shard_destroy(e->shard);
  entrain_mesh_destroy(e->mesh);
  entrain_comm_destroy(e->comm);
}

int main(void) {
  framework_t framework = {0};
  embedding_t embedding;
  entrain_edit_info_t info;
  double before = 0, after = 0, sum = 0;
  float same[2];
  int32_t rank;
  size_t i;
  int l, step;

  check(entrain_comm_create_from_env(NULL, &embedding.comm));
  check(entrain_comm_rank(embedding.comm, &rank));
  framework.random = (uint32_t)rank + 1; /* weights and data of its own */
  framework_create(&framework);
  embed(&embedding, &framework);
  for (step = 0; step < STEPS; step++) {
    double loss = train_step(&framework);
    before += step < 10 ? loss / 10 : 0;
    after += step >= STEPS - 10 ? loss / 10 : 0;
  }
  agree(&embedding);

  for (l = 0; l < LAYERS; l++) {
    for (i = 0; i < framework.layers[l].count; i++) {
      sum += framework.layers[l].weights[i];
    }
  }
  same[0] = (float)sum;
  same[1] = -same[0];
  check(entrain_all_reduce(embedding.comm, same, same, 2, ENTRAIN_F32, ENTRAIN_MAX, NULL, NULL));
  entrain_edit_info_init(&info);
  check(entrain_edit_info(embedding.edit, &info));
  if (rank == 0) {
    printf("%d replicas, %d exchanges in %d steps: loss %.4f -> %.4f\n", (int)info.replicas,
           (int)info.syncs, STEPS, before, after);
  }
  release(&embedding);
  framework_destroy(&framework);
  if (same[0] != -same[1]) {
    fprintf(stderr, "the replicas have different weights\n");
    return 1;
  }
  if (!(after < before / 5)) {
    fprintf(stderr, "the loss did not fall as it should: %g, then %g\n", before, after);
    return 1;
  }
  return 0;
}
