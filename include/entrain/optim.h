/* Optimizers over flat arrays. All rules are element-wise. So the elements of a shard get the same values from a step
 * on the shard as from a step on the whole array. */
#ifndef ENTRAIN_OPTIM_H_
#define ENTRAIN_OPTIM_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of entrain_optim_config_t.kind. Symbols: p parameters, g gradient, lr learning rate, wd weight_decay, mu
 * momentum, b1 and b2 betas, t number of the step.
 *
 * AGD (arXiv 2312.01658), with c1 = 1 - b1^t and c2 = 1 - b2^t:
 *
 *     m = b1 m + (1 - b1) g
 *     s = the change of m / c1 since the previous step (first step: m / c1)
 *     b = b2 b + (1 - b2) s^2
 *     p -= lr sqrt(c2) / c1 * m / max(sqrt(b), delta sqrt(c2))
 *
 * Each step chooses one of two rules for each element. If sqrt(b) is larger than delta sqrt(c2), the element takes an
 * adaptive step. Otherwise it takes an SGD step of rate lr / delta. If gradients change little, AGD takes much larger
 * steps than AdamW. So begin with a tenth of the learning rate for AdamW. */
enum {
  ENTRAIN_OPTIM_SGD = 0,  /* b = mu b + g (first step: b = g); p -= lr b, with nesterov p -= lr (g + mu b) */
  ENTRAIN_OPTIM_ADAMW = 1, /* p *= 1 - lr wd; moments m, v; p -= lr / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps) */
  ENTRAIN_OPTIM_AGD = 2,
  ENTRAIN_OPTIM_WSAM = 3  /* around another optimizer, with steps of its own: see the end of this header */
};
enum { /* entrain_optim_config_t.decay: how AGD applies weight_decay, before the step */
  ENTRAIN_DECAY_DECOUPLED = 0, /* p *= 1 - lr wd */
  ENTRAIN_DECAY_FIXED = 1,     /* p *= 1 - wd; wd < 1 */
  ENTRAIN_DECAY_COUPLED = 2    /* g += wd p */
};

typedef struct entrain_optim_config_t {
  size_t size;
  int32_t kind;
  int32_t nesterov;         /* sgd: 0 or 1; 1 needs momentum > 0 */
  double momentum;          /* sgd: mu, 0 <= mu < 1 */
  double beta1, beta2, eps; /* adamw, agd: betas in [0, 1), default 0.9 and 0.999. adamw: eps >= 1e-37, default 1e-8 */
  double weight_decay;      /* >= 0. sgd: added to the gradient; adamw: decoupled; agd: see decay */
  double delta;             /* agd: >= 0; default 1e-5; 1e-14 is usual for transformers. If delta sqrt(c2) is below
                               1e-19, the library uses 1e-19, because the square of a smaller number is 0 in f32 */
  double clip;              /* agd: > 0: the limit of |m / max(...)| of an element; 0 (default): no limit */
  int32_t decay;            /* agd: ENTRAIN_DECAY_*; default DECOUPLED */
  int32_t amsgrad;          /* agd: 1: use the largest b of all steps instead of b; 0 (default): use b */
  int32_t win;              /* agd: 1: accelerated step that includes the decay. With a = lr sqrt(c2) / c1, u the
                               clipped quotient m / max(...), and z = p before the first step:
                                 z = (z - a u) / (1 + wd a), tau = 1 / (3 + 2 a wd), p = tau p - 2 tau a u + 2 tau z
                               decay must be DECOUPLED. 0 (default): off */
  int32_t memory;           /* ENTRAIN_MEMORY_HOST (default) or DEVICE: memory of all arrays of the optimizer's calls,
                               and of the calls of a WSAM optimizer around it. With DEVICE, calls enqueue their work on
                               `stream` and return. There are two exceptions, which wait for their work (see
                               timeout_ns): entrain_wsam_ascent_sum, because it returns a number, and steps of agd,
                               because they count elements (entrain_optim_info) */
  void* stream;             /* CUstream; NULL (default): the default stream of the device. HOST requires NULL.
                               entrain_optim_set_stream changes it */
  int64_t timeout_ns;       /* DEVICE: longest time for which a call of the optimizer, or of WSAM around it,
                               waits for its work. 0 (default): 30 min. After this time the call returns TIMED_OUT. The
                               enqueued work may still take effect, so do not repeat the step. HOST: no effect */
  const entrain_optim_t* base; /* wsam: the base optimizer, of another kind. The WSAM optimizer takes its memory, its
                                  timeout and its present stream. The base may be destroyed before the WSAM optimizer.
                                  The fields above have no effect */
  double rho;               /* wsam: >= 0: length of e; default 0.05 */
  double gamma;             /* wsam: 0 <= gamma < 1; default 0.9. 0: the base optimizer alone; 1/2: SAM */
  double sam_eps;           /* wsam: >= 1e-30, added to the norm; default 1e-12 */
  double max_norm;          /* wsam: > 0: clips g and g2 separately: the step multiplies each of them by
                               min(1, max_norm / (its norm + 1e-6)). 0 (default): no limit */
  int32_t adaptive;         /* wsam: 1: e = rho w^2 g / (|| |w| g || + sam_eps); 0 (default): e as below */
  int32_t decouple;         /* wsam: 1 (default): decoupled; 0: coupled */
} entrain_optim_config_t;

