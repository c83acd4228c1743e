/* Collectives, send and receive, and works (handles of started calls).
 *
 * All functions of this header: any thread may call. A call blocks only if `work` is NULL. `options` may be NULL
 * (defaults). Every function can return INVALID_ARGUMENT; the text names the argument and its value. After the
 * communicator has ended, every call that is started returns the error that ended it.
 *
 * A call is complete on a rank when the rank has received all data that it needs, and its buffers may be reused. Some
 * ranks need no data: the root of a broadcast or scatter, and the other ranks of a reduce or gather. On such a rank the
 * call may be complete before other ranks have started it. But if the buffer is large, such a rank waits until the
 * receivers take the data.
 *
 * If ranks differ in operation, type, count, reduction or root, all ranks receive MISMATCH. The text names both calls
 * and the ranks that made each of them. A rank on which the call was already complete receives the error from a later
 * call or wait. The guilty rank (entrain_error_t.guilty_rank) is the lowest rank whose call differs from the most
 * frequent call. If two calls are equally frequent, guilty_rank is -1, for example if the communicator has two
 * ranks. */
#ifndef ENTRAIN_COLLECTIVES_H_
#define ENTRAIN_COLLECTIVES_H_

#include "entrain/comm.h"
#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* entrain_call_options_t.wait */
  ENTRAIN_WAIT_FOREGROUND = 0, /* poll for a short time, then yield the core, then sleep: lowest latency */
  ENTRAIN_WAIT_BACKGROUND = 1  /* sleep at once: for threads that should not occupy a core */
};

typedef struct entrain_call_options_t {
  size_t size;
  int64_t tag;        /* -1: untagged, matched by program order; 0 to 2^20 - 2: matched by this number */
  int64_t timeout_ns; /* deadline of the call; 0: the communicator's default */
  int32_t wait;       /* ENTRAIN_WAIT_*: how this call waits, and how entrain_work_wait waits for its work */
  int32_t memory;     /* ENTRAIN_MEMORY_*: the memory of the buffers. A barrier has no buffers and allows only HOST. If
                         one rank uses DEVICE, all ranks must (MISMATCH otherwise). All DEVICE buffers of a communicator
                         must be on one device. Destroy the communicator on all ranks before you free DEVICE buffers.
                         Never free a buffer that a call of any rank uses. The reason: other processes of the host keep
                         DEVICE buffers open until they destroy the communicator. Until then the memory is not really
                         free, and a peer could read other data at its addresses. CUDA leaves the behaviour undefined */
  void* stream;       /* CUstream (cudaStream_t) that orders the call. The call begins when the device has reached the
                         stream's position at the call. Work that is enqueued on the stream after the function has
                         returned waits until the call is over, even if the call fails. If `work` is not NULL, the host
                         does not wait.
                         - NULL: for DEVICE the default stream of the device, for HOST_PINNED no stream. HOST requires
                           NULL.
                         - If ranks are threads of one process and share a device, each of them needs its own stream for
                           calls with a work. On a common stream their calls would wait for each other.
                         - If NCCL may execute the first untagged collective of a communicator, make this collective
                           without a work. NCCL initialises itself in it, and may wait for all streams of the device.
                         - CUDA frees device memory only when all streams of the process on the device have finished. So
                           it waits for the calls on these streams, too */
  entrain_reduction_t* reduction; /* the reduction if op is ENTRAIN_REDUCTION */
  entrain_batch_t* batch; /* if not NULL, the function checks the call and adds it to this batch, but does not start it.
                             `work` must be NULL */
  int32_t determinism;    /* ENTRAIN_DETERMINISM_*, for reductions; the same on all ranks (MISMATCH otherwise) */
  int32_t reserved;       /* must be 0 */
} entrain_call_options_t;

static ENTRAIN_INLINE void entrain_call_options_init(entrain_call_options_t* options) {
  entrain_struct_init(ENTRAIN_STRUCT_CALL_OPTIONS, options, sizeof(*options));
}

