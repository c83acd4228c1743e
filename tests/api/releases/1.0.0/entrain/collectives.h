/* Collectives, send and receive, and the handle of a started call.
 *
 * Every function here: any thread; blocks only when `work` is NULL; `options` may be NULL (defaults). Errors besides
 * those named: INVALID_ARGUMENT naming the argument and its value; after the communicator ended, what ended it.
 * A rank is done with its part of a call when it has what it needs of others and its buffers are its own again: the root
 * of a broadcast or scatter, and all but the root of a reduce or gather, may be done before others have begun (a large
 * buffer waits for who takes it).
 * If ranks differ in operation, type, count, reduction or root, all of them get MISMATCH naming both calls and the ranks
 * that made each; one that was done gets it from a later call or wait. Guilty is the lowest rank that called something else
 * than the most; none (-1) if no call was made by the most ranks, as between two. */
#ifndef ENTRAIN_COLLECTIVES_H_
#define ENTRAIN_COLLECTIVES_H_

#include "entrain/comm.h"
#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* entrain_call_options_t.wait */
  ENTRAIN_WAIT_FOREGROUND = 0, /* spin briefly, give the core away, then sleep: lowest latency */
  ENTRAIN_WAIT_BACKGROUND = 1  /* sleep at once: for threads that should not take a core */
};

typedef struct entrain_call_options {
  size_t size;
  int64_t tag;        /* -1: untagged, matched by program order; 0 .. 2^20 - 2: matched by this number */
  int64_t timeout_ns; /* 0: the communicator's default */
  int32_t wait;       /* ENTRAIN_WAIT_*: how a blocking call, and waits on the work, behave */
  int32_t memory;     /* ENTRAIN_MEMORY_*: where the buffers are. DEVICE: on all ranks alike (MISMATCH otherwise), and all
                       * buffers of a communicator on one device. Not for a barrier. Other processes of the host may keep
                       * DEVICE buffers open until the communicator is destroyed there, or they see other memory at the
                       * same addresses; until then freed ones stay occupied, and CUDA calls what comes of freeing them
                       * undefined. So free them after the communicator; never while any rank is in a call on them */
  void* stream;       /* a CUstream (cudaStream_t). The call begins when the device has come to where the stream is now, and
                       * what is enqueued on the stream once the function has returned waits until the call is over, also
                       * when it has failed; with a work the host waits for nothing. Ranks that are threads of one process
                       * and share a device need a stream each for calls with a work: on one, theirs would wait for each
                       * other. The first untagged collective of a communicator had better be without a work where NCCL
                       * may take it: NCCL begins in it, and may wait for all streams of the device. (Whoever frees device
                       * memory waits for all streams of the process on that device, and so for the calls.) DEVICE: NULL is
                       * the device's default stream. HOST_PINNED: NULL is none. HOST: NULL */
  entrain_reduction_t* reduction; /* used when op is ENTRAIN_REDUCTION */
  entrain_batch_t* batch; /* not NULL: the call is checked and added to it instead of started; `work` must be NULL */
  int32_t determinism;    /* ENTRAIN_DETERMINISM_*; the same on all ranks (MISMATCH otherwise). For reductions */
  int32_t reserved;       /* 0 */
} entrain_call_options_t;

ENTRAIN_API void entrain_call_options_init_sized(entrain_call_options_t* options, size_t bytes);
static ENTRAIN_INLINE void entrain_call_options_init(entrain_call_options_t* options) {
  entrain_call_options_init_sized(options, sizeof(*options));
}

/* ---- Reductions as objects ------------------------------------------------------------------------------------ */

