/* Optimizers over flat arrays. Element-wise: a step on a shard equals that part of a step on the whole. */
#ifndef ENTRAIN_OPTIM_H_
#define ENTRAIN_OPTIM_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* entrain_optim_config_t.kind */
  ENTRAIN_OPTIM_SGD = 0,  /* b = mu b + g (first step: b = g); p -= lr b, or lr (g + mu b) with nesterov */
  ENTRAIN_OPTIM_ADAMW = 1, /* p *= 1 - lr wd; m, v moments; p -= lr / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps) */
  ENTRAIN_OPTIM_AGD = 2 /* arXiv 2312.01658, with c1 = 1-b1^t, c2 = 1-b2^t: m = b1 m + (1-b1) g; s = the change of m / c1
                           since the step before (first step: m / c1); b = b2 b + (1-b2) s^2;
                           p -= lr sqrt(c2) / c1 * m / max(sqrt(b), delta sqrt(c2)). Where sqrt(b) is the larger, a step
                           is adaptive, elsewhere that of SGD with rate lr / delta: re-decided for each element and step.
                           Steps may be many times those of AdamW where gradients change little: a tenth of its lr */
};
enum { /* entrain_optim_config_t.decay: what agd makes of weight_decay, before the step */
  ENTRAIN_DECAY_DECOUPLED = 0, /* p *= 1 - lr wd */
  ENTRAIN_DECAY_FIXED = 1,     /* p *= 1 - wd; wd < 1 */
  ENTRAIN_DECAY_COUPLED = 2    /* g += wd p */
};

typedef struct entrain_optim_config {
  size_t size;
  int32_t kind;
  int32_t nesterov;         /* sgd; needs momentum > 0 */
  double momentum;          /* sgd: mu, 0 <= mu < 1 */
  double beta1, beta2, eps; /* adamw: 0.9, 0.999, 1e-8; agd: the betas; each beta in [0, 1) */
  double weight_decay;      /* >= 0. sgd: added to the gradient; adamw: decoupled; agd: see decay */
  double delta;             /* agd: >= 0; default 1e-5; 1e-14 is usual for transformers. In f32 the squares of smaller changes
                               than 1e-19 vanish: delta sqrt(c2) counts as at least that much */
  double clip;              /* agd: > 0: largest |m / max(...)| of an element, before the rate; 0 (default): off */
  int32_t decay;            /* agd: ENTRAIN_DECAY_*; default DECOUPLED */
  int32_t amsgrad;          /* agd: 1: the largest b so far instead of b; 0 (default): not */
  int32_t win;              /* agd: 1: decay within an accelerated step, a = lr sqrt(c2) / c1, u = the clipped quotient, z = p
                               before the first step: z = (z - a u) / (1 + wd a), tau = 1 / (3 + 2 a wd),
                               p = tau p - 2 tau a u + 2 tau z; with decay DECOUPLED only; 0 (default): not */
  int32_t reserved;         /* 0 */
} entrain_optim_config_t;

ENTRAIN_API void entrain_optim_config_init(entrain_optim_config_t* config);
ENTRAIN_API entrain_status_t entrain_optim_create(const entrain_optim_config_t* config, entrain_optim_t** optim);
ENTRAIN_API void entrain_optim_destroy(entrain_optim_t* optim);

/* How many state arrays, each as long as the parameters, a step needs (sgd: 0 or 1, adamw: 2, agd: m, b, with amsgrad the
 * largest b, with win z). They and `step` are all there is to save: entrain_edit_add_state takes them as they are. */
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

typedef struct entrain_optim_info_t {
  size_t size;
  uint64_t elements; /* agd: elements moved by entrain_optim_step (not by previews), all steps added up; others: 0 */
  uint64_t adaptive; /* of these, on the adaptive branch */
} entrain_optim_info_t;
ENTRAIN_API void entrain_optim_info_init(entrain_optim_info_t* info);
/* Since creation, of all slices together. Any thread; exact when no step is running. */
ENTRAIN_API entrain_status_t entrain_optim_info(const entrain_optim_t* optim, entrain_optim_info_t* info);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_OPTIM_H_ */
