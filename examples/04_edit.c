/* 04: training with EDiT.
 *
 * Why: with an all-reduce in every step, the slowest link sets the pace of all ranks. With EDiT,
 * each replica trains alone for H steps. Then the replicas exchange their progress layer by layer,
 * during the next forward pass. This divides the traffic across replicas by H. A step pauses only
 * if a layer is late. The model is sharded within a replica, so no rank holds the whole model.
 *
 * The model is y = W x + b with two outputs. Each rank generates its own data. The two layers are W
 * and b. If the number of ranks is even, a replica has two ranks:
 *
 *   entrain-run -n 4 example_04_edit */
#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 12, OUTPUTS = 2, LAYERS = 2, STEPS = 200, BATCH = 16, INTERVAL = 8, WARMUP = 4 };

static const size_t layer_counts[LAYERS] = {INPUTS * OUTPUTS, OUTPUTS};

typedef struct {
  entrain_comm_t* comm;
  entrain_mesh_t* mesh;
  entrain_shard_t* shard;
  entrain_edit_t* edit;
  entrain_optim_t* optim;
  float *params, *grads; /* the slabs: this rank's part of all layers */
  size_t slab;
  uint32_t random;
} trainer_t;

static void check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    exit(1);
  }
}

static float* zeros(size_t count) {
  float* array = calloc(count + 1, sizeof(float));
  if (array == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return array;
}

/* Returns a number in [-1, 1). */
static float draw(trainer_t* t) {
  t->random = t->random * 1664525u + 1013904223u;
  return (float)(t->random >> 8) / 8388608.0f - 1.0f;
}

/* Makes one sample of the function to learn, with some noise. */
static void sample(trainer_t* t, float* x, float* y) {
  int i, o;
  for (i = 0; i < INPUTS; i++) {
    x[i] = draw(t);
  }
  for (o = 0; o < OUTPUTS; o++) {
    y[o] = 0.5f - (float)o + 0.01f * draw(t);
    for (i = 0; i < INPUTS; i++) {
      y[o] += x[i] * (float)((i * 5 + o * 3) % 7 - 3) / 3.0f;
    }
  }
}

static void create(trainer_t* t) {
  entrain_mesh_config_t mesh;
  entrain_shard_config_t shard;
  entrain_edit_config_t edit;
  entrain_optim_config_t optim;
  int32_t rank, size;
  int layer;

  check(entrain_comm_create_from_env(NULL, &t->comm));
  check(entrain_comm_rank(t->comm, &rank));
  check(entrain_comm_size(t->comm, &size));
  t->random = (uint32_t)rank + 1;

  entrain_mesh_config_init(&mesh);
  mesh.shard = size % 2 == 0 ? 2 : 1; /* the ranks of a replica */
  check(entrain_mesh_create(t->comm, &mesh, &t->mesh));

  entrain_shard_config_init(&shard);
  shard.layers = LAYERS;
  shard.layer_counts = layer_counts;
  check(entrain_shard_create(t->mesh, &shard, &t->shard));
  check(entrain_shard_slab_count(t->shard, &t->slab));
  t->params = zeros(t->slab);
  t->grads = zeros(t->slab);
  check(entrain_shard_bind(t->shard, t->params, t->grads, ENTRAIN_F32));
  for (layer = 0; layer < LAYERS; layer++) {
    float* full = zeros(layer_counts[layer]);
    check(entrain_shard_load(t->shard, layer, full, ENTRAIN_F32));
    free(full);
  }
  check(entrain_shard_broadcast(t->shard, NULL));

  entrain_edit_config_init(&edit);
  check(entrain_edit_config_preset(&edit, "edit", LAYERS, NULL, 0)); /* the paper's method */
  edit.shard = t->shard;
  edit.local_sgd_sync_interval = INTERVAL;
  edit.local_sgd_warmup_steps = WARMUP;
  edit.outer_momentum = 0.5;
  check(entrain_edit_create(t->mesh, &edit, &t->edit));

  entrain_optim_config_init(&optim);
  check(entrain_optim_create(&optim, &t->optim));
}

/* Begins an exchange if one is due. Returns the whole layers, for reading. */
static void forward(trainer_t* t, int32_t training, const float* layers[LAYERS]) {
  int32_t syncing;
  void* params;
  int layer;
  check(entrain_edit_begin_forward(t->edit, training, 1, &syncing, NULL));
  check(entrain_shard_begin_pass(t->shard, ENTRAIN_PASS_FORWARD));
  for (layer = 0; layer < LAYERS; layer++) {
    check(entrain_edit_wait_layer(t->edit, layer));
    check(entrain_shard_wait(t->shard, layer, &params));
    layers[layer] = params;
  }
}

/* Returns the mean squared error over one batch. Adds the gradient to w_grad and b_grad, unless
 * they are NULL. */
static double batch(trainer_t* t, const float* w, const float* b, float* w_grad, float* b_grad) {
  float x[INPUTS], y[OUTPUTS];
  double loss = 0;
  int n, i, o;
  for (n = 0; n < BATCH; n++) {
    sample(t, x, y);
    for (o = 0; o < OUTPUTS; o++) {
      float error = b[o] - y[o];
      for (i = 0; i < INPUTS; i++) {
        error += w[o * INPUTS + i] * x[i];
      }
      loss += (double)(error * error) / (BATCH * OUTPUTS);
      if (w_grad != NULL) {
        for (i = 0; i < INPUTS; i++) {
          w_grad[o * INPUTS + i] += 2 * error * x[i] / (BATCH * OUTPUTS);
        }
        b_grad[o] += 2 * error / (BATCH * OUTPUTS);
      }
    }
  }
  return loss;
}

static void train_step(trainer_t* t, int64_t step) {
  const float* layers[LAYERS];
  void* grads[LAYERS];
  int layer;
  forward(t, 1, layers);
  check(entrain_shard_begin_pass(t->shard, ENTRAIN_PASS_BACKWARD));
  for (layer = 0; layer < LAYERS; layer++) {
    check(entrain_shard_gradients(t->shard, layer, &grads[layer]));
  }
  batch(t, layers[0], layers[1], grads[0], grads[1]);
  for (layer = LAYERS - 1; layer >= 0; layer--) {
    check(entrain_shard_reduce_gradients(t->shard, layer));
    check(entrain_shard_release(t->shard, layer));
  }
  check(entrain_shard_finish_gradients(t->shard));
  check(entrain_optim_step(t->optim, t->params, t->grads, NULL, t->slab, ENTRAIN_F32, step, 0.1));
  memset(t->grads, 0, t->slab * sizeof(float));
  check(entrain_edit_end_step(t->edit));
}

/* Returns the loss on fresh data, averaged over all ranks. */
static double evaluate(trainer_t* t, int32_t training) {
  const float* layers[LAYERS];
  double loss;
  int layer;
  forward(t, training, layers);
  loss = batch(t, layers[0], layers[1], NULL, NULL);
  for (layer = 0; layer < LAYERS; layer++) {
    check(entrain_shard_release(t->shard, layer));
  }
  check(entrain_all_reduce(t->comm, &loss, &loss, 1, ENTRAIN_F64, ENTRAIN_AVG, NULL, NULL));
  return loss;
}

int main(void) {
  trainer_t trainer;
  trainer_t* t = &trainer;
  entrain_edit_info_t info;
  double before, after;
  int32_t rank, replicas, replica, members, member;
  int64_t step;

  create(t);
  check(entrain_comm_rank(t->comm, &rank));
  check(entrain_mesh_coordinate(t->mesh, ENTRAIN_AXIS_SYNC, &replica, &replicas));
  check(entrain_mesh_coordinate(t->mesh, ENTRAIN_AXIS_SHARD, &member, &members));
  before = evaluate(t, 0);
  for (step = 1; step <= STEPS; step++) {
    train_step(t, step);
  }
  check(entrain_edit_request_sync(t->edit)); /* so that all replicas end with equal parameters */
  after = evaluate(t, 1);

  entrain_edit_info_init(&info);
  check(entrain_edit_info(t->edit, &info));
  if (rank == 0) {
    printf("%d replicas of %d ranks, %d exchanges in %d steps: loss %.4f -> %.4f\n", (int)replicas,
           (int)members, (int)info.syncs, STEPS, before, after);
  }
  entrain_optim_destroy(t->optim);
  entrain_edit_destroy(t->edit);
  entrain_shard_destroy(t->shard);
  entrain_mesh_destroy(t->mesh);
  entrain_comm_destroy(t->comm);
  free(t->params);
  free(t->grads);
  if (!(after < before / 100)) {
    fprintf(stderr, "the loss did not fall as it should: %g, then %g\n", before, after);
    return 1;
  }
  return 0;
}