/* ---- Reductions as objects ------------------------------------------------------------------------------------ */

/* A reduction function of the caller: computes dst[i] = dst[i] (+) src[i] for `count` elements. Must give the same bits
 * on every rank for the same arguments. Returns 0 on success.
 *
 * Each communicator has a thread that runs only such functions, one at a time. dst and src are memory of the library.
 * The function may block, for example on an interpreter's lock. All other calls still make progress, and every call
 * keeps its deadline. The call may end while the function runs: by its deadline, by an abort, or with the communicator
 * or runtime. In this case the library does not wait for the function, ignores its output, and does not call it again
 * for this call. On a deadline all ranks receive TIMED_OUT: "all_reduce #4: timed out on rank 1 after 0.5 s (deadline
 * 0.5 s) waiting for rank 1: it is in the user reduction of all_reduce #4, which has not returned for 0.499 s". The log
 * also reports a function that has run for a second.
 *
 * Inside the function, calls that need the engine return FAILED_PRECONDITION ("entrain_barrier: called from the user
 * reduction of all_reduce #2, which must not use the engine"). Calls with a work return this error, too. The reason:
 * the algorithm determines how often and on which ranks the function runs, so a call inside it would have no
 * counterpart on other ranks. Inside the function, a communicator cannot be destroyed, nor an object made from one: the
 * library writes an error to the log instead. Queries are allowed.
 *
 * A result other than 0 ends the communicator on all ranks with ABORTED: "the user reduction of all_reduce #4 returned
 * 5". The text also names the rank. `out` is then undefined on this rank, and on all ranks on which the call was not
 * complete. */
typedef int32_t (*entrain_reduce_fn)(void* dst, const void* src, size_t count, entrain_dtype_t dtype, void* user);

/* Creates a reduction for a built-in operator. The caller owns *reduction, here and in the functions below. Local. */
ENTRAIN_API entrain_status_t entrain_reduction_builtin(entrain_op_t op, entrain_reduction_t** reduction);
/* Creates a reduction for a function of the caller. `signature` is a number that identifies the function; it must be
 * the same on all ranks. The function must be associative. If `commutative` is 0, the library combines the
 * contributions in rank order. Otherwise the algorithm determines the order. A call with this reduction returns
 * RESOURCE_EXHAUSTED if the library cannot start the thread for the function. */
ENTRAIN_API entrain_status_t entrain_reduction_user(entrain_reduce_fn combine, void* user, uint32_t signature,
                                                    int32_t commutative, entrain_reduction_t** reduction);
/* Writes to *busy whether the function of entrain_reduction_user runs at the moment: 1 or 0. The function may run even
 * if its call has ended. For other reductions writes 0. If all calls with the reduction are over and *busy is 0, the
 * function does not run again. Then the caller may free the object that `user` points to. Any thread. */
ENTRAIN_API entrain_status_t entrain_reduction_busy(const entrain_reduction_t* reduction, int32_t* busy);
/* Creates a reduction to the sum of factor * contribution. Each rank may give another factor. The product is rounded to
 * the element type. `factor` is finite, and an integer if the elements are integers. */
ENTRAIN_API entrain_status_t entrain_reduction_premultiplied_sum(double factor, entrain_reduction_t** reduction);
/* Creates a reduction to the weighted mean: the sum over all ranks r of contribution_r * weights[r] / (sum of weights).
 * EDiT combines pseudo-gradients in this way (arXiv 2412.07210). The elements must be floats; the sum is accumulated in
 * f32 (f64 for f64) in rank order and rounded once. `weights` has `ranks` entries, one for each rank of the
 * communicator: finite, >= 0, not all 0, and the same on all ranks (MISMATCH otherwise). A rank of weight 0 contributes
 * nothing, even if its data contain NaN. Allowed in all_reduce, reduce and reduce_scatter. */
ENTRAIN_API entrain_status_t entrain_reduction_weighted(const double* weights, int32_t ranks,
                                                        entrain_reduction_t** reduction);