/* dst[i] = dst[i] (+) src[i] for `count` elements; the same bits on every rank for the same arguments. Called on a thread
 * that the communicator has for such functions alone, one at a time; dst and src are the library's memory. It may block, for a
 * lock say (an interpreter's): all other calls go on and keep their deadlines, and so does its own. When that ends while the
 * function is running (its deadline, an abort, the communicator's or the runtime's end), nobody waits for the function or
 * reads what it makes, and it is not called again; TIMED_OUT says so on all ranks: "all_reduce #4: timed out on rank 1 after
 * 0.5 s (deadline 0.5 s) waiting for rank 1: it is in the user reduction of all_reduce #4, which has not returned for 0.499 s".
 * After a second the log tells too. In it, calls that need the engine are FAILED_PRECONDITION ("entrain_barrier: called from
 * the user reduction of all_reduce #2, which must not wait"), and the functions that destroy a communicator or what is made
 * of one do nothing, as the log says; queries are allowed. Returns 0. Any other number ends the communicator on all ranks:
 * ABORTED, "the user reduction of all_reduce #4 returned 5" and the rank; `out` is undefined then, on this rank and on those
 * that had not finished. */
typedef int32_t (*entrain_reduce_fn)(void* dst, const void* src, size_t count, entrain_dtype_t dtype, void* user);

/* A built-in operator as an object. */
ENTRAIN_API entrain_status_t entrain_reduction_builtin(entrain_op_t op, entrain_reduction_t** reduction);
/* The caller's own function. `signature`: a number that stands for the function and must be the same on all ranks. The
 * function must be associative; it is applied in an order that depends on the algorithm when `commutative` is not 0,
 * and in rank order otherwise. A call with it is RESOURCE_EXHAUSTED where there is no thread for it. */
ENTRAIN_API entrain_status_t entrain_reduction_user(entrain_reduce_fn combine, void* user, uint32_t signature,
                                                    int32_t commutative, entrain_reduction_t** reduction);
/* *busy: 1 while the function of entrain_reduction_user is running, also for a call that has ended meanwhile. 0 once all
 * calls with it are over: it runs no more, and what `user` points to may be freed. 0 of other reductions. Any thread. */
ENTRAIN_API entrain_status_t entrain_reduction_busy(const entrain_reduction_t* reduction, int32_t* busy);
/* The sum of factor * contribution; each rank has a factor of its own (the same object or another). The product is rounded
 * to the type. Finite; whole when the elements are integers. */
ENTRAIN_API entrain_status_t entrain_reduction_premultiplied_sum(double factor, entrain_reduction_t** reduction);
/* The mean of the contributions of `ranks` ranks, weighted by weights[r] / sum of weights: what EDiT makes of pseudo-gradients
 * (arXiv 2412.07210). Floats, accumulated in f32 (f64 in f64) in rank order and rounded once. weights: finite, >= 0,
 * not all 0; the same on all ranks (MISMATCH otherwise), as many as the communicator has. A rank of weight 0 contributes
 * nothing, even if it has NaN. For all_reduce, reduce and reduce_scatter. */
ENTRAIN_API entrain_status_t entrain_reduction_weighted(const double* weights, int32_t ranks,
                                                        entrain_reduction_t** reduction);

enum { /* entrain_gta_config_t.consensus: what elects the sign of an element. A tie elects plus, a sum that is NaN minus */
  ENTRAIN_CONSENSUS_NONE = 0, /* nothing: all contributions count */
  ENTRAIN_CONSENSUS_SUM = 1,  /* the sum of weight * contribution */
  ENTRAIN_CONSENSUS_COUNT = 2 /* one vote a rank; who has a zero, a NaN or weight 0 has none */
};

