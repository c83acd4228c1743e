/* Optimizers over flat arrays. Element-wise: a step on a shard equals that part of a step on the whole. */
#ifndef ENTRAIN_OPTIM_H_
#define ENTRAIN_OPTIM_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* entrain_optim_config_t.kind.
 *
 * AGD (arXiv 2312.01658), with c1 = 1-b1^t and c2 = 1-b2^t: m = b1 m + (1-b1) g; s = the change of
 * m / c1 since the step before (first step: m / c1); b = b2 b + (1-b2) s^2;
 * p -= lr sqrt(c2) / c1 * m / max(sqrt(b), delta sqrt(c2)). An element whose sqrt(b) is the larger
 * steps adaptively, another as with SGD of rate lr / delta; that is decided anew at each step. Where
 * gradients change little the steps are many times those of AdamW: begin with a tenth of its lr. */
enum {
  ENTRAIN_OPTIM_SGD = 0,  /* b = mu b + g (first step: b = g); p -= lr b, or lr (g + mu b) with nesterov */
  ENTRAIN_OPTIM_ADAMW = 1, /* p *= 1 - lr wd; m, v moments; p -= lr / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps) */
  ENTRAIN_OPTIM_AGD = 2
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
  double beta1, beta2, eps; /* adamw: 0.9, 0.999, 1e-8; agd: the betas. Each beta in [0, 1) */
  double weight_decay;      /* >= 0. sgd: added to the gradient; adamw: decoupled; agd: see decay */
  double delta;             /* agd: >= 0; default 1e-5; for transformers 1e-14 is usual. Squares of
                               less than 1e-19 vanish in f32: delta sqrt(c2) is at least that */
  double clip;              /* agd: > 0: largest |m / max(...)| of an element; 0 (default): off */
  int32_t decay;            /* agd: ENTRAIN_DECAY_*; default DECOUPLED */
  int32_t amsgrad;          /* agd: 1: the largest b so far instead of b; 0 (default): not */
  int32_t win;              /* agd: 1: decay within an accelerated step. With a = lr sqrt(c2) / c1,
                               u the clipped quotient, z = p before the first step:
                               z = (z - a u) / (1 + wd a), tau = 1 / (3 + 2 a wd),
                               p = tau p - 2 tau a u + 2 tau z. decay must be DECOUPLED.
                               0 (default): not */
  int32_t memory;           /* ENTRAIN_MEMORY_HOST (default) or DEVICE: where all arrays of its calls are, and of a WSAM
                               object around it. DEVICE: calls enqueue their work on `stream` and return; what gives a
                               number (entrain_wsam_ascent_sum, agd's steps, which count) waits for it, 30 min at
                               most: TIMED_OUT, and what was enqueued may still be done, so do not step again */
  void* stream;             /* a CUstream; NULL (default): the device's default stream. HOST: NULL */
} entrain_optim_config_t;