enum { /* entrain_gta_config_t.consensus: the rule that elects a sign for each element. A tie elects plus. With SUM, a
          sum that is NaN elects minus */
  ENTRAIN_CONSENSUS_NONE = 0, /* no election: all contributions count */
  ENTRAIN_CONSENSUS_SUM = 1,  /* the sign of the sum of weight * contribution */
  ENTRAIN_CONSENSUS_COUNT = 2 /* the sign of most contributions; a zero, a NaN or a contribution of weight 0 does not
                                 count */
};

enum { /* entrain_gta_config_t.sparsification: the elements of a contribution that are sent; the others count as zero */
  ENTRAIN_SPARSIFY_NONE = 0,           /* all elements */
  ENTRAIN_SPARSIFY_MAGNITUDE = 1,      /* the floor(density * n) elements with the largest magnitudes in the rank's
                                          vector of n elements (INVALID_ARGUMENT if that is 0). Of equal magnitudes the
                                          first counts as larger, and NaN counts as larger than all numbers */
  ENTRAIN_SPARSIFY_RANDOM = 2,         /* each element with probability `density`, chosen anew on every rank and in
                                          every call */
  ENTRAIN_SPARSIFY_RESCALED_RANDOM = 3 /* as RANDOM, and the values are divided by `density` */
};
enum { /* entrain_gta_config_t.wire_format: the encoding of contributions, and of the result of an all_reduce */
  ENTRAIN_WIRE_F32 = 0,  /* elements of any type, unchanged */
  ENTRAIN_WIRE_BF16 = 1, /* values rounded to bf16. This format and the formats below are for f32 elements only */
  ENTRAIN_WIRE_INT8 = 2, /* integers -127 to 127 times one f32 scale per block; a block with a NaN or an infinity
                            becomes all NaN */
  ENTRAIN_WIRE_INT4 = 3, /* as INT8, with integers -7 to 7 */
  ENTRAIN_WIRE_INT2 = 4  /* two bits per value: -1, -1/3, 1/3 or 1 times the scale of its block. Only with
                            sparsification. The result of an all_reduce is sent as BF16 in this case */
};
enum { /* entrain_gta_config_t.wire_rounding */
  ENTRAIN_ROUND_NEAREST = 0,
  ENTRAIN_ROUND_STOCHASTIC = 1 /* up or down at random, with the correct expected value */
};

typedef struct entrain_gta_config_t {
  size_t size;
  const double* weights;  /* finite weights in rank order; NULL (default): weight 1 for each rank. Copied */
  int32_t ranks;          /* number of weights: the size of the communicator; 0 (default) if weights is NULL */
  int32_t consensus;      /* ENTRAIN_CONSENSUS_*; default NONE */
  int32_t normalize;      /* 1 (default): divide the sum by the sum of the weights of the ranks that take part; 0: do
                             not divide */
  int32_t sparsification; /* ENTRAIN_SPARSIFY_*; default NONE */
  double density;         /* 0 < density < 1 with sparsification; 1 (default) without */
  uint64_t seed;          /* seed of random sparsification and stochastic rounding; default 0 */
  int32_t wire_format;    /* ENTRAIN_WIRE_*; default F32 */
  int32_t wire_block;     /* INT8, INT4, INT2: values per scale, a multiple of 16 up to 65536; 0 (default): 256 */
  int32_t wire_rounding;  /* ENTRAIN_ROUND_*; default NEAREST; only for formats other than F32 */
  int32_t error_feedback; /* 1: the library keeps the part of a contribution that it did not send, because
                             sparsification or rounding removed it. It adds this part to the contribution of the next
                             call with the same tag and length. For f32 elements; not with RESCALED_RANDOM. 0 (default):
                             this part is lost */
} entrain_gta_config_t;
static ENTRAIN_INLINE void entrain_gta_config_init(entrain_gta_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_GTA_CONFIG, config, sizeof(*config));
}