static ENTRAIN_INLINE void entrain_optim_config_init(entrain_optim_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_OPTIM_CONFIG, config, sizeof(*config));
}
/* Creates an optimizer. Local; any thread. The object holds no arrays: the caller owns parameters, gradients and state,
 * and passes them to each step. Returns INVALID_ARGUMENT for a value out of its range. */
ENTRAIN_API entrain_status_t entrain_optim_create(const entrain_optim_config_t* config, entrain_optim_t** optim);
ENTRAIN_API void entrain_optim_destroy(entrain_optim_t* optim);

/* DEVICE: later calls enqueue their work on `stream`; NULL: the default stream of the device. This function does not
 * make `stream` wait for the previous stream. If earlier work uses the arrays of a call, the caller must make `stream`
 * wait for this work. If WSAM optimizers have been created with this optimizer as base, they keep their stream. No call
 * of the optimizer may run at the same time. HOST: returns FAILED_PRECONDITION. Local. */
ENTRAIN_API entrain_status_t entrain_optim_set_stream(entrain_optim_t* optim, void* stream);

/* Writes to *arrays the number of state arrays that a step needs. Each has as many elements as the parameters. sgd
 * needs 0 or 1 arrays, adamw 2. agd needs m and b, with amsgrad also the largest b, and with win also z. wsam needs
 * those of its base. A checkpoint needs these arrays and `step`, nothing else. The arrays may be given to
 * entrain_edit_add_state unchanged. */
ENTRAIN_API entrain_status_t entrain_optim_state_arrays(const entrain_optim_t* optim, int32_t* arrays);

/* Makes one step over `count` elements, on the calling thread. (For device memory see entrain_optim_config_t.memory.)
 * Updates `params` and the arrays of `state` in place. The caller sets the state arrays to zero before the first step.
 * `dtype` is the type of all arrays. It must be ENTRAIN_F32 (UNIMPLEMENTED otherwise). `step` counts from 1. Any
 * thread; different slices of one vector may be stepped concurrently. INVALID_ARGUMENT for wsam (entrain_wsam_step). */
ENTRAIN_API entrain_status_t entrain_optim_step(const entrain_optim_t* optim, void* params, const void* grads,
                                                void* const* state, size_t count, entrain_dtype_t dtype, int64_t step,
                                                double lr);
/* Computes the step of entrain_optim_step, but writes the parameters to `out` and leaves `params` and `state`
 * unchanged. The result is bit-identical to that of entrain_optim_step. */
ENTRAIN_API entrain_status_t entrain_optim_preview(const entrain_optim_t* optim, const void* params,
                                                   const void* grads, const void* const* state, void* out,
                                                   size_t count, entrain_dtype_t dtype, int64_t step, double lr);

typedef struct entrain_optim_info_t {
  size_t size;
  uint64_t elements; /* agd: number of elements updated by all steps, without previews; other rules: 0 */
  uint64_t adaptive; /* the number of these updates that were adaptive steps */
} entrain_optim_info_t;
static ENTRAIN_INLINE void entrain_optim_info_init(entrain_optim_info_t* info) {
  entrain_struct_init(ENTRAIN_STRUCT_OPTIM_INFO, info, sizeof(*info));
}
/* Reads the counters since creation, over all slices. Any thread; exact when no step is running. */
ENTRAIN_API entrain_status_t entrain_optim_info(const entrain_optim_t* optim,
                                                entrain_optim_info_t* info);

/* ---- WSAM: weighted sharpness-aware minimisation (arXiv 2305.15817) around any optimizer ----- */

