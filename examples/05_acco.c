/* 05: training with ACCO.
 *
 * Why: gradients cross the network while the ranks compute the next gradients. The optimizer's
 * state is sharded over the ranks. A rank never waits for an exchange: it adds micro-batches until
 * the current exchange is over. A slow rank adds fewer micro-batches, and no rank's gradients are
 * lost.
 *
 * The model is y = W x + b with two outputs. Each rank generates its own data.
 *
 *   entrain-run -n 4 example_05_acco */
#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  INPUTS = 12,
  OUTPUTS = 2,
  WEIGHTS = INPUTS * OUTPUTS,
  PARAMS = WEIGHTS + OUTPUTS,
  BATCH = 16,
  COMMITS = 150
};

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

/* Adds the gradient of one micro-batch, averaged over its samples. Returns the loss of the
 * micro-batch. */
static float add_gradient(const float* params, float* gradients, uint32_t* random) {
  float loss = 0.0f;
  int n, i, o;
  for (n = 0; n < BATCH; n++) {
    float x[INPUTS];
    for (i = 0; i < INPUTS; i++) {
      x[i] = draw(random);
    }
    for (o = 0; o < OUTPUTS; o++) {
      /* The function to learn: the weight of input i is (i + o) / 8, the bias is o - 1/2. */
      float target = (float)o - 0.5f + 0.05f * draw(random), y = params[WEIGHTS + o], error;
      for (i = 0; i < INPUTS; i++) {
        target += (float)(i + o) / 8.0f * x[i];
        y += params[o * INPUTS + i] * x[i];
      }
      error = y - target;
      loss += error * error / BATCH;
      for (i = 0; i < INPUTS; i++) {
        gradients[o * INPUTS + i] += 2.0f * error * x[i] / BATCH;
      }
      gradients[WEIGHTS + o] += 2.0f * error / BATCH;
    }
  }
  return loss;
}

int main(void) {
  entrain_comm_t* comm = NULL;
  entrain_optim_t* optim = NULL;
  entrain_acco_t* acco = NULL;
  entrain_optim_config_t rule;
  entrain_acco_config_t config;
  entrain_acco_info_t info;
  float params[PARAMS] = {0}, first = -1.0f, loss = 0.0f;
  void* gradients = NULL;
  int32_t rank = 0, ready = 0, finished = 0;
  int64_t made = 0;
  uint32_t random;

  check(entrain_comm_create_from_env(NULL, &comm));
  check(entrain_comm_rank(comm, &rank));
  random = 12345u + 77u * (uint32_t)rank;

  entrain_optim_config_init(&rule);
  rule.kind = ENTRAIN_OPTIM_ADAMW;
  check(entrain_optim_create(&rule, &optim));
  entrain_acco_config_init(&config);
  config.params = params;
  config.count = PARAMS;
  config.optim = optim;
  config.lr = 0.05;
  config.schedule_total = COMMITS; /* a cosine, in commits */
  config.limit = COMMITS;
  check(entrain_acco_create(comm, &config, &acco));
  check(entrain_acco_gradients(acco, &gradients));

  while (!finished) {
    loss = add_gradient(params, gradients, &random);
    first = first < 0.0f ? loss : first;
    made++;
    check(entrain_acco_add(acco, 1, BATCH));
    check(entrain_acco_poll(acco, &ready));
    if (ready) {
      check(entrain_acco_install(
          acco, &finished)); /* new parameters; the exchange of the added gradients begins */
    }
  }

  entrain_acco_info_init(&info);
  check(entrain_acco_info(acco, &info));
  printf("rank %d: loss %.4f, then %.4f; %lld micro-batches here, %lld of all in %lld commits\n",
         (int)rank, (double)first, (double)loss, (long long)made, (long long)info.gradients,
         (long long)info.commits);
  entrain_acco_destroy(acco);
  entrain_optim_destroy(optim);
  entrain_comm_destroy(comm);
  if (!(loss < 0.1f * first) || info.commits != COMMITS) {
    fprintf(stderr, "rank %d: did not learn in %lld commits\n", (int)rank, (long long)info.commits);
    return 1;
  }
  return 0;
}