/* Creates a reduction by generalised task arithmetic. Each element of the result is the sum of weight * contribution
 * over the ranks that take part in this element. Without consensus all ranks take part. With a consensus, a rank takes
 * part if its weight * contribution has the elected sign. (A zero and a NaN have no sign.) With `normalize` the sum is
 * divided by the sum of the weights of the ranks that take part. A divisor within 1e-8 of 0 counts as 1. So with
 * `normalize` and without consensus the result is a weighted mean. The elements must be floats; the sum is accumulated
 * in f32 (f64 for f64) in rank order and rounded once. A call with this reduction sends as many bytes as one
 * all_reduce. The config must be the same on all ranks (MISMATCH otherwise). A rank of weight 0 contributes nothing,
 * even if its data contain NaN. Allowed in all_reduce, reduce and reduce_scatter.
 *
 * With sparsification or a wire format other than F32, the reduction is allowed only in all_reduce and reduce_scatter.
 * The selected elements are sent with their indices or with a bitmap; the library chooses the smaller form. The library
 * encodes the contribution before the call returns, and does not read `in` afterwards. The result of an all_reduce is
 * rounded to the wire format, and has the same bits on all ranks. The result of a reduce_scatter is not rounded to the
 * wire format. Returns INVALID_ARGUMENT for settings that have no effect; the text says what to set. */
ENTRAIN_API entrain_status_t entrain_reduction_gta(const entrain_gta_config_t* config,
                                                   entrain_reduction_t** reduction);

/* Sets the weights of a reduction from entrain_reduction_gta for later calls. The arguments are as in
 * entrain_gta_config_t; NULL and 0 mean weight 1 for each rank. The state of the reduction stays (see
 * entrain_reduction_state_size). Must not run while another thread starts a call with the reduction. */
ENTRAIN_API entrain_status_t entrain_reduction_set_weights(entrain_reduction_t* reduction, const double* weights,
                                                           int32_t ranks);
/* Writes to *bytes the size of the reduction's state, for checkpoints. Only reductions with sparsification or a wire
 * format other than F32 keep a state between calls; for other reductions the size is 0. The state holds the number of
 * calls, which determines the random numbers. It also holds the values that error feedback has not sent yet. The size
 * may differ between ranks. This function and the two below must not run while another thread starts a call with the
 * reduction. */
ENTRAIN_API entrain_status_t entrain_reduction_state_size(const entrain_reduction_t* reduction, size_t* bytes);
/* Copies the state to `state`. `bytes` must be the size from entrain_reduction_state_size (INVALID_ARGUMENT
 * otherwise). */
ENTRAIN_API entrain_status_t entrain_reduction_state_save(const entrain_reduction_t* reduction, void* state, size_t bytes);
/* Restores a state. If entrain_reduction_state_save did not write these bytes, returns INVALID_ARGUMENT and changes
 * nothing. */
ENTRAIN_API entrain_status_t entrain_reduction_state_load(entrain_reduction_t* reduction, const void* state,
                                                          size_t bytes);
/* Frees the handle. Unfinished calls keep what they need of the reduction. The object that `user` points to must live
 * until these calls are over and the function has returned (entrain_reduction_busy). */
ENTRAIN_API void entrain_reduction_destroy(entrain_reduction_t* reduction);

/* ---- Collectives ---------------------------------------------------------------------------------------------- */

/* Reduces: out[i] = in_0[i] (+) in_1[i] (+) ... on all ranks. `in` and `out`: `count` elements. In place: out == in.
 * Every rank gets the same bits. ENTRAIN_DETERMINISM_* (comm.h) states on which inputs the bits depend. */
ENTRAIN_API entrain_status_t entrain_all_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                entrain_dtype_t dtype, entrain_op_t op,
                                                const entrain_call_options_t* options, entrain_work_t** work);

/* Reduces, and gives each rank its part of the result. `in`: size * count elements; `out`: `count` elements. In place:
 * out points to this rank's part of in. */
ENTRAIN_API entrain_status_t entrain_reduce_scatter(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                    entrain_dtype_t dtype, entrain_op_t op,
                                                    const entrain_call_options_t* options, entrain_work_t** work);