enum { /* entrain_gta_config_t.sparsification: what of a contribution counts and travels; the rest is zero */
  ENTRAIN_SPARSIFY_NONE = 0,           /* everything */
  ENTRAIN_SPARSIFY_MAGNITUDE = 1,      /* the floor(density * n) largest of the rank's whole vector of n elements; of
                                        * equal ones the first, and a NaN is larger than all */
  ENTRAIN_SPARSIFY_RANDOM = 2,         /* each with probability density: other ones on every rank and in every call */
  ENTRAIN_SPARSIFY_RESCALED_RANDOM = 3 /* the same, divided by density */
};
enum { /* entrain_gta_config_t.wire_format: how contributions, and the result of an all_reduce, travel */
  ENTRAIN_WIRE_F32 = 0,  /* as they are, whatever their type */
  ENTRAIN_WIRE_BF16 = 1, /* this and the next two: for f32 elements only */
  ENTRAIN_WIRE_INT8 = 2, /* -127 .. 127 times an f32 scale a block; a block that has a NaN or an infinity is all NaN */
  ENTRAIN_WIRE_INT4 = 3  /* -7 .. 7, likewise */
};
enum { /* entrain_gta_config_t.wire_rounding */
  ENTRAIN_ROUND_NEAREST = 0,
  ENTRAIN_ROUND_STOCHASTIC = 1 /* up or down, so that the mean is right */
};

typedef struct entrain_gta_config {
  size_t size;
  const double* weights;  /* by rank, finite; NULL (default): 1 each. Copied */
  int32_t ranks;          /* how many weights: as many as the communicator has ranks; 0 (default) with NULL */
  int32_t consensus;      /* ENTRAIN_CONSENSUS_*; default NONE */
  int32_t normalize;      /* 1 (default): divided by the sum of the weights of what was summed; 0: the sum */
  int32_t sparsification; /* ENTRAIN_SPARSIFY_*; default NONE */
  double density;         /* 0 < density < 1 with sparsification; 1 (default) without */
  uint64_t seed;          /* of random sparsification and stochastic rounding; default 0 */
  int32_t wire_format;    /* ENTRAIN_WIRE_*; default F32 */
  int32_t wire_block;     /* int8, int4: values a scale, a multiple of 16 up to 65536; 0 (default): 256 */
  int32_t wire_rounding;  /* ENTRAIN_ROUND_*; default NEAREST; for other formats than F32 */
  int32_t error_feedback; /* 1: what a call of this tag and length did not send (not chosen, or rounded off) is added to the
                           * next one's contribution; f32 elements; not with rescaled_random. Default 0 */
} entrain_gta_config_t;
ENTRAIN_API void entrain_gta_config_init_sized(entrain_gta_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_gta_config_init(entrain_gta_config_t* config) {
  entrain_gta_config_init_sized(config, sizeof(*config));
}

/* Generalised task arithmetic: element by element, the sum over the ranks of weight * contribution; with consensus over
 * those ranks alone whose weight * contribution has the elected sign (a zero and a NaN have none). Divisors within 1e-8 of 0
 * count as 1. Floats, accumulated in f32 (f64 in f64) in rank order and rounded once, in one pass and for the bytes
 * of one all-reduce. The same on all ranks (MISMATCH otherwise). A rank of weight 0 contributes nothing, even if it has NaN.
 * For all_reduce, reduce and reduce_scatter. Without consensus, a weighted mean.
 * With sparsification or a wire format, for all_reduce and reduce_scatter: what is left travels as indices or a bitmap,
 * whichever is smaller, and values; the contribution is packed before the call returns, `in` not read afterwards.
 * The result of an all_reduce is what all ranks read from the wire, the same bits; that of a reduce_scatter is not
 * rounded to the format. Settings without effect are refused with a sentence that says what to set. */
ENTRAIN_API entrain_status_t entrain_reduction_gta(const entrain_gta_config_t* config,
                                                   entrain_reduction_t** reduction);

/* Other weights from the next call on, for a reduction of entrain_reduction_gta: as in its config, NULL and 0 for 1 each.
 * What it remembers stays. While no call is being started. */
ENTRAIN_API entrain_status_t entrain_reduction_set_weights(entrain_reduction_t* reduction, const double* weights,
                                                           int32_t ranks);
/* What a sparsified or encoded reduction remembers between calls, for checkpoints: how many there were, since random numbers
 * differ from call to call, and what error feedback has not sent yet. This rank's own; 0 bytes for other reductions.
 * While no call is being started. */
ENTRAIN_API entrain_status_t entrain_reduction_state_size(const entrain_reduction_t* reduction, size_t* bytes);
/* bytes: what state_size says (INVALID_ARGUMENT otherwise). */
ENTRAIN_API entrain_status_t entrain_reduction_state_save(const entrain_reduction_t* reduction, void* state, size_t bytes);
/* INVALID_ARGUMENT for what state_save did not write; then nothing has changed. */
ENTRAIN_API entrain_status_t entrain_reduction_state_load(entrain_reduction_t* reduction, const void* state,
                                                          size_t bytes);
/* Calls that use it keep what they need. `user` must live until those calls are done and its function has returned
 * (entrain_reduction_busy). */
ENTRAIN_API void entrain_reduction_destroy(entrain_reduction_t* reduction);

/* ---- Collectives ---------------------------------------------------------------------------------------------- */

/* out[i] = in_0[i] (+) in_1[i] (+) ...: `count` elements everywhere. In place: out == in. Every rank gets the same
 * bits; see ENTRAIN_DETERMINISM_* for what they depend on. */
ENTRAIN_API entrain_status_t entrain_all_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                entrain_dtype_t dtype, entrain_op_t op,
                                                const entrain_call_options_t* options, entrain_work_t** work);

