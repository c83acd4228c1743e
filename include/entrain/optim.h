/* Optimizers over flat arrays. Element-wise: a step on a shard equals that part of a step on the whole. */
#ifndef ENTRAIN_OPTIM_H_
#define ENTRAIN_OPTIM_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* entrain_optim_config_t.kind */
  ENTRAIN_OPTIM_SGD = 0,  /* b = mu b + g (first step: b = g); p -= lr b, or lr (g + mu b) with nesterov */
  ENTRAIN_OPTIM_ADAMW = 1 /* p *= 1 - lr wd; m, v moments; p -= lr / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps) */
};

typedef struct entrain_optim_config {
  size_t size;
  int32_t kind;
  int32_t nesterov;         /* sgd; needs momentum > 0 */
  double momentum;          /* sgd: mu, 0 <= mu < 1 */
  double beta1, beta2, eps; /* adamw: 0.9, 0.999, 1e-8 */
  double weight_decay;      /* >= 0. sgd: added to the gradient; adamw: decoupled */
} entrain_optim_config_t;

ENTRAIN_API void entrain_optim_config_init(entrain_optim_config_t* config);
ENTRAIN_API entrain_status_t entrain_optim_create(const entrain_optim_config_t* config, entrain_optim_t** optim);
ENTRAIN_API void entrain_optim_destroy(entrain_optim_t* optim);

/* How many state arrays, each as long as the parameters, a step needs (sgd: 0 or 1, adamw: 2). */
ENTRAIN_API entrain_status_t entrain_optim_state_arrays(const entrain_optim_t* optim, int32_t* arrays);

/* One step over `count` elements, in the caller's thread. `params` and the arrays of `state` (zero before the first step)
 * are updated in place. All arrays have type `dtype`: ENTRAIN_F32; others are UNIMPLEMENTED in this version. `step`
 * counts from 1. Any thread; different slices of one vector may be stepped at once. */
ENTRAIN_API entrain_status_t entrain_optim_step(const entrain_optim_t* optim, void* params, const void* grads,
                                                void* const* state, size_t count, entrain_dtype_t dtype, int64_t step,
                                                double lr);
/* The same step, its parameters written to `out`; `params` and `state` stay as they are. Bit-identical to what
 * entrain_optim_step would make of them. */
ENTRAIN_API entrain_status_t entrain_optim_preview(const entrain_optim_t* optim, const void* params,
                                                   const void* grads, const void* const* state, void* out,
                                                   size_t count, entrain_dtype_t dtype, int64_t step, double lr);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_OPTIM_H_ */