/* Gathers the parts of all ranks on every rank. `in`: `count` elements; `out`: size * count elements, the parts in rank
 * order. In place: in points to this rank's part of out. */
ENTRAIN_API entrain_status_t entrain_all_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                entrain_dtype_t dtype, const entrain_call_options_t* options,
                                                entrain_work_t** work);

/* Copies the root's buffer to all other ranks. `buffer`: `count` elements. */
ENTRAIN_API entrain_status_t entrain_broadcast(entrain_comm_t* comm, void* buffer, size_t count, entrain_dtype_t dtype,
                                               int32_t root, const entrain_call_options_t* options,
                                               entrain_work_t** work);

/* Reduces to the root. `in`: `count` elements; `out` on the root: `count` elements. Other ranks do not use `out`; it
 * may be NULL. In place on the root: out == in. */
ENTRAIN_API entrain_status_t entrain_reduce(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                            entrain_dtype_t dtype, entrain_op_t op, int32_t root,
                                            const entrain_call_options_t* options, entrain_work_t** work);

/* Gathers the parts of all ranks on the root. `in`: `count` elements; `out` on the root: size * count elements, the
 * parts in rank order. Other ranks do not use `out`. In place on the root: in points to the root's part of out. */
ENTRAIN_API entrain_status_t entrain_gather(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                            entrain_dtype_t dtype, int32_t root,
                                            const entrain_call_options_t* options, entrain_work_t** work);

/* Sends part r of the root's `in` to rank r. `in` on the root: size * count elements, the parts in rank order; other
 * ranks do not use `in`. `out`: `count` elements. In place on the root: out points to the root's part of in. */
ENTRAIN_API entrain_status_t entrain_scatter(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                             entrain_dtype_t dtype, int32_t root,
                                             const entrain_call_options_t* options, entrain_work_t** work);

/* Sends part r of `in` to rank r, and receives part r of `out` from rank r. `in` and `out`: size * count elements. In
 * place: out == in. */
ENTRAIN_API entrain_status_t entrain_all_to_all(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                entrain_dtype_t dtype, const entrain_call_options_t* options,
                                                entrain_work_t** work);

/* Prefix reductions: out[i] on rank r = in_0[i] (+) ... (+) in_r[i], in this order. In the exclusive scan the last term
 * is in_(r-1), and `out` on rank 0 does not change. `in` and `out`: `count` elements. In place: out == in. Not for
 * avg. */