/* `in`: size * count elements; `out`: count elements, this rank's part of the reduced whole. In place: out points at
 * this rank's part of in. */
ENTRAIN_API entrain_status_t entrain_reduce_scatter(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                    entrain_dtype_t dtype, entrain_op_t op,
                                                    const entrain_call_options_t* options, entrain_work_t** work);

/* `in`: count elements; `out`: size * count elements, every rank's part in rank order. In place: in points at this
 * rank's part of out. */
ENTRAIN_API entrain_status_t entrain_all_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                entrain_dtype_t dtype, const entrain_call_options_t* options,
                                                entrain_work_t** work);

/* `buffer`: count elements; the root's are copied to all others. */
ENTRAIN_API entrain_status_t entrain_broadcast(entrain_comm_t* comm, void* buffer, size_t count, entrain_dtype_t dtype,
                                               int32_t root, const entrain_call_options_t* options,
                                               entrain_work_t** work);

/* `out` on the root: the reduced whole, `count` elements; elsewhere it is not used and may be NULL. In place on the root:
 * out == in. */
ENTRAIN_API entrain_status_t entrain_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                            entrain_dtype_t dtype, entrain_op_t op, int32_t root,
                                            const entrain_call_options_t* options, entrain_work_t** work);

/* `in`: count elements; `out` on the root: size * count elements, every rank's part in rank order; elsewhere not used.
 * In place on the root: in points at the root's part of out. */
ENTRAIN_API entrain_status_t entrain_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                            entrain_dtype_t dtype, int32_t root,
                                            const entrain_call_options_t* options, entrain_work_t** work);

/* `in` on the root: size * count elements, every rank's part in rank order; elsewhere not used. `out`: count elements,
 * this rank's part. In place on the root: out points at the root's part of in. */
ENTRAIN_API entrain_status_t entrain_scatter(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                             entrain_dtype_t dtype, int32_t root,
                                             const entrain_call_options_t* options, entrain_work_t** work);

/* `in`: size * count elements, part r goes to rank r; `out`: size * count elements, part r came from rank r. In place:
 * out == in. */
ENTRAIN_API entrain_status_t entrain_all_to_all(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                entrain_dtype_t dtype, const entrain_call_options_t* options,
                                                entrain_work_t** work);

/* out[i] on rank r = in_0[i] (+) ... (+) in_r[i], in this order; exclusive: up to rank r - 1, and rank 0's out stays as it
 * is. `count` elements everywhere. In place: out == in. Not for avg. */