ENTRAIN_API void entrain_optim_config_init_sized(entrain_optim_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_optim_config_init(entrain_optim_config_t* config) {
  entrain_optim_config_init_sized(config, sizeof(*config));
}
ENTRAIN_API entrain_status_t entrain_optim_create(const entrain_optim_config_t* config, entrain_optim_t** optim);
ENTRAIN_API void entrain_optim_destroy(entrain_optim_t* optim);

/* How many state arrays, each as long as the parameters, a step needs (sgd: 0 or 1; adamw: 2; agd:
 * m, b, with amsgrad the largest b, with win z). These and `step` are all there is to save;
 * entrain_edit_add_state takes the arrays as they are. */
ENTRAIN_API entrain_status_t entrain_optim_state_arrays(const entrain_optim_t* optim, int32_t* arrays);

/* One step over `count` elements, in the caller's thread (config.memory says more). `params` and the arrays of `state` (zero before the first step)
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
  uint64_t elements; /* agd: elements moved by steps (not previews), all steps added up; else 0 */
  uint64_t adaptive; /* of these, on the adaptive branch */
} entrain_optim_info_t;
ENTRAIN_API void entrain_optim_info_init_sized(entrain_optim_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_optim_info_init(entrain_optim_info_t* info) {
  entrain_optim_info_init_sized(info, sizeof(*info));
}
/* Since creation, of all slices together. Any thread; exact when no step is running. */
ENTRAIN_API entrain_status_t entrain_optim_info(const entrain_optim_t* optim,
                                                entrain_optim_info_t* info);

/* ---- WSAM: weighted sharpness-aware minimisation (arXiv 2305.15817) around any optimizer ----- */

/* Minimises L(w) + alpha * max over |d| <= rho of (L(w + d) - L(w)), alpha = gamma / (1 - gamma).
 * A step takes two gradients of the same data, g at w and g2 at w + e:
 *
 *   backward -> g            sum = entrain_wsam_ascent_sum, added up over the slices of a vector
 *   entrain_wsam_ascend      saved = w;  w = w + rho g / (sqrt(sum) + sam_eps)
 *   backward -> g2
 *   entrain_wsam_return      w = saved, bit for bit: replicas that perturb differently stay alike
 *   entrain_wsam_step        decoupled: base step with g, then w = w - lr alpha (g2 - g)
 *                            coupled:   base step with alpha g2 + (1 - alpha) g
 *
 * Data parallel, where every worker has a gradient of its own, there are two ways, with different
 * trajectories. Local perturbation (the published one): ascend along the worker's own g over the
 * whole vector, without communication; then average g and g2 over the workers, whole or by
 * reduce-scatter, and step, on slices too. Coupled and without max_norm it is enough to average
 * what entrain_wsam_combine makes of both. Global perturbation: average g first; a rank that holds
 * a slice adds its sum to the others' (an all_reduce of one f64; padding is zero) and ascends on
 * its slice, and all gather w + e. With gradient accumulation g and g2 are means over the same
 * micro-batches.
 *
 * Unless said otherwise: arrays have `count` elements of `dtype`, ENTRAIN_F32 (others
 * UNIMPLEMENTED), are the caller's and share no memory; any thread, different slices at once. The
 * object holds no state: between steps there is nothing to save but the base optimizer's. w and
 * w + e are meant to be f32 masters: rounded to 16 bits most of e is lost. */
typedef struct entrain_wsam_config {
  size_t size;
  entrain_optim_t* base; /* what steps; shared: it may be destroyed before the WSAM object */
  double rho;            /* >= 0: length of e; default 0.05 */
  double gamma;          /* 0 <= gamma < 1; default 0.9. 0: the base optimizer alone, 1/2: SAM */
  double sam_eps;        /* >= 1e-30, added to the norm; default 1e-12 */
  double max_norm;       /* > 0: g and g2 enter the step with a factor min(1, max_norm / (norm +
                            1e-6)) each, of its own norm; 0 (default): off */
  int32_t adaptive;      /* 1: e = rho w^2 g / (|| |w| g || + sam_eps); 0 (default): not */
  int32_t decouple;      /* 1 (default): decoupled; 0: coupled */
} entrain_wsam_config_t;
ENTRAIN_API void entrain_wsam_config_init_sized(entrain_wsam_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_wsam_config_init(entrain_wsam_config_t* config) {
  entrain_wsam_config_init_sized(config, sizeof(*config));
}
ENTRAIN_API entrain_status_t entrain_wsam_create(const entrain_wsam_config_t* config,
                                                 entrain_wsam_t** wsam);
ENTRAIN_API void entrain_wsam_destroy(entrain_wsam_t* wsam);

/* *sum = sum of g^2, adaptive: of (w g)^2, over these elements, in double; of g unclipped. */
ENTRAIN_API entrain_status_t entrain_wsam_ascent_sum(const entrain_wsam_t* wsam, const void* params,
                                                     const void* grads, size_t count,
                                                     entrain_dtype_t dtype, double* sum);
/* Copies `params` to `saved` and moves them to w + e. `sum`: of the whole vector, finite, >= 0
 * (INVALID_ARGUMENT otherwise: a gradient with an infinity or a NaN ends here). */
ENTRAIN_API entrain_status_t entrain_wsam_ascend(const entrain_wsam_t* wsam, void* params,
                                                 void* saved, const void* grads, size_t count,
                                                 entrain_dtype_t dtype, double sum);
/* Copies `saved` back. */
ENTRAIN_API entrain_status_t entrain_wsam_return(const entrain_wsam_t* wsam, void* params,
                                                 const void* saved, size_t count,
                                                 entrain_dtype_t dtype);
/* out = alpha g2 + (1 - alpha) g, computed as g + alpha (g2 - g); `out` may be `grads` or `second`.
 * The base optimizer's own step with it is the coupled step. FAILED_PRECONDITION when decoupled or
 * with max_norm, which need both gradients in the step. */
ENTRAIN_API entrain_status_t entrain_wsam_combine(const entrain_wsam_t* wsam, const void* grads,
                                                  const void* second, void* out, size_t count,
                                                  entrain_dtype_t dtype);
/* One step at w, after the return. `grads`: g, `second`: g2, as averaged. `sums`: with max_norm the
 * sums of squares of g and of g2 over the whole vector, finite, >= 0; without it not looked at, may
 * be NULL. Otherwise as entrain_optim_step, with the base optimizer's state; lr is also that of the
 * decoupled part. */
ENTRAIN_API entrain_status_t entrain_wsam_step(const entrain_wsam_t* wsam, void* params,
                                               const void* grads, const void* second,
                                               const double* sums, void* const* state, size_t count,
                                               entrain_dtype_t dtype, int64_t step, double lr);
/* The same step written to `out`, as entrain_optim_preview does. */
ENTRAIN_API entrain_status_t entrain_wsam_preview(const entrain_wsam_t* wsam, const void* params,
                                                  const void* grads, const void* second,
                                                  const double* sums, const void* const* state,
                                                  void* out, size_t count, entrain_dtype_t dtype,
                                                  int64_t step, double lr);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_OPTIM_H_ */