ENTRAIN_API entrain_status_t entrain_scan(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                          entrain_dtype_t dtype, entrain_op_t op,
                                          const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_exclusive_scan(entrain_comm_t* comm, const void* in, void* out, size_t count,
                                                    entrain_dtype_t dtype, entrain_op_t op,
                                                    const entrain_call_options_t* options, entrain_work_t** work);

/* ---- Parts of uneven length ----------------------------------------------------------------------------------- */

/* These calls differ from those above in one point: part r has counts[r] elements instead of `count`. The parts lie
 * next to each other in rank order: part r begins after parts 0 to r - 1. `counts` has one entry for each rank, which
 * may be 0. The library reads `counts` before the call returns. */

/* As entrain_all_gather and entrain_reduce_scatter. `counts` must be the same on all ranks (MISMATCH otherwise). */
ENTRAIN_API entrain_status_t entrain_all_gather_v(entrain_comm_t* comm, const void* in, void* out,
                                                  const size_t* counts, entrain_dtype_t dtype,
                                                  const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_reduce_scatter_v(entrain_comm_t* comm, const void* in, void* out,
                                                      const size_t* counts, entrain_dtype_t dtype, entrain_op_t op,
                                                      const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_gather and entrain_scatter. `count`: elements of this rank's part. Only the root uses `counts`; on other
 * ranks it may be NULL. If a part has another length than the root expects, the call fails with MISMATCH. */
ENTRAIN_API entrain_status_t entrain_gather_v(entrain_comm_t* comm, const void* in, size_t count, void* out,
                                              const size_t* counts, entrain_dtype_t dtype, int32_t root,
                                              const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_scatter_v(entrain_comm_t* comm, const void* in, const size_t* counts, void* out,
                                               size_t count, entrain_dtype_t dtype, int32_t root,
                                               const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_all_to_all. Sends in_counts[r] elements to rank r. Rank r must give the same number in the entry of its
 * out_counts for this rank. Otherwise the call fails with MISMATCH. A rank that has received the expected data gets
 * this error from its next call at the latest. In place (out == in): in_counts and out_counts are equal. */
ENTRAIN_API entrain_status_t entrain_all_to_all_v(entrain_comm_t* comm, const void* in, const size_t* in_counts,
                                                  void* out, const size_t* out_counts, entrain_dtype_t dtype,
                                                  const entrain_call_options_t* options, entrain_work_t** work);

/* ---- Parts that lie apart ------------------------------------------------------------------------------------
 * In these calls each part may lie in a buffer of its own. A list has one address for each rank, in rank order.
 * `counts` has the number of elements of each part, also in rank order. If `counts` is NULL, every part has `count`
 * elements, and `counts` must be NULL on all ranks. If a function takes `count` and `counts`, `count` is this rank's
 * entry of `counts` (all_gather_list and reduce_scatter_list then ignore `count`). A list call without `counts` on one
 * rank matches the plain call (such as entrain_all_gather) on another rank. A list call with `counts` matches the call
 * whose name ends in _v. An address may be NULL if its part has 0 elements. The library reads lists and counts before
 * the function returns.
 *
 * If the parts lie next to each other in rank order, the library uses them without a copy. Otherwise it copies all
 * input parts to memory of its own before the call starts. When the call ends, it copies the result to the output
 * parts. Such a call is not faster than a plain call with copies by the caller. With a work, the thread that makes
 * progress copies the result, and serves no other call during the copy. If copies are necessary, the parts must be host
 * memory (pinned or not). The call must then have no stream, and must not be in a batch (UNIMPLEMENTED otherwise). */

/* As entrain_all_gather: `in` has `count` elements; outs[r] receives the part of rank r. */
ENTRAIN_API entrain_status_t entrain_all_gather_list(entrain_comm_t* comm, const void* in, size_t count,
                                                     void* const* outs, const size_t* counts, entrain_dtype_t dtype,
                                                     const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_reduce_scatter: ins[r] is this rank's contribution to the result of rank r; `out` has `count` elements. */
ENTRAIN_API entrain_status_t entrain_reduce_scatter_list(entrain_comm_t* comm, const void* const* ins,
                                                         const size_t* counts, void* out, size_t count,
                                                         entrain_dtype_t dtype, entrain_op_t op,
                                                         const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_gather. Only the root uses `outs` and the entries of `counts`. On other ranks it matters only whether
 * `counts` is NULL. */
ENTRAIN_API entrain_status_t entrain_gather_list(entrain_comm_t* comm, const void* in, size_t count, void* const* outs,
                                                 const size_t* counts, entrain_dtype_t dtype, int32_t root,
                                                 const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_scatter. Only the root uses `ins` and the entries of `counts`. On other ranks it matters only whether
 * `counts` is NULL. */
ENTRAIN_API entrain_status_t entrain_scatter_list(entrain_comm_t* comm, const void* const* ins, const size_t* counts,
                                                  void* out, size_t count, entrain_dtype_t dtype, int32_t root,
                                                  const entrain_call_options_t* options, entrain_work_t** work);
/* As entrain_all_to_all_v: sends the in_counts[r] elements at ins[r] to rank r, and receives out_counts[r] elements
 * from rank r at outs[r]. Both lists of counts are required. Does not match entrain_all_to_all. */
ENTRAIN_API entrain_status_t entrain_all_to_all_list(entrain_comm_t* comm, const void* const* ins,
                                                     const size_t* in_counts, void* const* outs,
                                                     const size_t* out_counts, entrain_dtype_t dtype,
                                                     const entrain_call_options_t* options, entrain_work_t** work);

/* Waits for all ranks: the call completes when every rank has called entrain_barrier. */
ENTRAIN_API entrain_status_t entrain_barrier(entrain_comm_t* comm, const entrain_call_options_t* options,
                                             entrain_work_t** work);

/* Send to one peer, or receive from one peer. The peer makes the opposite call with the same count and type. `peer` is
 * another rank. A send matches a receive with the same tag; an untagged send matches an untagged receive. For each pair
 * of ranks, direction and tag, calls match in the order in which they were made. Sends and receives may have any order
 * relative to collectives. A send is complete when its buffer may be reused. A send of any length may wait for the
 * peer's receive. So ranks that send to each other at the same time must use works or a batch. */
ENTRAIN_API entrain_status_t entrain_send(entrain_comm_t* comm, const void* in, size_t count, entrain_dtype_t dtype,
                                          int32_t peer, const entrain_call_options_t* options, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_recv(entrain_comm_t* comm, void* out, size_t count, entrain_dtype_t dtype,
                                          int32_t peer, const entrain_call_options_t* options, entrain_work_t** work);
/* Receives as entrain_recv does, but from any rank that sends with this tag (or untagged). When the call succeeds, the
 * library writes that rank to *source; `source` may be NULL. *source is lent for the same time as `out`.
 * entrain_work_info reports the source, too.
 * - Order: messages of one rank and tag are received in the order in which they were sent. If several ranks have sent,
 *   the message of each of them is received at some time. A message goes to the first receive, in the order of the
 *   calls, that has its tag and accepts its source. So if an entrain_recv follows an entrain_recv_any of the same tag,
 *   it waits until the entrain_recv_any has a message. It waits even if its own message has arrived.
 * - Returns MISMATCH, on both ranks, if a rank sends another count or type. The text of TIMED_OUT names the ranks that
 *   have not sent (entrain_comm_late). When the communicator ends, the call ends with the same error. The call returns
 *   PEER_LOST if all other ranks have destroyed their communicators and exited.
 * - Allowed only with host memory without a stream (UNIMPLEMENTED otherwise). The order above does not hold for
 *   entrain_recv calls of the same tag into device memory. */
ENTRAIN_API entrain_status_t entrain_recv_any(entrain_comm_t* comm, void* out, size_t count, entrain_dtype_t dtype,
                                              int32_t* source, const entrain_call_options_t* options,
                                              entrain_work_t** work);

/* ---- Batches -------------------------------------------------------------------------------------------------- */

/* Creates a batch: several calls on one communicator that start together. A call is added to the batch if its options
 * name the batch (entrain_call_options_t.batch). The library then checks the arguments of the call, and records its
 * buffers and its timeout. entrain_batch_start starts the calls as if they had been made one after another, in the
 * order in which they were added. So this order must be the same on all ranks. The calls run concurrently. A batch may
 * be started again when all calls of its last start are complete. The calls then use the current contents of the
 * buffers. The batch keeps the communicator alive. If a call has a reduction from entrain_reduction_user, the object
 * that `user` points to must live as long as the batch. Only one thread at a time may use a batch. */
ENTRAIN_API entrain_status_t entrain_batch_create(entrain_comm_t* comm, entrain_batch_t** batch);
/* Starts the calls. The work is complete when all calls are complete. If calls fail, its status is that of the first
 * failed call in the order of the batch. */
ENTRAIN_API entrain_status_t entrain_batch_start(entrain_batch_t* batch, entrain_work_t** work);
/* Frees the batch. Calls that were started continue. */
ENTRAIN_API void entrain_batch_destroy(entrain_batch_t* batch);

/* ---- Works: started calls ------------------------------------------------------------------------------------ */

/* If the call is over, writes 1 to *done and returns the call's status. Otherwise writes 0 and returns ENTRAIN_OK.
 * Makes progress; never blocks. Any thread. */
ENTRAIN_API entrain_status_t entrain_work_test(entrain_work_t* work, int32_t* done);
/* Waits until the call is over, at most timeout_ns (< 0: until the operation's own deadline). Returns the call's
 * status, or IN_PROGRESS when timeout_ns has passed. May be called several times, and by several threads at once; all
 * of them get the same result. */
ENTRAIN_API entrain_status_t entrain_work_wait(entrain_work_t* work, int64_t timeout_ns);
/* Copies the error record of the call to *error; its code is OK if the call succeeded. Returns IN_PROGRESS, and writes
 * nothing, until the call is over. */
ENTRAIN_API entrain_status_t entrain_work_error(const entrain_work_t* work, entrain_error_t* error);
typedef struct entrain_work_info_t {
  size_t size;
  uint64_t sequence;  /* as in entrain_error_t. 0 for a batch, which has no number. Also 0 for a receive if this
                         receive, or an earlier one, is an entrain_recv_any that has no message yet */
  int64_t tag;        /* -1: untagged */
  int64_t elapsed_ns; /* time since the start, even after the call is over */
  int32_t done;       /* 1: the call is over */
  int32_t reserved;   /* 0 */
  char operation[32]; /* for example "all_reduce", or "batch" */
  char comm[64];      /* name of the communicator, for example "world", or "world/3" for a part of color 3; cut if it is
                         too long */
  int64_t source;     /* rank whose message an entrain_recv_any takes. -1: not yet known, or another kind of call */
} entrain_work_info_t;
static ENTRAIN_INLINE void entrain_work_info_init(entrain_work_info_t* info) {
  entrain_struct_init(ENTRAIN_STRUCT_WORK_INFO, info, sizeof(*info));
}
/* Describes the work. Any thread; never blocks, and makes no progress. */
ENTRAIN_API entrain_status_t entrain_work_info(const entrain_work_t* work, entrain_work_info_t* info);

/* Calls done(status, user) once, when the call is over. If the call is over already, done() runs inside this function.
 * Otherwise it runs on a thread of the runtime. This thread runs only such functions, one after the other.
 * - done() may block, for example on a lock. Only the next done() waits for it. All other calls make progress and keep
 *   their deadlines.
 * - done() may start calls with a work, make queries, and call entrain_work_test, entrain_work_free and
 *   entrain_work_notify. It may abort or destroy communicators, even the last one of the runtime.
 * - A call that may wait returns FAILED_PRECONDITION at once: "entrain_barrier: called from the done() of all_reduce
 *   #2, which must not wait". Such calls are: calls without a work; entrain_work_wait on an unfinished work; the
 *   creation, split and drain of communicators; and the calls of train.h that wait.
 * - Calls on stores are allowed, and so are functions whose names end in _start or _work. Calls of train.h that return
 *   at once are also allowed: entrain_shard_gather, _reduce_gradients and _begin_pass, entrain_edit_end_step,
 *   entrain_acco_add and _stop. entrain_shard_wait, _release, _gradients and _finish_gradients are allowed if they have
 *   nothing to wait for.
 * - done() may run after the communicator and the runtime are destroyed. `user` must live until done() has returned. If
 *   the process exits before done() has started, the library never calls done().
 * - Returns RESOURCE_EXHAUSTED, and does not call done(), if the library cannot start the thread. */
typedef void (*entrain_done_fn)(entrain_status_t status, void* user);
ENTRAIN_API entrain_status_t entrain_work_notify(entrain_work_t* work, entrain_done_fn done, void* user);
/* Writes to *fd a file descriptor for poll, epoll and event loops. It becomes readable when the call is over, and stays
 * readable. The descriptor belongs to the work and is valid until the work is freed. Do not read or close it. With
 * ENTRAIN_PROGRESS_CALLER some thread must still call entrain_work_test. */
ENTRAIN_API entrain_status_t entrain_work_descriptor(entrain_work_t* work, int* fd);
/* Frees the handle; never blocks. An unfinished call continues, and its buffers stay lent until it is over. */
ENTRAIN_API void entrain_work_free(entrain_work_t* work);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_COLLECTIVES_H_ */