ENTRAIN_API entrain_status_t entrain_scan(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                          entrain_dtype_t dtype, entrain_op_t op,
                                          const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_exclusive_scan(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                    entrain_dtype_t dtype, entrain_op_t op,
                                                    const entrain_call_options_t* options, entrain_work_t** work);

/* ---- Parts of uneven length ----------------------------------------------------------------------------------- */

/* As the calls above, with parts of counts[r] elements instead of `count`. Parts lie side by side in rank order: part r
 * begins behind parts 0 .. r - 1. `counts`: `size` entries, 0 allowed; read before the call returns. */

/* counts: the same on all ranks (MISMATCH otherwise). */
ENTRAIN_API entrain_status_t entrain_all_gather_v(entrain_comm_t* comm, const void* in, void* out,
                                                  const size_t* counts, entrain_dtype_t dtype,
                                                  const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_reduce_scatter_v(entrain_comm_t* comm, const void* in, void* out,
                                                      const size_t* counts, entrain_dtype_t dtype, entrain_op_t op,
                                                      const entrain_call_options_t* options, entrain_work_t** work);
/* `count`: the elements of this rank's part. `counts`: used on the root only, may be NULL elsewhere. A part that is not as
 * long as the root expects fails the call (MISMATCH). */
ENTRAIN_API entrain_status_t entrain_gather_v(entrain_comm_t* comm, const void* in, size_t count, void* out,
                                              const size_t* counts, entrain_dtype_t dtype, int32_t root,
                                              const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_scatter_v(entrain_comm_t* comm, const void* in, const size_t* counts, void* out,
                                               size_t count, entrain_dtype_t dtype, int32_t root,
                                               const entrain_call_options_t* options, entrain_work_t** work);
/* in_counts[r] elements go to rank r, which expects them: its out_counts[this rank] is the same (MISMATCH otherwise, at
 * the latest in the next call on a rank that got what it expected). In place (out == in): in_counts and out_counts are
 * equal. */
ENTRAIN_API entrain_status_t entrain_all_to_all_v(entrain_comm_t* comm, const void* in, const size_t* in_counts,
                                                  void* out, const size_t* out_counts, entrain_dtype_t dtype,
                                                  const entrain_call_options_t* options, entrain_work_t** work);

/* ---- Parts that lie apart ------------------------------------------------------------------------------------
 * The calls above with one address a rank, `size` of them in rank order, for parts that are buffers of their own. A list
 * call on one rank and the plain call (with counts: the v-call) on another match. `counts`: elements by rank; NULL: `count`
 * elements for every rank, and then counts is NULL on all ranks; where a rank's `count` is given too, it is its own entry.
 * An entry of 0 elements may be NULL. Lists and counts are read before the function returns.
 *
 * Parts that lie side by side in rank order are used where they are. Otherwise the library copies: all parts into memory
 * that it makes for the call before it starts, and the result into the parts when it ends, which is what a caller would do
 * by hand and no quicker. The result of a call with a work is copied by the thread that makes progress, which serves no
 * other call meanwhile. Such parts are of host memory, and not for a batch: UNIMPLEMENTED otherwise. */

/* As entrain_all_gather: `in` has count elements; outs[r] receives rank r's. */
ENTRAIN_API entrain_status_t entrain_all_gather_list(entrain_comm_t* comm, const void* in, size_t count,
                                                     void* const* outs, const size_t* counts, entrain_dtype_t dtype,
                                                     const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_reduce_scatter: ins[r] is this rank's contribution to rank r's result; `out` has count elements. */
ENTRAIN_API entrain_status_t entrain_reduce_scatter_list(entrain_comm_t* comm, const void* const* ins,
                                                         const size_t* counts, void* out, size_t count,
                                                         entrain_dtype_t dtype, entrain_op_t op,
                                                         const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_gather: outs and counts are the root's; elsewhere outs is not used, and counts only for whether it is NULL. */
ENTRAIN_API entrain_status_t entrain_gather_list(entrain_comm_t* comm, const void* in, size_t count, void* const* outs,
                                                 const size_t* counts, entrain_dtype_t dtype, int32_t root,
                                                 const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_scatter: ins and counts are the root's, likewise. */
ENTRAIN_API entrain_status_t entrain_scatter_list(entrain_comm_t* comm, const void* const* ins, const size_t* counts,
                                                  void* out, size_t count, entrain_dtype_t dtype, int32_t root,
                                                  const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_all_to_all_v: ins[r] has in_counts[r] elements for rank r, outs[r] receives out_counts[r] from it. Both counts
 * are required; a rank that calls entrain_all_to_all does not match. */
ENTRAIN_API entrain_status_t entrain_all_to_all_list(entrain_comm_t* comm, const void* const* ins,
                                                     const size_t* in_counts, void* const* outs,
                                                     const size_t* out_counts, entrain_dtype_t dtype,
                                                     const entrain_call_options_t* options, entrain_work_t** work);

/* Done when every rank has called it. */
ENTRAIN_API entrain_status_t entrain_barrier(entrain_comm_t* comm, const entrain_call_options_t* options,
                                             entrain_work_t** work);

/* To and from one peer, which makes the opposite call with the same count and type. Matched by tag, and within one tag
 * (or untagged) in program order per pair and direction; independent of the order of collectives. A send is done when
 * its buffer may be reused; whatever its length, that may be after the peer has called its receive. So ranks that
 * send to each other at once take works or a batch. `peer` must be another rank. */
ENTRAIN_API entrain_status_t entrain_send(entrain_comm_t* comm, const void* in, size_t count, entrain_dtype_t dtype,
                                          int32_t peer, const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_recv(entrain_comm_t* comm, void* out, size_t count, entrain_dtype_t dtype,
                                          int32_t peer, const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_recv, from whichever rank sends with this tag (or untagged). *source: that rank, written as `out` is: when the
 * call has succeeded, of a started or batched one too, so that it must live as long; may be NULL. entrain_work_info tells
 * it as well. A rank's messages of one tag come in the order sent; of several ranks' messages that have come, no rank's
 * waits for ever. Receives of one tag, from any rank and from one, take messages in program order: a message goes to the
 * first of them that it fits. So an entrain_recv behind an entrain_recv_any that still waits has to wait for that one,
 * also when its own rank's message has come. A rank that sends something else than `count` elements of this type fails
 * both (MISMATCH). At the deadline the error names the ranks that have not sent (entrain_comm_late). It ends as
 * entrain_recv does when the communicator ends, and with PEER_LOST when all other ranks have destroyed theirs and are
 * gone. Host memory without a stream: UNIMPLEMENTED otherwise; and receives of the same tag into device memory do not keep
 * this order. */
ENTRAIN_API entrain_status_t entrain_recv_any(entrain_comm_t* comm, void* out, size_t count, entrain_dtype_t dtype,
                                              int32_t* source, const entrain_call_options_t* options,
                                              entrain_work_t** work);

/* ---- Batches -------------------------------------------------------------------------------------------------- */

/* Several calls on one communicator, started together. Calls are added by giving the batch in their options: they are
 * checked then, and their buffers and timeouts kept. Starting numbers them in the order they were added, which must be
 * the same on all ranks, as if they had been made one after another; they run side by side. A batch can be started
 * again once the last start is done, with whatever is in the buffers then. It keeps the communicator alive; `user` of
 * reductions that its calls use must live as long as it. One thread at a time. */
ENTRAIN_API entrain_status_t entrain_batch_create(entrain_comm_t* comm, entrain_batch_t** batch);
/* Done when all calls are; its status is that of the first call, in their order, that failed. */
ENTRAIN_API entrain_status_t entrain_batch_start(entrain_batch_t* batch, entrain_work_t** work);
/* What was started goes on. */
ENTRAIN_API void entrain_batch_destroy(entrain_batch_t* batch);

/* ---- Started calls -------------------------------------------------------------------------------------------- */

/* *done: 1 when the call is over, however it ended; the return value is then its status. 0 and ENTRAIN_OK: still
 * running. Makes progress; never blocks. Any thread. */
ENTRAIN_API entrain_status_t entrain_work_test(entrain_work_t* work, int32_t* done);
/* Waits at most timeout_ns (< 0: as long as the operation's own deadline allows), then IN_PROGRESS. Otherwise the call's
 * status. Waiting again, from several threads too, is legal and gives the same. */
ENTRAIN_API entrain_status_t entrain_work_wait(entrain_work_t* work, int64_t timeout_ns);
/* The record of a call that failed; code OK when it did not. */
ENTRAIN_API entrain_status_t entrain_work_error(const entrain_work_t* work, entrain_error_t* error);
typedef struct entrain_work_info_t {
  size_t size;
  uint64_t sequence;  /* as in entrain_error_t; 0: of a batch, which has no number, and of a receive that has none yet,
                       * since nothing has come for an entrain_recv_any, itself or one before it */
  int64_t tag;        /* -1: untagged */
  int64_t elapsed_ns; /* from its start until now, also when it is done */
  int32_t done;       /* 1: it is */
  int32_t reserved;   /* 0 */
  char operation[32]; /* "all_reduce"; "batch" */
  char comm[64];      /* the communicator's name: "world"; of a part of color 3 "world/3"; cut to fit */
  int64_t source;     /* of an entrain_recv_any: the rank whose message it takes; -1: of other calls, and until that is known */
} entrain_work_info_t;
ENTRAIN_API void entrain_work_info_init_sized(entrain_work_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_work_info_init(entrain_work_info_t* info) {
  entrain_work_info_init_sized(info, sizeof(*info));
}
/* What the work is. Any thread; never blocks, and makes no progress. */
ENTRAIN_API entrain_status_t entrain_work_info(const entrain_work_t* work, entrain_work_info_t* info);

/* Calls done(status, user) once, when the call is over: on a thread that the runtime has for such functions alone, one
 * after the other, or before this returns when it is over already. done() may block, for a lock say: nobody waits for it but
 * the next done(), and all other calls go on and keep their deadlines. It may start calls that have a work, test, free and
 * notify works, ask for anything, and abort or destroy communicators, also the last one of the runtime. A call that may
 * wait is FAILED_PRECONDITION at once: "entrain_barrier: called from the done() of all_reduce #2, which must not wait"
 * (calls without a work, entrain_work_wait for what is not over, creating, splitting and draining, steps of training;
 * stores excepted; what ends in _start or _work does not wait). It may be called, or still run, after the communicator and the runtime were destroyed, and `user` must
 * live until it has returned; when the process exits, what has not been called never is. RESOURCE_EXHAUSTED: there is no
 * thread for it, and it will not be called. */
typedef void (*entrain_done_fn)(entrain_status_t status, void* user);
ENTRAIN_API entrain_status_t entrain_work_notify(entrain_work_t* work, entrain_done_fn done, void* user);
/* *fd: a descriptor that becomes readable when the call is over and stays so, for poll, epoll and event loops. The
 * handle's own: valid until it is freed, and not to be read or closed. Under ENTRAIN_PROGRESS_CALLER somebody must still
 * call entrain_work_test. */
ENTRAIN_API entrain_status_t entrain_work_descriptor(entrain_work_t* work, int* fd);
/* Frees the handle; never blocks. An unfinished call goes on, and its buffers stay lent until it is over. */
ENTRAIN_API void entrain_work_free(entrain_work_t* work);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_COLLECTIVES_H_ */