/* Minimises L(w) + alpha * max over |d| <= rho of (L(w + d) - L(w)), alpha = gamma / (1 - gamma). A step needs two
 * gradients of the same data, g at w and g2 at w + e:
 *
 *   backward -> g            sum = entrain_wsam_ascent_sum, added up over the slices of a vector
 *   entrain_wsam_ascend      saved = w;  w = w + rho g / (sqrt(sum) + sam_eps)
 *   backward -> g2
 *   entrain_wsam_return      w = saved, bit for bit, so that replicas with different perturbations stay equal
 *   entrain_wsam_step        decoupled: base step with g, then w = w - lr alpha (g2 - g)
 *                            coupled:   base step with alpha g2 + (1 - alpha) g
 *
 * With data parallelism, each worker has its own gradient. There are two methods, which give different results:
 * - Local perturbation (the published method): each worker ascends along its own g over the whole vector, without
 *   communication. Then average g and g2 over the workers, and step. The average may be an all_reduce or a
 *   reduce_scatter; a step on slices is allowed. For a coupled step without max_norm, it is enough to average the
 *   output of entrain_wsam_combine.
 * - Global perturbation: average g first. If ranks hold slices, add up their sums by an all_reduce of one f64; padding
 *   must be zero. Each rank then ascends on its slice, and all ranks gather w + e.
 *
 * With gradient accumulation, g and g2 are means over the same micro-batches.
 *
 * Unless a function says otherwise, arrays belong to the caller, do not overlap, and have `count` elements of `dtype`.
 * `dtype` must be ENTRAIN_F32 (UNIMPLEMENTED otherwise). Any thread may call, and different slices may be processed
 * concurrently. WSAM has no state of its own, so a checkpoint needs only the state of the base optimizer. Keep w and w
 * + e in f32, because rounding to 16 bits loses most of e. */
/* Writes to *sum the sum of g^2 over these elements, in double. If adaptive, writes the sum of (w g)^2. Does not clip
 * g. */
ENTRAIN_API entrain_status_t entrain_wsam_ascent_sum(const entrain_optim_t* wsam, const void* params,
                                                     const void* grads, size_t count,
                                                     entrain_dtype_t dtype, double* sum);
/* Copies `params` to `saved`, then moves `params` to w + e. `sum` is the sum of entrain_wsam_ascent_sum over the whole
 * vector. Returns INVALID_ARGUMENT if `sum` is negative or not finite. So the function refuses a gradient that has an
 * infinity or a NaN. */
ENTRAIN_API entrain_status_t entrain_wsam_ascend(const entrain_optim_t* wsam, void* params,
                                                 void* saved, const void* grads, size_t count,
                                                 entrain_dtype_t dtype, double sum);
/* Copies `saved` back to `params`. */
ENTRAIN_API entrain_status_t entrain_wsam_return(const entrain_optim_t* wsam, void* params,
                                                 const void* saved, size_t count,
                                                 entrain_dtype_t dtype);
/* Computes out = alpha g2 + (1 - alpha) g as g + alpha (g2 - g). `out` may be `grads` or `second`. A step of the base
 * optimizer with `out` is the coupled step. Returns FAILED_PRECONDITION if the object is decoupled or has a max_norm,
 * because the step then needs both gradients. */
ENTRAIN_API entrain_status_t entrain_wsam_combine(const entrain_optim_t* wsam, const void* grads,
                                                  const void* second, void* out, size_t count,
                                                  entrain_dtype_t dtype);
/* Makes one step at w, after entrain_wsam_return, with an optimizer of kind WSAM. `grads`: g, `second`: g2, both
 * averaged. `sums`: with max_norm, two numbers, finite and >= 0: the sum of squares of g, and that of g2, over the
 * whole vector. Without max_norm the library ignores `sums`, and it may be NULL. The other arguments are as for
 * entrain_optim_step, with the state of the base optimizer. lr is also the learning rate of the decoupled part. */
ENTRAIN_API entrain_status_t entrain_wsam_step(const entrain_optim_t* wsam, void* params,
                                               const void* grads, const void* second,
                                               const double* sums, void* const* state, size_t count,
                                               entrain_dtype_t dtype, int64_t step, double lr);
/* Computes the step of entrain_wsam_step, but writes the parameters to `out`, as entrain_optim_preview does. */
ENTRAIN_API entrain_status_t entrain_wsam_preview(const entrain_optim_t* wsam, const void* params,
                                                  const void* grads, const void* second,
                                                  const double* sums, const void* const* state,
                                                  void* out, size_t count, entrain_dtype_t dtype,
                                                  int64_t step, double lr);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_OPTIM_H_ */
