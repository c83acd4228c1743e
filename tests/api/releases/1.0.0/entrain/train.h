/* Training: the mesh of ranks, layer-wise sharding of a model, EDiT on a sharded model, and ACCO's gradient channel,
 * which needs neither mesh nor sharding. All arrays are flat. The model belongs to the caller.
 *
 *              sync ->                    M = shard group size: the ranks that together hold one replica
 *          r0   r2   r4                   N = sync group size: the ranks that hold the same part of all replicas
 *  shard   r1   r3   r5                   here M = 2, N = 3: r0, r1 are replica 0; r0, r2, r4 hold slot 0
 *
 * Sources: EDiT is arXiv 2412.07210 (Cheng et al., ICLR 2025). The symbols are those of the paper: theta live
 * parameters, a anchor, Delta = a - theta pseudo-gradient, G its norm, eta and mu outer learning rate and momentum, H
 * sync interval. ACCO is arXiv 2406.02613 and has its own section below.
 *
 * Unless a function says otherwise:
 * - Only one thread at a time may call functions on one object.
 * - "Collective" means that all ranks of the mesh make the call in the same order.
 * - The first call that meets an error of a communicator inside the object returns this error.
 * - If a call on an EDiT object or a gradient channel fails on one rank only, the library tells the ranks that wait for
 *   this rank. When they reach their deadline, or the failed rank exits, their error states the reason.
 *
 * Every call that blocks has a form with a time limit, for signals, watchdogs and event loops. A function ..._work or
 * ..._start gives a work; entrain_work_wait, _notify, _descriptor and so on (collectives.h) wait for it. Names in the
 * table are without "entrain_":
 *
 *   | blocking call                          | form with a time limit                                                 |
 *   | edit_wait_layer                        | edit_layer_work                                                        |
 *   | shard_wait, shard_release              | shard_gather_work                                                      |
 *   | shard_finish_gradients                 | shard_gradients_work                                                   |
 *   | shard_gradients, shard_set_buffers     | shard_gradients_work, if the memory is the caller's                    |
 *   | edit_layer_report, edit_layer_score    | edit_layer_work. They block only on device memory                      |
 *   | edit_begin_forward, edit_leave         | edit_begin_forward_start, edit_leave_start                             |
 *   | shard_broadcast                        | shard_broadcast_start                                                  |
 *   | acco_install                           | acco_wait or acco_work, followed by acco_install                       |
 *   | edit_save, _load, _save_to, _load_from | edit_save_start and so on. config.timeout_ns bounds the call           |
 *   | acco_save and so on                    | acco_save_start and so on, as above                                    |
 *   | edit_open_state, acco_open_state       | edit_open_state_start, acco_open_state_start                           |
 *   | state_commit                           | state_commit_start. Its timeout_ns bounds the whole call               |
 *   | state_get                              | none. It waits only for a stream, at most the object's timeout_ns      |
 *   | shard_gradient_norm                    | shard_gradient_norm_start. The shard's timeout_ns bounds it. After     |
 *   |                                        | TIMED_OUT the shard can only be destroyed                              |
 *   | shard_bind, shard_load                 | none. On device memory they wait for the stream, at most the           |
 *   |                                        | shard's timeout_ns                                                     |
 *   | edit_join, acco_join                   | none. wait_ns bounds the wait for the others                           |
 *   | mesh_create, mesh_create_from,         | none. The communicators' default (entrain_comm_set_timeout)            |
 *   | shard_create, edit_create, acco_create | bounds each collective inside. After TIMED_OUT no object exists,       |
 *   |                                        | and the communicator on which the collective ran has ended             |
 *
 * A work from a function ..._work only observes. Freeing the work, or giving up a wait for it, changes nothing. The
 * caller still makes the blocking call, which returns at once when the work is over.
 *
 * A function ..._start starts a call, which a thread of the library executes. The call cannot be withdrawn, and
 * continues after its work is freed. Until the call is over, no other call may use the object. If the object is an EDiT
 * object, no other call may use its shard or its open states either. Another call that uses them returns
 * FAILED_PRECONDITION. Queries of constants are allowed (shard_layer_info, shard_slab_count, edit_stream, state_count,
 * _info, _find). Destroying the object ends the call with ABORTED, also on the ranks that wait for this rank. Before an
 * object is destroyed, blocking calls on it in other threads must have returned. Arguments are copied. Output
 * arguments, and the object that `user` points to, are lent until the work is over.
 *
 * Works of both kinds may be created in done() of entrain_work_notify. For such a work entrain_work_info reports
 * sequence 0, the layer as tag, and the replica's communicator. */
#ifndef ENTRAIN_TRAIN_H_
#define ENTRAIN_TRAIN_H_

#include "entrain/collectives.h"
#include "entrain/comm.h"
#include "entrain/optim.h"
#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mesh ----------------------------------------------------------------------------------------------------- */

enum { /* axes and groups of a mesh */
  ENTRAIN_AXIS_TENSOR = 0,
  ENTRAIN_AXIS_PIPELINE = 1,
  ENTRAIN_AXIS_CONTEXT = 2,
  ENTRAIN_AXIS_SHARD = 3,
  ENTRAIN_AXIS_SYNC = 4,
  ENTRAIN_AXIS_MODEL = 5 /* all but sync: the ranks of one replica */
};

typedef struct entrain_mesh_config {
  size_t size;
  int32_t tensor, pipeline, context; /* ranks along each axis; default 1. Ranks along the context axis hold the same
                                        parameters, and each works on its own part of every sequence; their gradients
                                        are averaged. In every exchange EDiT compares these copies, and the copies of
                                        layers that are replicated along the tensor axis. If copies differ, the call
                                        returns MISMATCH, which names the layer and the ranks */
  int32_t shard;                     /* M; default 1 */
  int32_t sync;                      /* N; 0 (default): size of the communicator divided by the other axes */
  const char* order;                 /* axes from fastest to slowest: neighbours along the first axis have consecutive
                                        ranks. NULL: "tensor,context,shard,pipeline,sync" */
} entrain_mesh_config_t;
ENTRAIN_API void entrain_mesh_config_init_sized(entrain_mesh_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_mesh_config_init(entrain_mesh_config_t* config) {
  entrain_mesh_config_init_sized(config, sizeof(*config));
}

/* Creates a mesh: splits `comm` into the groups of the mesh. Collective over `comm`; blocks. Returns INVALID_ARGUMENT,
 * naming the axes and their sizes, if the product of the axes is not the size of `comm`. */
ENTRAIN_API entrain_status_t entrain_mesh_create(entrain_comm_t* comm, const entrain_mesh_config_t* config,
                                                 entrain_mesh_t** mesh);
/* Creates a mesh from two existing communicators: `shard_comm` has the ranks of this rank's replica, `sync_comm` the
 * ranks that hold the same part in all replicas. Both communicators stay the caller's, and may be destroyed before the
 * mesh. Collective over both, because the call compares their shapes; blocks. */
ENTRAIN_API entrain_status_t entrain_mesh_create_from(entrain_comm_t* shard_comm, entrain_comm_t* sync_comm,
                                                      entrain_mesh_t** mesh);
/* Writes this rank's coordinate along an axis or group, and the length of that axis or group. */
ENTRAIN_API entrain_status_t entrain_mesh_coordinate(const entrain_mesh_t* mesh, int32_t axis, int32_t* coordinate,
                                                     int32_t* length);
/* Writes the communicator of an axis or group to *comm. It belongs to the mesh and is valid until the mesh is
 * destroyed. */
ENTRAIN_API entrain_status_t entrain_mesh_comm(const entrain_mesh_t* mesh, int32_t axis, entrain_comm_t** comm);
ENTRAIN_API void entrain_mesh_destroy(entrain_mesh_t* mesh);

/* ---- A model sharded layer by layer --------------------------------------------------------------------------- */

/* Layer l has P_l = layer_counts[l] elements, padded with zeros to a multiple of M. Slot m of the shard group holds the
 * elements [m p_l, (m + 1) p_l), where p_l = ceil(P_l / M). A rank keeps its shards of all layers in one of two ways:
 * one after the other in one flat array, the slab, with the sum of p_l elements (entrain_shard_bind); or each shard in
 * its own array (entrain_shard_bind_layers). */
/* With layer_segments, a layer is cut as FSDP2 and torch.chunk cut it. Each segment is cut along its dimension 0 into M
 * chunks of ceil(rows / M) rows; the last chunks may be shorter or empty. A rank's shard of the layer has the rank's
 * chunks of all segments, one after the other, each padded with zeros to ceil(rows / M) rows. So p_l is the sum over
 * the segments of ceil(rows / M) count / rows, and there is padding between chunks too. The caller keeps the padding
 * zero, also in gradients. A gathered layer, and a gradient buffer, have the M shards one after the other.
 * entrain_shard_load and checkpoints use whole layers: the segments one after the other, without padding. So a portable
 * checkpoint fits any M. */
typedef struct entrain_shard_config {
  size_t size;
  int32_t layers;
  int32_t prefetch;           /* number of layers that are gathered ahead of use; default 1; 0: none */
  const size_t* layer_counts; /* P_l: `layers` entries, in the order of the forward pass; 0: no parameters */
  entrain_dtype_t param_dtype; /* type of gathered layers, in memory and on the wire: ENTRAIN_F32 (default) or
                                  ENTRAIN_BF16 */
  entrain_dtype_t grad_dtype;  /* type of gradient buffers, in memory and on the wire; as above. Bound arrays have their
                                  own type */
  int64_t timeout_ns;          /* deadline of each collective inside; 0: the communicators' default */
  const uint8_t* layer_frozen; /* `layers` entries. 1: the layer is frozen, that is, none of its parameters train; 0:
                                  the layer trains; NULL: all layers train. A frozen layer is gathered like the others,
                                  but has no gradients (its part of the gradient slab is not changed) and no anchor, and
                                  EDiT neither exchanges it nor counts it in norms. An optimizer step over the whole
                                  slab still changes it, for example by weight decay */
  const uint8_t* layer_replicated; /* `layers` entries. 1: all ranks along the tensor axis hold the same copy of this
                                      layer (for example the weights of a norm); 0: each of these ranks holds its own
                                      part; NULL: 0 for all layers. A replicated layer counts once in norms, so that all
                                      these ranks judge, weight and clip it in the same way. The caller keeps the
                                      gradients of the copies equal */
  int32_t memory; /* ENTRAIN_MEMORY_HOST (default) or DEVICE, the same on all ranks: the memory of bound arrays and of
                     all lent memory. See "On device memory" below */
  void* stream;   /* CUstream of that device; NULL (default): its default stream. HOST requires NULL */
  const int32_t* layer_segments; /* `layers` entries: number of segments (tensors) of each layer. NULL (default): each
                                    layer is cut as one flat array. Otherwise the two fields below have one entry for
                                    each segment, in order over all layers */
  const size_t* segment_counts;  /* number of elements of each segment; the segments of a layer add up to its P_l */
  const size_t* segment_rows;    /* length of dimension 0, a divisor of the elements; 0 only for a segment without
                                    elements */
} entrain_shard_config_t;
ENTRAIN_API void entrain_shard_config_init_sized(entrain_shard_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_shard_config_init(entrain_shard_config_t* config) {
  entrain_shard_config_init_sized(config, sizeof(*config));
}

/* On device memory. Calls on the shard, and on an EDiT object on it, are ordered with `stream`: the effects of a call
 * begin when the device has reached the stream's position at the call, and work that is enqueued on the stream
 * afterwards sees the effects. "The call waits" then means that the stream waits. The host waits for the device and for
 * other ranks only in bind, load, broadcast and destroy, and where a function says so. So an error of the network or of
 * the device appears only in a later call. Until that call the stream may compute useless values, but the library sends
 * none of them to other replicas.
 *
 * A time limit also covers the time until the stream reaches its position at the call. So choose it longer than the
 * time by which the host runs ahead of the device.
 *
 * All ranks of the shard group gather layers in the same order. The ranks of the shard and context groups reduce layers
 * in the same order. The library reuses lent memory when the stream has reached its position at the release. Lent
 * memory stays allocated until destroy, which waits for all streams of the device. */

/* Creates a sharded model on the mesh. Collective; blocks. All ranks must give the same layers. */
ENTRAIN_API entrain_status_t entrain_shard_create(entrain_mesh_t* mesh, const entrain_shard_config_t* config,
                                                  entrain_shard_t** shard);
ENTRAIN_API void entrain_shard_destroy(entrain_shard_t* shard);

typedef struct entrain_shard_layer {
  size_t size;
  size_t full_count;   /* P_l */
  size_t padded_count; /* M p_l: elements of a gathered layer, and of a gradient buffer */
  size_t shard_count;  /* p_l */
  size_t first;        /* index of this rank's first element in the padded layer: m p_l */
  size_t valid_count;  /* number of elements of this rank's shard up to the last element that is not padding */
  size_t slab_offset;  /* index of the shard's first element in the slab */
} entrain_shard_layer_t;
ENTRAIN_API void entrain_shard_layer_init_sized(entrain_shard_layer_t* layer, size_t bytes);
static ENTRAIN_INLINE void entrain_shard_layer_init(entrain_shard_layer_t* layer) {
  entrain_shard_layer_init_sized(layer, sizeof(*layer));
}
ENTRAIN_API entrain_status_t entrain_shard_layer_info(const entrain_shard_t* shard, int32_t layer,
                                                      entrain_shard_layer_t* out);
/* Writes the number of elements of the slab to *count. */
ENTRAIN_API entrain_status_t entrain_shard_slab_count(const entrain_shard_t* shard, size_t* count);

/* Lends the slab of parameters and the slab of gradients to the library until the shard and the EDiT object on it are
 * destroyed. Each slab has entrain_shard_slab_count() elements of `dtype` in the memory of config.memory. `dtype`:
 * ENTRAIN_F32, or ENTRAIN_BF16 (see entrain_shard_bind_layers); UNIMPLEMENTED for others. Call this function or
 * entrain_shard_bind_layers once, before the functions below. The library reads the parameters, and EDiT writes them,
 * only during calls of this header and until the waits of these calls end. The library adds to the gradients and never
 * clears them. */
ENTRAIN_API entrain_status_t entrain_shard_bind(entrain_shard_t* shard, void* params, void* grads,
                                                entrain_dtype_t dtype);
/* Lends one array per layer instead of slabs. params[l] and grads[l] are this rank's shard of layer l: shard_count
 * elements of `dtype`, which is the same on all ranks. Both lists have `layers` entries and are copied. The entries of
 * a layer without elements are NULL, and the gradients of a frozen layer may be NULL. If `grads` is NULL, the caller
 * reduces gradients itself, and entrain_shard_gradients returns FAILED_PRECONDITION.
 *
 * `dtype`: ENTRAIN_F32, or ENTRAIN_BF16 for parameters that have no f32 masters. With bf16:
 * - EDiT's anchors, pseudo-gradients and outer state are f32. theta is the anchor a, rounded to nearest even. In an
 *   exchange theta counts as a + (theta - rounded a), so that rounding adds nothing to pseudo-gradients.
 * - Between exchanges theta has only the precision of bf16. A step of the optimizer, or an outer step, that is smaller
 *   than half the distance to the next bf16 number (2^-9 of the value) does not change theta; the anchor keeps such an
 *   outer step.
 * - Gradients are summed in f32 and rounded at each reduction.
 * - An EDiT object takes 10 bytes more per element of the largest shard, 20 with overlap_steps. */
ENTRAIN_API entrain_status_t entrain_shard_bind_layers(entrain_shard_t* shard, void* const* params, void* const* grads,
                                                       entrain_dtype_t dtype);

/* DEVICE: orders later calls on the shard, and on an EDiT object on it, with `stream` (NULL: the device's default
 * stream) instead of the previous stream (config.stream, or that of an earlier call). Work that is enqueued on `stream`
 * after this call waits for the work that the previous stream has at this call. So lent memory and running gathers need
 * not end before the call. The shard does not know of work that the caller enqueues on the previous stream later.
 * Local; cheap enough for every step. The stream must live until another is set or the shard is destroyed. Optimizers
 * have their own streams. HOST: returns FAILED_PRECONDITION. Returns INVALID_ARGUMENT if the stream is not one of the
 * shard's device. If this call comes before the arrays are bound, the function that binds them returns this error. */
ENTRAIN_API entrain_status_t entrain_shard_set_stream(entrain_shard_t* shard, void* stream);

/* Copies this rank's part of the whole layer `full` (P_l elements of `dtype`: f32, f64, bf16 or f16; UNIMPLEMENTED for
 * others) to its parameters, converted to their type and padded with zeros. Local. If the parameters are on a device,
 * `full` may be on that device or on the host. */
ENTRAIN_API entrain_status_t entrain_shard_load(entrain_shard_t* shard, int32_t layer, const void* full,
                                                entrain_dtype_t dtype);
/* Makes all replicas start with the same parameters: copies those of replica 0 to all replicas, and those of the first
 * rank along the context axis to the other ranks along it. Collective; blocks. */
ENTRAIN_API entrain_status_t entrain_shard_broadcast(entrain_shard_t* shard);
/* Starts entrain_shard_broadcast (see ..._start above). */
ENTRAIN_API entrain_status_t entrain_shard_broadcast_start(entrain_shard_t* shard, entrain_work_t** work);

enum { ENTRAIN_PASS_FORWARD = 0, ENTRAIN_PASS_BACKWARD = 1 };
/* Sets the order in which the caller uses the layers next, for prefetching: ascending (forward) or descending
 * (backward). Collective. */
ENTRAIN_API entrain_status_t entrain_shard_begin_pass(entrain_shard_t* shard, int32_t pass);
/* Starts the all-gather of a layer's parameters over the shard group; returns at once. A second start before the
 * release does nothing. All ranks of the shard group gather the same layers, in any order (on device memory see
 * above). */
ENTRAIN_API entrain_status_t entrain_shard_gather(entrain_shard_t* shard, int32_t layer);
/* Waits until the layer is gathered; starts its gather if no call has started it. Also starts the gathers of the next
 * `prefetch` layers of the pass. *params becomes the address of padded_count elements of param_dtype. This memory
 * belongs to the library. Until release the caller may read it and must not write it. */
ENTRAIN_API entrain_status_t entrain_shard_wait(entrain_shard_t* shard, int32_t layer, void** params);
/* Starts the layer's gather if no call has started it, and no gathers of other layers. *work is over when
 * entrain_shard_wait would not block, and has the status that entrain_shard_wait would return. On device memory, where
 * entrain_shard_wait never blocks, *work is over when the layer has been gathered. */
ENTRAIN_API entrain_status_t entrain_shard_gather_work(entrain_shard_t* shard, int32_t layer, entrain_work_t** work);
/* Returns the memory of the layer to the library. Waits for the gather if it is still running. */
ENTRAIN_API entrain_status_t entrain_shard_release(entrain_shard_t* shard, int32_t layer);

/* Writes the address of a gradient buffer for the layer to *grads: padded_count elements of grad_dtype, zero. The
 * memory belongs to the library; the caller adds to it until entrain_shard_reduce_gradients. Returns INVALID_ARGUMENT
 * for a frozen layer. */
ENTRAIN_API entrain_status_t entrain_shard_gradients(entrain_shard_t* shard, int32_t layer, void** grads);
/* Takes the buffer back and starts its reduction; returns at once. The reduction has these steps:
 * - a reduce-scatter over the shard group,
 * - an all-reduce over the C ranks of the context group,
 * - with global gradients also an all-reduce over the sync group,
 * - division by M C (local) or M C N (global), and addition to the bound gradients.
 *
 * So each rank must give the gradient of the mean loss over its own tokens. If a rank's loss is its part of a sum over
 * the whole sequence, multiply this loss by C first. The caller combines the gradients of layers that are replicated
 * along the tensor axis. Ranks reduce the same layers, in any order; but with global gradients the ranks of a sync
 * group use the same order (on device memory see above). */
ENTRAIN_API entrain_status_t entrain_shard_reduce_gradients(entrain_shard_t* shard, int32_t layer);
/* Waits until all reductions that were started have been added to the bound gradients. */
ENTRAIN_API entrain_status_t entrain_shard_finish_gradients(entrain_shard_t* shard);
/* *work is over when all reductions that have been started so far are added to the bound gradients. Then
 * entrain_shard_finish_gradients, which must still be called, does not block. *work has the status that
 * entrain_shard_finish_gradients would return. On device memory, where that function never blocks, *work is over when
 * the additions are done. */
ENTRAIN_API entrain_status_t entrain_shard_gradients_work(entrain_shard_t* shard, entrain_work_t** work);

/* Makes memory of the caller the buffers of a layer. Each buffer has padded_count elements and is in the memory that
 * config.memory names. `gathered`, of param_dtype: every gather writes the layer to this address, even if there is
 * nothing to gather. `gradients`, of grad_dtype: entrain_shard_gradients clears this memory and returns it. NULL:
 * memory of the library; `gradients` of a frozen layer must be NULL. The memory is lent until other memory is set or
 * the shard is destroyed. Before entrain_shard_gradients lends such memory again, it waits for the layer's previous
 * reduction (on device memory the stream waits). Returns FAILED_PRECONDITION before bind, between gather and release,
 * and between gradients and reduce. Waits for the layer's reduction. Local. */
ENTRAIN_API entrain_status_t entrain_shard_set_buffers(entrain_shard_t* shard, int32_t layer, void* gathered,
                                                       void* gradients);
/* Writes to *norm the square root of the sum of squares, in double, of all bound gradients of a replica, that is, over
 * its shard, tensor and pipeline groups. Each element counts once: of several ranks that hold the same element (along
 * the context axis, and for replicated layers along the tensor axis), only the first rank counts it. Frozen layers and
 * padding do not count. All ranks of a replica get the same bits. If gradients are global
 * (entrain_shard_reduce_gradients), all replicas get the same bits. The norm is not finite if a gradient is not finite.
 * Returns FAILED_PRECONDITION if gradients are not bound, or not reduced as entrain_edit_end_step requires. Collective
 * over the replica; blocks. Each rank sends one number. On device memory the host also waits for the stream. */
ENTRAIN_API entrain_status_t entrain_shard_gradient_norm(entrain_shard_t* shard, double* norm);
/* Starts entrain_shard_gradient_norm. `norm` is lent until the work is over, and written only on success. */
ENTRAIN_API entrain_status_t entrain_shard_gradient_norm_start(entrain_shard_t* shard, double* norm,
                                                               entrain_work_t** work);

enum {
  ENTRAIN_GRADIENTS_LOCAL = 0, /* averaged over the shard and context groups: each replica trains alone */
  ENTRAIN_GRADIENTS_GLOBAL = 1 /* averaged over the shard, context and sync groups: synchronous data parallelism; the
                                  default */
};
/* `scope`: ENTRAIN_GRADIENTS_*, for reductions that start after this call. An EDiT object on this shard sets the scope
 * itself. Collective. */
ENTRAIN_API entrain_status_t entrain_shard_set_gradients(entrain_shard_t* shard, int32_t scope);

typedef struct entrain_shard_stats_t {
  size_t size;
  uint64_t gather_wait_ns;   /* time for which entrain_shard_wait blocked the caller */
  uint64_t reduce_wait_ns;   /* time for which entrain_shard_finish_gradients blocked the caller */
  uint64_t bytes_sent_shard; /* payload bytes that this rank sent within its shard and context groups */
  uint64_t bytes_sent_sync;  /* payload bytes that this rank sent to other replicas, for gradients and the broadcast */
} entrain_shard_stats_t;
ENTRAIN_API void entrain_shard_stats_init_sized(entrain_shard_stats_t* stats, size_t bytes);
static ENTRAIN_INLINE void entrain_shard_stats_init(entrain_shard_stats_t* stats) {
  entrain_shard_stats_init_sized(stats, sizeof(*stats));
}
/* Reads the counters since creation. Exact when no call of the shard is in flight. */
ENTRAIN_API entrain_status_t entrain_shard_stats(const entrain_shard_t* shard, entrain_shard_stats_t* stats);

/* ---- EDiT ----------------------------------------------------------------------------------------------------- */

enum { /* entrain_edit_config_t.outer_optimizer */
  ENTRAIN_OUTER_NONE = 0,     /* a = a - the combined Delta. Together with ENTRAIN_REDUCER_NONE: plain averaging, no
                                 anchor */
  ENTRAIN_OUTER_SGD = 1,      /* b = mu b + g, a = a - eta (g + mu b) (nesterov) or a - eta b */
  ENTRAIN_OUTER_ADAMW = 2,    /* AdamW with gradient g and decoupled weight decay; two moments instead of b */
  ENTRAIN_OUTER_CALLBACK = 3, /* entrain_edit_config_t.outer_step */
  ENTRAIN_OUTER_LION = 4      /* Lion (arXiv 2302.06675): a = (1 - eta lambda) a - eta sign(beta1 m + (1 - beta1) g),
                                 then m = beta2 m + (1 - beta2) g. The moment m replaces b */
};
/* The caller's outer step of one layer. Moves this rank's `count` elements of the anchor, in place, against the
 * combined and clipped pseudo-gradient `grad`. `step` is 1 for the layer's first step, and increases by 1 each time. A
 * thread of the library calls the function for one layer at a time. The function must not wait for this thread. Both
 * arrays are lent during the call. Inside the function, calls that need the engine return FAILED_PRECONDITION, which
 * names the function; queries and optimizers are allowed. On device memory the arrays are device addresses, and the
 * function enqueues its work on entrain_edit_stream. The ranks of a sync group receive the same bits and must produce
 * the same bits. If they do not, the next exchange finds the difference.
 *
 * Returns 0 on success. Any other number ends the communicators of this EDiT object on all ranks with ABORTED: "the
 * outer step of layer 3, step 7, returned 5". The other ranks receive this error in their next exchange at the latest,
 * with the number of the failed rank. After a failure the library writes nothing more: the anchor stays as the function
 * left it, the parameters stay as they were before the layer's exchange, and this rank calls the step of no other
 * layer. */
typedef int32_t (*entrain_outer_step_fn)(void* user, int32_t layer, int64_t step, float* anchor, const float* grad,
                                         size_t count);
enum { /* entrain_edit_config_t.reducer */
  ENTRAIN_REDUCER_NONE = 0,  /* uniform mean */
  ENTRAIN_REDUCER_LINEAR = 1, /* weighted mean */
  ENTRAIN_REDUCER_GTA = 2     /* generalised task arithmetic: entrain_reduction_gta with the replicas' weights */
};

/* The options have the names and the defaults of the published code.
 *
 * EDiT exchanges every local_sgd_sync_interval steps. A-EDiT (use_async) exchanges when local_sgd_sync_time has passed
 * since the replicas last met. Each replica reads its own monotonic clock. A replica whose time has passed waits in
 * entrain_edit_begin_forward for the other replicas. Each of them arrives at most one step after its own time has
 * passed. A replica of several ranks arrives at most two steps after that time, because the clock of its first rank
 * counts, and its other ranks learn of the end of the time one step later. When the replicas meet, they find out
 * whether they have made min_total_global_steps together since the last exchange. If they have not, they continue, and
 * meet again after the same time. */
enum { /* overlap_merge: theta after the merge of an exchange that ran during further steps; a is the new anchor */
  ENTRAIN_MERGE_ADD = 0,    /* a + the change that this replica has made since the exchange began */
  ENTRAIN_MERGE_MIX = 1,    /* alpha theta + (1 - alpha) a (Streaming DiLoCo, arXiv 2501.18512, algorithm 2) */
  ENTRAIN_MERGE_RESTART = 2 /* as ADD, and theta is set to the current anchor when the exchange begins. So the change of
                               a replica takes effect one round late, on all replicas together, also on the replica that
                               has made it (CO2, arXiv 2401.16265, with overlap_steps = H) */
};
enum { /* fragment_pattern */
  ENTRAIN_FRAGMENT_SEQUENTIAL = 0, /* each fragment has neighbouring layers that train */
  ENTRAIN_FRAGMENT_STRIDED = 1     /* each fragment has every P-th layer that trains */
};
enum { /* on_loss: what happens when a rank is lost, that is, when its process dies or cannot be reached, or does not come
          to an exchange within timeout_ns */
  ENTRAIN_ON_LOSS_FAIL = 0,  /* the next call on every rank returns the error */
  ENTRAIN_ON_LOSS_FINISH = 1 /* EDiT: the replicas that have lost no rank finish the exchange and go on. ACCO: the
                                remaining ranks finish the round and go on. See "After a loss" in each section */
};
enum { /* admit: when newcomers become replicas */
  ENTRAIN_ADMIT_NONE = 0,    /* never */
  ENTRAIN_ADMIT_EXCHANGE = 1 /* EDiT: after an exchange, during the steps that follow. ACCO: after a commit. See
                                "Newcomers" in each section */
};
enum { /* anchor_check: what happens when the anchors of replicas differ. Each rendezvous compares checksums of the
          anchors, layer by layer, as they are in memory at that time. So the check finds an outer step that had another
          result on some replica, and memory that has changed since the last exchange. It costs 8 bytes per rank and
          rendezvous. The checksum is computed in the pass that computes the norms (on device memory in a pass of its
          own) */
  ENTRAIN_ANCHOR_CHECK_STOP = 0,   /* the exchange fails on every rank with MISMATCH, which names the layer, the
                                      replicas and the checksums */
  ENTRAIN_ANCHOR_CHECK_REPAIR = 1, /* the lowest replica that has the anchor of the majority sends it, and the outer
                                      state, to the replicas that have another anchor. The vote uses the checksums that
                                      were taken when the anchors were written, so two replicas can repair memory that
                                      has changed later on one of them. On a repaired replica, the layer does not
                                      contribute to the exchange, as if its norm were not finite, and its parameters
                                      become the new anchor. A warning in the log names layer, replicas and checksums.
                                      Without a majority the exchange fails as with STOP */
  ENTRAIN_ANCHOR_CHECK_OFF = 2     /* anchors are not compared */
};
enum { /* late: what happens to the pseudo-gradient of a replica that comes after its round was closed. See "Rounds that
          are closed early" below */
  ENTRAIN_LATE_DROP = 0,    /* theta becomes the new anchor */
  ENTRAIN_LATE_CARRY = 1,   /* theta = theta + new anchor - previous anchor, so that the next round includes the
                               pseudo-gradient. Takes 4 more bytes per element of this rank's shards that train */
  ENTRAIN_LATE_WEIGHTED = 2 /* as CARRY, and in the next round the weight of the replica is divided by 1 + the number of
                               rounds for which it was late, before the weights are normalised */
};
typedef struct entrain_edit_config {
  size_t size;
  entrain_shard_t* shard;              /* the sharded model, already bound. The EDiT object keeps it alive, and uses its
                                          memory and stream */
  int64_t local_sgd_sync_interval;     /* H: optimizer steps between exchanges, >= 1; default 1 */
  int64_t local_sgd_warmup_steps;      /* W_s: synchronous steps before the first local step, >= 0; default 0 */
  int32_t gradient_accumulation_steps; /* micro-batches per optimizer step, >= 1; default 1. entrain_edit_end_step
                                          checks the number */
  int32_t reducer;                     /* ENTRAIN_REDUCER_*; default NONE */
  int32_t pseudo_gradnorm_reduce;      /* 1: weights softmax(-G / T) over the replicas, which needs a reducer; 0
                                          (default): no norm weights */
  int32_t normalize;                   /* 1 (default): mean; 0: sum. For gta, and for linear without norm weights */
  double weight_softmax_temperature;   /* T > 0; 0 (default): not set; T is then 1 with norm weights */
  double clip_pseudo_grad;             /* phi > 0: largest norm of a layer's combined Delta; 0 (default): no limit */
  int32_t outer_optimizer;             /* ENTRAIN_OUTER_*; default NONE */
  int32_t outer_nesterov;              /* 0 (default) or 1 */
  double outer_lr;                     /* eta > 0; default 0.7 */
  double outer_momentum;               /* mu, 0 <= mu < 1; default 0.8 */
  double outer_weight_decay;           /* >= 0; default 0 */
  int32_t prefetch;                    /* number of layers that are exchanged ahead of use; default 1. 0: a layer is
                                          exchanged in its entrain_edit_wait_layer. On device memory all layers are
                                          exchanged ahead of use; if prefetch is 0, one layer at a time */
  int32_t use_async;                   /* 1: A-EDiT; 0 (default): EDiT */
  int64_t timeout_ns;                  /* deadline of each collective inside; 0: the communicators' default. At a
                                          rendezvous it bounds the wait for the slowest replica */
  double local_sgd_sync_time;          /* tau > 0, in seconds; default 600; for use_async */
  int64_t min_total_global_steps;      /* steps of all replicas together, >= 1; default 100; for use_async */
  int32_t use_step_weight;             /* 1: the weight of a replica is proportional to its training since the last
                                          exchange: its tokens if all replicas called entrain_edit_record, else its
                                          steps; for use_async. 0 (default): no step weights */
  int32_t skip_anomaly;                /* 1: rejects norms far above the earlier norms, separately for each layer and
                                          replica; 0 (default): rejects only norms that are not finite */
  double step_weight_ratio;            /* r in [0, 1], default 0.5: with a reducer, the share of the step weights in the
                                          weights. Without a reducer the step weights are the weights */
  double ewma_alpha;                   /* in (0, 1), default 0.02: weight of a new norm in the mean and the deviation of
                                          norms */
  int64_t ewma_warmup_steps;           /* length of the warm-up, in exchanges, >= 2; default 120. A norm is judged only
                                          after this number of norms has been accepted, counted from the first norm that
                                          is not zero. The warm-up begins again after 5 rejections in a row, or after
                                          two exchanges in a row that reject all replicas, because then the level of the
                                          norms has changed */
  double ewma_threshold;               /* > 0, default 3: a norm is rejected above mean + threshold x deviation. The
                                          deviation is taken as at least 1 % of the mean. The limit is higher in two
                                          cases: few norms or a large alpha leave mean and deviation uncertain (so that
                                          a threshold of 3 rejects 0.14 % of normal noise in this case too); or recent
                                          norms scatter by more than their deviation */
  double outer_beta1, outer_beta2, outer_eps; /* for adamw; the betas also for lion. [0, 1), default 0.9; [0, 1),
                                                 default 0.999; >= 1e-37, default 1e-8 */
  entrain_outer_step_fn outer_step;    /* the outer step for ENTRAIN_OUTER_CALLBACK, else NULL */
  void* outer_user;                    /* first argument of outer_step; belongs to the caller */
  int32_t cpu_offload;                 /* 1: with device memory, anchors and outer state are in page-locked memory of
                                          the host. The device reads and writes it over the bus, one layer at a time. No
                                          effect on host memory. 0 (default): they are on the device */
  int32_t is_debug;                    /* 1: the first rank of each replica writes one line to the log, at any log
                                          level, for each layer and exchange: norm, z-score and limit, verdict, weight,
                                          clip factor. 0 (default): off */
  int32_t compat;                      /* 1: the arithmetic of the published code, only for comparisons with it, not for
                                          training. Rejected replicas count in the divisor. Step weights count steps
                                          since the beginning. Detectors begin at 0 and ingest the norms that they
                                          reject. A shard whose combined Delta sums to less than 1e-6 is rolled back. 0
                                          (default): off */
  int32_t overlap_steps;               /* 0 (default): layers wait for their exchange. EDiT, 1 to H: the exchange runs
                                          during this number of further steps, on the parameters as they were when it
                                          began; then theta = a + the change that this replica has made since (see
                                          overlap_merge). A-EDiT, 1: the exchange is merged at the first step after it
                                          is over, and no replica waits for another. Takes 4 more bytes per element of
                                          this rank's shards that train. Not in plain averaging */
  int32_t consensus_method;            /* for gta: ENTRAIN_CONSENSUS_* (collectives.h); default NONE */
  int32_t int8_mask;                   /* accepted with a consensus_method, without effect: this library never stores
                                          signs */
  int32_t sparsification_method;       /* for gta: ENTRAIN_SPARSIFY_*, applied to each shard of a layer; default NONE */
  double density;                      /* share of the elements that sparsification keeps, in (0, 1); 1 (default)
                                          without. MAGNITUDE must keep an element of every shard */
  uint64_t seed;                       /* seed of random sparsification and stochastic rounding; default 0 */
  int32_t wire_format;                 /* ENTRAIN_WIRE_*: encoding of pseudo-gradients on the wire; default F32. Not in
                                          plain averaging */
  int32_t wire_block;                  /* INT8, INT4, INT2: values per scale; 0 (default): 256 */
  int32_t wire_rounding;               /* ENTRAIN_ROUND_*; default NEAREST */
  int32_t error_feedback;              /* 1: adds the part of a pseudo-gradient that was not sent to the layer's next
                                          one; 0 (default): drops this part */
  int32_t overlap_merge;               /* ENTRAIN_MERGE_*, for overlap_steps; default ADD */
  double overlap_mix;                  /* alpha in [0, 1) of ENTRAIN_MERGE_MIX; default 0.5 */
  int32_t staleness_penalty;           /* 1: divides the combined Delta by 1 + d / C, where d is how far the layer's
                                          anchor has moved since the replicas measured their Delta, and C is the mean
                                          length of the layer's outer steps; for overlap_steps with outer sgd. 0
                                          (default): no penalty */
  int32_t fragments;                   /* P >= 1, default 1: number of fragments, which are parts of the model that are
                                          exchanged at different steps. Fragment p is exchanged at the steps W_s + (p +
                                          1) H / P + k H, k >= 0. Each fragment must have a layer that trains. EDiT
                                          only. A requested exchange covers all layers */
  double outer_momentum_clip;          /* > 0: largest norm of a layer's b after mu b + g, for outer sgd without
                                          nesterov; 0 (default): no limit */
  const int32_t* fragment_of_layer;    /* fragment of each layer, 0 to P - 1; NULL (default): fragment_pattern decides.
                                          This array and the next two are copied */
  const int64_t* fragment_intervals;   /* interval of each fragment, P numbers of steps >= 1, instead of H; NULL
                                          (default): H for all */
  const int64_t* fragment_offsets;     /* P numbers of steps >= 0: each fragment is first exchanged this many steps
                                          after W_s, but never at W_s itself; NULL (default): evenly over the
                                          interval */
  int32_t fragment_pattern;            /* ENTRAIN_FRAGMENT_*; default SEQUENTIAL */
  int32_t sparsify_chunk;              /* MAGNITUDE: number of elements per chunk of a shard. The share `density` of
                                          each chunk is kept, at least one element. A multiple of 64; 0 (default): one
                                          chunk per shard. The part of a shard that a rank of the sync group reduces
                                          begins a new chunk */
  double error_decay;                  /* beta in (0, 1], default 1: with error_feedback, the part that was not sent is
                                          multiplied by beta before the layer's next pseudo-gradient is added
                                          (SparseLoCo, arXiv 2508.15706) */
  int32_t on_loss;                     /* ENTRAIN_ON_LOSS_*; default FAIL. FINISH is refused in plain averaging, with
                                          error_feedback, with compat, and on device memory. With ENTRAIN_OUTER_CALLBACK
                                          each rank keeps the last combined pseudo-gradient of each layer, and after a
                                          loss the ranks that have not made a layer's step make it from this array. With
                                          replicas of several ranks FINISH needs a mesh from entrain_mesh_create. The
                                          communicator that the mesh was made of must then exist until
                                          entrain_edit_create returns */
  int32_t admit;                       /* ENTRAIN_ADMIT_*; default NONE. EXCHANGE needs ON_LOSS_FINISH, and a mesh of
                                          at least 2 replicas in entrain_edit_create. It is refused with
                                          ENTRAIN_OUTER_CALLBACK, whose state the library cannot send */
  int32_t most_replicas;               /* for admit: largest number of replicas; their numbers are below it. 0
                                          (default): N of the mesh, so that newcomers only replace lost replicas */
  entrain_store_t* admit_store;        /* for admit: the store in which newcomers apply, the same on all ranks. Not a
                                          store from entrain_store_create. The EDiT object keeps it open. NULL
                                          (default): the store that entrain_comm_create_from_env finds */
  const char* admit_name;              /* for admit: the name under which newcomers apply, 1 to 128 bytes; copied. NULL
                                          (default): "edit". EDiT objects that live together in one store need
                                          different names */
  int32_t anchor_check;                /* ENTRAIN_ANCHOR_CHECK_*; default STOP. REPAIR is refused with
                                          ENTRAIN_OUTER_CALLBACK, with ENTRAIN_MERGE_RESTART, with context and tensor
                                          axes, and on device memory. Not in plain averaging, which has no anchors */
  double round_deadline;               /* > 0, in seconds: when this time has passed since the first replica has come,
                                          the round is closed without the replicas that have not come. Less than
                                          timeout_ns.
                                          0 (default): no deadline */
  int32_t quorum;                      /* > 0: a round is closed when this number of replicas has come and
                                          round_deadline, if it is set, has passed. At most the number of replicas, or
                                          most_replicas if that is larger. 0 (default): no quorum; a round is closed at
                                          round_deadline, whatever the number. Both 0: a round needs all replicas */
  int32_t late;                        /* ENTRAIN_LATE_*, for quorum and round_deadline; default DROP */
  int64_t newcomer_warmup;             /* for admit: number of exchanges over which the weight of a newcomer grows, k of
                                          "Newcomers"; 0 to 1000. 0 (default): the weight is full at once */
} entrain_edit_config_t;
ENTRAIN_API void entrain_edit_config_init_sized(entrain_edit_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_config_init(entrain_edit_config_t* config) {
  entrain_edit_config_init_sized(config, sizeof(*config));
}

/* The options of EDiT are the fields of entrain_edit_config_t that hold one number each. Programs can make flags, forms
 * or bindings from the descriptions of options. entrain_acco_option describes the fields of entrain_acco_config_t in
 * the same way. */
enum { /* entrain_edit_option_t.type: the type of the field */
  ENTRAIN_OPTION_SWITCH = 0, /* int32_t, 0 or 1 */
  ENTRAIN_OPTION_CHOICE = 1, /* int32_t, the index of a name in `choices`, from 0 */
  ENTRAIN_OPTION_I32 = 2,
  ENTRAIN_OPTION_I64 = 3,
  ENTRAIN_OPTION_U64 = 4,
  ENTRAIN_OPTION_F64 = 5
};
typedef struct entrain_edit_option_t {
  size_t size;
  const char* name;       /* name of the field. All texts are constants of the library */
  const char* choices;    /* CHOICE: the names, separated by commas; otherwise NULL */
  const char* help;       /* one line */
  size_t offset;          /* position of the field, in bytes, in entrain_edit_config_t, or in entrain_acco_config_t if
                             entrain_acco_option has written this description */
  double default_value;   /* as entrain_edit_config_init, or entrain_acco_config_init, sets it */
  double least, most;     /* limits of the value; infinity: none */
  int32_t type;           /* ENTRAIN_OPTION_* */
  int32_t open;           /* the limits that the value must not equal; 1: least; 2: most; 3: both */
} entrain_edit_option_t;
ENTRAIN_API void entrain_edit_option_init_sized(entrain_edit_option_t* option, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_option_init(entrain_edit_option_t* option) {
  entrain_edit_option_init_sized(option, sizeof(*option));
}
/* Returns the number of options of EDiT. The options are numbered from 0. Needs no object; any thread. */
ENTRAIN_API int32_t entrain_edit_option_count(void);
/* Writes option `index` to *option. Returns INVALID_ARGUMENT if there is no such option. Needs no object; any
 * thread. */
ENTRAIN_API entrain_status_t entrain_edit_option(int32_t index, entrain_edit_option_t* option);
/* Writes 1 to *matters if option `index`, set to another value than its default, can have an effect together with the
 * other values of `config`. Writes 0 if entrain_edit_create would refuse every such value because it has no effect.
 * Does not apply rules that involve the arrays of `config`. config->shard may be NULL. Returns INVALID_ARGUMENT for an
 * option or a value out of range. Needs no object; any thread. */
ENTRAIN_API entrain_status_t entrain_edit_option_matters(const entrain_edit_config_t* config, int32_t index,
                                                         int32_t* matters);

/* Creates an EDiT object on the mesh. Collective; blocks. Checks the options. Refuses combinations of options that have
 * no effect. The error text says what to set. Such combinations are: clipping or norm weights without outer optimizer
 * or reducer; a temperature without norm weights; outer_* values other than the defaults without outer optimizer. */
ENTRAIN_API entrain_status_t entrain_edit_create(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                                 entrain_edit_t** edit);
/* Creates an EDiT object that joins a job that trains already. The replicas of this job, the members, have set
 * ENTRAIN_ADMIT_EXCHANGE. `mesh` contains only the ranks of this replica; a replica of the members must have the same
 * number of ranks. Create the communicator of `mesh` in the members' store, because the route to the store determines
 * the address at which the members reach this process. Give this communicator a name of its own. `config` is as on the
 * members; admit must be set. Blocks until the members have taken this replica in, at most wait_ns; 0: the
 * communicator's default deadline. Collective over the ranks of this replica. *edit belongs to the caller. See
 * "Newcomers" below. Errors:
 * - TIMED_OUT after wait_ns. The text has the reason, as that of entrain_comm_join does.
 * - MISMATCH if an option or a layer differs from that of the members; the text names the option or layer, and both
 *   values. Also if the hash of the received state differs from the members' hash.
 * - FAILED_PRECONDITION if the members' replicas have another number of ranks.
 * - PEER_LOST if the store cannot be reached. */
ENTRAIN_API entrain_status_t entrain_edit_join(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                               int64_t wait_ns, entrain_edit_t** edit);
/* Frees the object. Ends an exchange in progress, on all ranks. Waits for a running outer step, but at most 1 s. If the
 * step does not return, for example because it waits for a lock that the caller of destroy holds, the library leaves
 * the step to one of its threads and logs a warning. outer_user must stay valid until the step returns. The arrays of
 * the step belong to the library, which keeps them until then. */
ENTRAIN_API void entrain_edit_destroy(entrain_edit_t* edit);
/* Writes the stream of exchanges to *stream, on which an outer step of the caller enqueues its work; NULL on host
 * memory. Lent until the object is destroyed. */
ENTRAIN_API entrain_status_t entrain_edit_stream(const entrain_edit_t* edit, void** stream);

/* The calls of a step, in their order, for each rank of the mesh.
 *
 * "Exchange only" means EDiT without this library's sharding: with FSDP, ZeRO or DDP, or without any sharding. It needs
 * only the lines marked x. The library then neither gathers parameters nor reduces gradients. The caller binds its
 * arrays (entrain_shard_bind_layers, grads NULL) and reduces its gradients before it ends the step: it averages them
 * over the shard and context groups if entrain_edit_gradient_scope says LOCAL, and also over the sync group if it says
 * GLOBAL. The library does not check this. If replicas should have averaged and did not, their anchors differ, and the
 * first exchange after warm-up reports the difference. With and without the library's sharding, equal gradients give
 * equal bits.
 *
 *   | call of one step             | collective over    | between            | if it is missing                      |
 * x | edit_begin_forward           | all, if training   | end_step and the   | end_step returns FAILED_PRECONDITION  |
 *   |                              |                    | first layer's use  |                                       |
 *   | shard_begin_pass             | shard group        | passes             | layers are prefetched in wrong order  |
 * x | edit_wait_layer, each layer  | none, but others'  | begin_forward and  | end_step returns FAILED_PRECONDITION, |
 *   |                              | waits depend on it | the layer's use    | naming the layer; others time out     |
 *   | shard_gather, shard_wait     | shard group        | begin_forward and  | there are no parameters               |
 *   | (include edit_wait_layer)    |                    | the layer's use    |                                       |
 *   | shard_release                | none               | use and the next   | the next exchange returns             |
 *   |                              |                    | begin_forward      | FAILED_PRECONDITION, naming the layer |
 *   | shard_gradients,             | shard and context  | backward passes    | end_step returns FAILED_PRECONDITION, |
 *   | shard_reduce_gradients       | groups; GLOBAL:    |                    | naming layers, if this step has lent  |
 *   |                              | also sync group    |                    | gradients of any other layer          |
 *   | shard_finish_gradients       | none               | the last reduction | as for shard_reduce_gradients         |
 *   |                              |                    | and the optimizer  |                                       |
 * x | the caller's optimizer       | none               | the reductions and |                                       |
 *   |                              |                    | end_step           |                                       |
 * x | edit_end_step                | none               | the optimizer and  | the step is not counted: exchanges    |
 *   |                              |                    | begin_forward      | come late, on this rank alone         |
 *
 * The caller may write the bound parameters of a layer from its wait to the next begin_forward that exchanges the
 * layer, and with overlap_steps at any time except during calls. It may read them at any time except between
 * begin_forward and the layer's wait. */

/* After a loss, with ENTRAIN_ON_LOSS_FINISH. A replica is whole or gone: if one of its ranks is lost, its other ranks get
 * an error (PEER_LOST), which names the replica and the rank and says that the replica has left. No call returns an
 * error on the other ranks. They agree on the remaining ranks (entrain_comm_shrink), in a thread of the library, also
 * while the callers compute (with ENTRAIN_PROGRESS_CALLER only while some call of the library waits). If a replica is
 * lost between exchanges, the others make the next exchange. If it is lost during an exchange, the others finish the
 * exchange. If any of them has finished a layer with the lost replica's pseudo-gradient, all of them count it in this
 * layer. The other layers have weights and divisors as if the lost replica had not come. All replicas then have the
 * same bits. (With several ranks in a replica, this holds for each shard of a layer.) If ranks are cut off from each
 * other, the side with the majority goes on, as in entrain_comm_shrink. A rank that was left out, because it was
 * stopped or too late, gets STALE_GENERATION.
 *
 * Replicas keep their numbers. The groups of the mesh and of the shard do not change. So calls over the sync group fail
 * from then on: the reduction of gradients in warm-up, and entrain_shard_broadcast. A loss during warm-up, during a
 * save, or during a load ends the run. */

/* Newcomers, with ENTRAIN_ADMIT_EXCHANGE. A process, or the M ranks of a replica, calls entrain_edit_join. The first
 * rank of the first replica looks into the store before each rendezvous, which costs two requests. After the exchange,
 * a thread of the library takes the newcomers in on all ranks, while the callers train: it connects them, compares the
 * options, and sends them anchors, outer state, detectors (those of the first replica) and counters. Each replica sends
 * a share of each array. The newcomers check hashes. From the next rendezvous on the newcomers are replicas. A
 * rendezvous that becomes due meanwhile begins when the newcomers have the state.
 *
 * entrain_edit_join returns with theta = a. entrain_edit_info_t.steps is then the step of the fastest member, but at
 * most the step of the next exchange, so that the newcomer comes to that exchange with the others. In this exchange the
 * newcomer counts with the steps that it has made, and not at all if it has made none. The arrays of
 * entrain_edit_add_state are not sent: they keep the newcomer's values. Layers that do not train are sent.
 *
 * With newcomer_warmup = k the weight of a newcomer grows over its first k exchanges of a layer, so that the newcomer,
 * whose inner optimizer begins anew, moves the other replicas little:
 *
 *   w'_n = f_n w_n / (sum over the accepted m of f_m w_m),   f_n = (c_n + 1) / (k + 1)
 *
 * w is the weight by the other options (uniform, softmax, mixed with steps or tokens). c_n is the number of earlier
 * exchanges of the layer to which the newcomer has brought a pseudo-gradient. f_n = 1 if c_n >= k, and for replicas
 * that are no newcomers. Without normalize the weights are f_n w_n. All replicas compute the same bits.
 *
 * A newcomer gets the lowest number that no replica has, so a replacement gets the number of the replica that was lost.
 * entrain_edit_info_t.replica is this number. Numbers are below entrain_edit_info_t.most_replicas. The mesh of a
 * newcomer contains only its own replica.
 *
 * If a newcomer dies or stops while it is taken in, the attempt fails. The members lose at most 10 s beyond the time
 * for the data of one layer. If a replica is lost meanwhile, the newcomers apply again by themselves. No newcomer is
 * taken in at a requested exchange, or when a replica leaves or wishes to stop. */

/* Rounds that are closed early, with quorum or round_deadline. A replica has come to its exchange when
 * entrain_edit_begin_forward has begun the exchange on all its ranks. When a round is closed, the replicas that have come
 * exchange. The others are late: a thread of the library takes part for them with weight zero and without their
 * parameters, while their callers compute, so that all replicas have the same anchors. When a late replica comes, its
 * exchange takes up the results of the rounds that it has missed, as the option `late` says, and exchanges nothing. A
 * round takes up to 50 ms longer than without these options.
 *
 * An exchange that entrain_edit_request_sync has requested needs all replicas, and entrain_edit_begin_forward waits for
 * them; a late replica takes up its missed rounds first. Replicas that have left take part in all rounds, and do not
 * count for the quorum. If a round is not closed within timeout_ns, the exchange fails with TIMED_OUT, which names the
 * replicas that have not come; with ENTRAIN_ON_LOSS_FINISH these replicas are lost. Checkpoints can be saved after a
 * requested exchange; entrain_edit_open_state is refused. With ENTRAIN_ON_LOSS_FINISH the remaining replicas carry out
 * the last decision about a round, even if only one of them knew this decision. A lost replica does not count for the
 * quorum. If fewer replicas remain than the quorum, a round needs all of them.
 *
 * The options are refused in plain averaging, with use_async, overlap_steps, fragments, error_feedback, compat, and on
 * device memory; CARRY and WEIGHTED also with ENTRAIN_ANCHOR_CHECK_REPAIR. If replicas have several ranks, these
 * options need the mesh that ENTRAIN_ON_LOSS_FINISH needs. */

/* On device memory the host waits in entrain_edit_begin_forward for a merge that is due, and with use_async for the
 * rendezvous. The host also waits in entrain_edit_leave, in saves and loads, and, for the exchange, in
 * entrain_edit_layer_report and entrain_edit_layer_score. entrain_edit_create allocates anchors, outer state and the
 * memory of an exchange, and entrain_edit_destroy frees them. entrain_edit_info describes exchanges that are over; the
 * host may learn of their end with a delay. */

/* Call this function before each forward pass. If `training` is 1, `first_microbatch` is 1 and an exchange is due,
 * starts the exchange with the first layer, sets *syncing to 1, and returns without waiting for the exchange. (With
 * use_async it waits for the other replicas, see above.) Exchanges are due at the steps W_s + k H, never twice at the
 * same step. The exchange at W_s only creates the anchors, without traffic. Switches the shard's gradients from global
 * to local when warm-up ends. With overlap_steps the layers do not wait, and a later begin_forward merges the result;
 * with EDiT the begin_forward of the merge step waits for the exchange. */
ENTRAIN_API entrain_status_t entrain_edit_begin_forward(entrain_edit_t* edit, int32_t training,
                                                        int32_t first_microbatch, int32_t* syncing);
/* Starts entrain_edit_begin_forward, which may wait with use_async and with overlap_steps. `syncing` is lent until the
 * work is over, and written only on success. */
ENTRAIN_API entrain_status_t entrain_edit_begin_forward_start(entrain_edit_t* edit, int32_t training,
                                                              int32_t first_microbatch, int32_t* syncing,
                                                              entrain_work_t** work);
/* Call this function before the layer is gathered. Waits until the layer's exchange is done. Afterwards the live
 * parameters of the layer are those of the anchor, with the same bits on all replicas. Returns at once if no exchange
 * of the layer is in progress. entrain_shard_wait does the same for layers that it gathers ahead. */
ENTRAIN_API entrain_status_t entrain_edit_wait_layer(entrain_edit_t* edit, int32_t layer);
/* Permits the exchange of the layer, as entrain_edit_wait_layer does before it waits. *work is over when
 * entrain_edit_wait_layer would not block, and has the status that entrain_edit_wait_layer would return. On device
 * memory, where that function never blocks, *work is over when the exchange is over. */
ENTRAIN_API entrain_status_t entrain_edit_layer_work(entrain_edit_t* edit, int32_t layer, entrain_work_t** work);
/* Counts a step. Call this function after the step of the inner optimizer. Returns FAILED_PRECONDITION in these cases:
 * - begin_forward was not called with training 1 exactly gradient_accumulation_steps times for this step; the text has
 *   both numbers. A first_microbatch of 1 begins the count again.
 * - A layer is in exchange and no call has waited for it.
 * - entrain_shard_gradients was called in this step for any layer, and then a call is missing:
 *   entrain_shard_reduce_gradients for a layer that trains, after its gradients were last lent; or
 *   entrain_shard_finish_gradients after all reductions. The text names the layers. So reduce a layer that had no part
 *   in the step too; its gradients are zeros. */
ENTRAIN_API entrain_status_t entrain_edit_end_step(entrain_edit_t* edit);
/* Writes to *scope the ENTRAIN_GRADIENTS_* over which the gradients of the current step are averaged, that is, of the
 * step that the last begin_forward with training 1 began. The library's reduction uses this scope itself; a caller that
 * reduces gradients itself must use it too. Local; at any time. */
ENTRAIN_API entrain_status_t entrain_edit_gradient_scope(const entrain_edit_t* edit, int32_t* scope);
/* Requests an exchange: the next begin_forward with training 1 exchanges even if no exchange is due (but not in
 * warm-up, and not twice at one step). With overlap_steps this begin_forward waits for the exchanges in progress, and
 * the layers wait for the requested exchange, so that theta = a on all replicas. Collective. Use it at the end of
 * training, and to evaluate the parameters on which all replicas agree. */
ENTRAIN_API entrain_status_t entrain_edit_request_sync(entrain_edit_t* edit);

/* Records the work of this rank since its last record: the number of tokens on which it has trained (>= 0), and a
 * metric, such as the loss, with its weight (>= 0, finite; 0: no metric). The library adds up the records of the ranks
 * of a replica. If several ranks work on the same tokens, only one of them records the tokens. A replica whose ranks
 * all record 0 tokens (for example because each step was skipped) has trained on no tokens, and has no share with
 * use_step_weight. Steps count instead of tokens only if a replica that made steps recorded nothing, or if no replica
 * recorded a token. The ranks send the record at the next rendezvous. So metrics need no traffic of their own, and the
 * replicas do not wait for each other between two rendezvous. Local. */
ENTRAIN_API entrain_status_t entrain_edit_record(entrain_edit_t* edit, int64_t tokens, double metric, double weight);

enum { /* entrain_edit_wish */
  ENTRAIN_WISH_CHECKPOINT = 1,
  ENTRAIN_WISH_STOP = 2
};
/* Shows wishes (ENTRAIN_WISH_*, or-ed) at the next rendezvous. All ranks then see at the same rendezvous, in
 * entrain_edit_info_t.wishes, that some rank has these wishes, and can act together. Local. */
ENTRAIN_API entrain_status_t entrain_edit_wish(entrain_edit_t* edit, int32_t wishes);
/* Tells the other replicas that this replica has made its last step; they may continue. Takes part in their rendezvous.
 * After the last steps of this replica have been exchanged, its weight is zero. Returns when all replicas have left.
 * The live parameters are then the anchors, the same on all replicas. Collective over the replica; blocks, for each
 * rendezvous at most tau plus the time limit. With ENTRAIN_ON_LOSS_FINISH it also waits, at most the time limit, until
 * all ranks have finished the last exchange. This rank must not train afterwards. */
ENTRAIN_API entrain_status_t entrain_edit_leave(entrain_edit_t* edit);
/* Starts entrain_edit_leave. */
ENTRAIN_API entrain_status_t entrain_edit_leave_start(entrain_edit_t* edit, entrain_work_t** work);

typedef struct entrain_edit_replica_t {
  size_t size;
  int64_t steps;        /* g: optimizer steps counted */
  int64_t steps_since;  /* steps since the previous exchange */
  int64_t tokens_since; /* tokens recorded since the previous exchange */
  int32_t wishes;       /* ENTRAIN_WISH_* */
  int32_t leaving;      /* 1: the replica trains no more */
} entrain_edit_replica_t;
ENTRAIN_API void entrain_edit_replica_init_sized(entrain_edit_replica_t* replica, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_replica_init(entrain_edit_replica_t* replica) {
  entrain_edit_replica_init_sized(replica, sizeof(*replica));
}
/* Copies to *out the report of replica `replica` (0 to N - 1) at the last rendezvous. Returns FAILED_PRECONDITION
 * before the first rendezvous, and if the replica was lost before the last rendezvous. */
ENTRAIN_API entrain_status_t entrain_edit_replica(const entrain_edit_t* edit, int32_t replica,
                                                  entrain_edit_replica_t* out);

typedef struct entrain_edit_info_t {
  size_t size;
  int64_t steps;             /* g: optimizer steps counted */
  int64_t syncs;             /* exchanges done, without the creation of the anchors */
  int64_t last_sync_step;    /* g at the last exchange or anchor creation; -1: none yet */
  uint64_t anchor_checksum;  /* checksum of this rank's anchors after the last finished exchange; 0: no anchors. Equal
                                on all ranks of a sync group */
  uint64_t exposed_ns;       /* time for which begin_forward and wait_layer blocked the caller */
  uint64_t sync_ns;          /* time spent in exchanges, hidden or not */
  uint64_t bytes_sent_shard; /* payload bytes that this rank sent within its replica, for exchanges */
  uint64_t bytes_sent_sync;  /* payload bytes that this rank sent to other replicas, for exchanges */
  int32_t in_warmup;
  int32_t wishes;            /* ENTRAIN_WISH_* of any replica at the last rendezvous */
  int64_t rendezvous;        /* number of rendezvous, with or without an exchange */
  double metric;             /* mean of the metrics that all replicas recorded before the last rendezvous; NaN: none */
  int64_t rejections;        /* layers of this replica that were rejected, over all exchanges */
  int64_t rollbacks;         /* layers for which all replicas were rejected: theta returned to the anchor, and the
                                anchor did not move */
  int32_t replicas;          /* number of remaining replicas, newcomers included, as far as this rank knows */
  int32_t losses;            /* number of replicas that were lost: entrain_edit_loss describes them */
  int64_t short_rounds;      /* number of exchanges in which some layers were finished without a replica that had taken
                                part in the rendezvous */
  int64_t joins;             /* number of admissions of newcomers; on a newcomer, its own admission is the first */
  int32_t replica;           /* the number of this rank's replica */
  int32_t most_replicas;     /* all numbers of replicas are below this value: N of the mesh, or the option
                                most_replicas. It does not change during the life of the object */
  int64_t repairs;           /* with ENTRAIN_ANCHOR_CHECK_REPAIR: number of layers whose anchors were repaired, on any
                                rank of this sync group */
  int64_t missed;            /* rounds that were closed without this replica */
} entrain_edit_info_t;
ENTRAIN_API void entrain_edit_info_init_sized(entrain_edit_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_info_init(entrain_edit_info_t* info) {
  entrain_edit_info_init_sized(info, sizeof(*info));
}
/* Describes the state after the last finished exchange. */
ENTRAIN_API entrain_status_t entrain_edit_info(const entrain_edit_t* edit, entrain_edit_info_t* info);

/* Describes loss `index`. Losses are numbered from 0 in the order in which this rank learned of them. *replica becomes
 * the number of the lost replica, *rendezvous the number of rendezvous that were over at that time, and `text` the
 * reason, cut to `bytes` bytes with a 0 at the end. Each output may be NULL. Returns INVALID_ARGUMENT if there was no
 * such loss. */
ENTRAIN_API entrain_status_t entrain_edit_loss(const entrain_edit_t* edit, int32_t index, int32_t* replica,
                                               int64_t* rendezvous, char* text, size_t bytes);

/* Copies this rank's anchors to `anchor`: slab_count elements, laid out as the slab, converted to `dtype` (f32, f64,
 * bf16 or f16; UNIMPLEMENTED for others). `anchor` is device memory if the parameters are. For a frozen layer, copies
 * its live parameters. Returns FAILED_PRECONDITION before the anchors exist, and while an exchange is in progress. */
ENTRAIN_API entrain_status_t entrain_edit_anchor(const entrain_edit_t* edit, void* anchor, entrain_dtype_t dtype);

/* Writes the results of the last exchange for a layer, which must not be frozen or empty: the norm and the weight of
 * each replica, and the factor that clipped the combined pseudo-gradient. `norms` and `weights` have most_replicas
 * elements each (see entrain_edit_info_t); both are 0 for a replica that is lost or did not take part. Each output may
 * be NULL. */
ENTRAIN_API entrain_status_t entrain_edit_layer_report(const entrain_edit_t* edit, int32_t layer, double* norms,
                                                       double* weights, double* clip_factor);
/* Writes how this replica's detector (skip_anomaly) judged the layer's norm at the last exchange: *z, the z-score, and
 * *limit, above which a z-score is an outlier. Both are 0 during warm-up. *z is infinity if the norm is not finite.
 * Each output may be NULL. */
ENTRAIN_API entrain_status_t entrain_edit_layer_score(const entrain_edit_t* edit, int32_t layer, double* z, double* limit);

/* ---- Checkpoints of EDiT -------------------------------------------------------------------------------------- */

enum { /* entrain_checkpoint_config_t.kind */
  ENTRAIN_CHECKPOINT_PORTABLE = 0, /* steps, anchors (or parameters if there are no anchors), outer state, and the
                                      detectors of replica 0. A run with any number of replicas, and of ranks in each,
                                      can continue from it, with a new inner optimizer */
  ENTRAIN_CHECKPOINT_EXACT = 1     /* also the state of each rank: live parameters, counts, and the caller's arrays. On
                                      the same mesh the run continues with the same bits. Can also be loaded as
                                      portable */
};
enum {                     /* the ranks to which an array belongs; an array of the caller is ALL or RANK */
  ENTRAIN_STATE_ALL = 0,   /* the same on all ranks: both kinds of checkpoint keep one copy */
  ENTRAIN_STATE_RANK = 1,  /* different on each rank; only in the exact kind */
  ENTRAIN_STATE_REPLICA = 2, /* the same on all ranks of a replica; the portable kind keeps the array of replica 0 for
                                all replicas */
  ENTRAIN_STATE_LAYER = 3  /* a layer, divided among the ranks of a replica, and the same in all replicas */
};
/* Makes `count` elements at `data` part of the state: a save reads them from `data`, a load writes them to `data`. Use
 * it for the inner optimizer, data cursors and random number generators. All ranks name the same arrays. `name`: 1 to
 * 121 letters, digits and ". _ - /"; each name only once. `data` is lent until the EDiT object is destroyed. `data` is
 * host memory; if the object's own arrays are on a device, it may also be memory of that device. At each save and load
 * the library asks the driver where the memory is (INVALID_ARGUMENT for another device). The bytes in a checkpoint are
 * the same in both cases. Local. */
ENTRAIN_API entrain_status_t entrain_edit_add_state(entrain_edit_t* edit, const char* name, void* data, size_t count,
                                                    entrain_dtype_t dtype, int32_t holder);

typedef struct entrain_checkpoint_config {
  size_t size;
  const char* save_dir;    /* directory; NULL: "local_sgd_ckpt". A save creates it, but not its parent directory */
  const char* ckpt_name;   /* the checkpoint is save_dir/ckpt_name.ckpt; NULL: "local_sgd_ckpt". Letters, digits and
                              ". _ -" */
  int32_t kind;            /* ENTRAIN_CHECKPOINT_*; default PORTABLE. Saving: the kind to write. Loading: the kind as
                              which the checkpoint is read */
  int32_t full_state_dict; /* saving: 1 (default): rank 0 writes one file with whole layers; 0: each rank that holds
                              data writes its own file, and ckpt_name.ckpt refers to these files. A load detects the
                              form */
  int32_t rank0_only;      /* loading: 1 (default): rank 0 reads the files and sends the data, and no other rank needs
                              the files; 0: each rank reads the data that it needs. Saving: no effect, because no rank
                              gathers a copy of the whole state */
  int32_t cpu_offload;     /* accepted, without effect: gathered data are in host memory */
  int64_t timeout_ns;      /* deadline of the whole call; 0: the communicators' default */
} entrain_checkpoint_config_t;
ENTRAIN_API void entrain_checkpoint_config_init_sized(entrain_checkpoint_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_checkpoint_config_init(entrain_checkpoint_config_t* config) {
  entrain_checkpoint_config_init_sized(config, sizeof(*config));
}

/* Saves the state without changing it and without an exchange. Collective; blocks. A NULL config means all defaults.
 *
 * When a save is legal (FAILED_PRECONDITION otherwise):
 * - After an exchange (or the creation of the anchors) and before the next reduction of gradients. In terms of calls:
 *   after a begin_forward that exchanges, when all layers have been waited for.
 * - With use_async, the exact kind also after a rendezvous without an exchange.
 * - With overlap_steps, the exact kind of EDiT waits for the exchanges in progress and saves them too, so that each is
 *   merged at its step. The portable kind, and A-EDiT, need an exchange for which the layers waited
 *   (entrain_edit_request_sync).
 *
 * One rank asks all ranks for a save with ENTRAIN_WISH_CHECKPOINT. A replica in entrain_edit_leave
 * (entrain_edit_replica_t.leaving) cannot take part: save before or after.
 *
 * Either all ranks succeed, or all return the error of one rank, which names the rank and the path. The file, or all
 * files together, take effect in one step when all data are on the disk. Before that, and after an error, an older
 * checkpoint of the same name is unchanged. Killed processes leave files in save_dir if they were saving. A save
 * removes such files if they are older than its own beginning. A load removes them if they are older than the
 * checkpoint that it loaded. */
ENTRAIN_API entrain_status_t entrain_edit_save(entrain_edit_t* edit, const entrain_checkpoint_config_t* config);
/* Continues from a checkpoint: at its step, right after its exchange. The next call is begin_forward, which does not
 * exchange again. Collective; blocks. No exchange may be in progress, and no layer gathered. The library reads all data
 * and checks every byte before it changes anything. In the following cases it refuses the checkpoint on all ranks, and
 * the run is unchanged. INVALID_ARGUMENT: the file is damaged, truncated, of a newer format, or not a checkpoint.
 * FAILED_PRECONDITION: the checkpoint is of another model, of other options, or, for the exact kind, of another mesh.
 *
 * Loading as portable drops, without an error, state of single replicas or ranks that has no place in this run:
 * detectors if skip_anomaly is 0 (the log names them at level info). */
ENTRAIN_API entrain_status_t entrain_edit_load(entrain_edit_t* edit, const entrain_checkpoint_config_t* config);
/* Start entrain_edit_save and entrain_edit_load. If destroy ends a save, an older checkpoint of the same name is
 * unchanged. */
ENTRAIN_API entrain_status_t entrain_edit_save_start(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_edit_load_start(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);

/* Functions of the caller that write or read a checkpoint instead of the file save_dir/ckpt_name.ckpt, for example in
 * an object store, in memory, or in the format of another library. The bytes are those of the file. Each function
 * returns 0 on success. Any other number fails the call on all ranks: FAILED_PRECONDITION "rank 0: ...: write_at
 * returned 5 at byte 128".
 *
 * The comment of entrain_edit_save_to states which ranks and threads call the functions. Calls come one at a time. The
 * memory is lent during the call. Inside the functions, calls that need the engine return
 * FAILED_PRECONDITION, which names the function. The other ranks wait for the functions, so their time counts against
 * timeout_ns. The library checks the bytes that read_at gives as it checks those of a file, because a program trusts
 * the contents of a checkpoint. */
typedef int32_t (*entrain_checkpoint_write_fn)(void* user, int64_t offset, const void* data, size_t bytes);
typedef int32_t (*entrain_checkpoint_finish_fn)(void* user);
typedef int32_t (*entrain_checkpoint_read_fn)(void* user, int64_t offset, void* data, size_t bytes);
typedef struct entrain_checkpoint_functions {
  size_t size;
  void* user;                            /* first argument of all functions; belongs to the caller */
  entrain_checkpoint_write_fn write_at;  /* saving: receives every byte once: first the bytes from 128 on, in ascending
                                            order without a gap, then bytes 0 to 127 in one call. There may be many
                                            calls with few bytes each: buffer them if a write is expensive */
  entrain_checkpoint_finish_fn finish;   /* saving: called after all bytes are written and all ranks have sent their
                                            data. The checkpoint is valid when this returns 0. Not called if the save
                                            fails earlier */
  entrain_checkpoint_read_fn read_at;    /* loading: writes all bytes [offset, offset + bytes) of the checkpoint to
                                            `data` */
  int64_t bytes;                         /* loading: length of the checkpoint, >= 0 */
} entrain_checkpoint_functions_t;
ENTRAIN_API void entrain_checkpoint_functions_init_sized(entrain_checkpoint_functions_t* functions, size_t bytes);
static ENTRAIN_INLINE void entrain_checkpoint_functions_init(entrain_checkpoint_functions_t* functions) {
  entrain_checkpoint_functions_init_sized(functions, sizeof(*functions));
}
/* Save and load as entrain_edit_save and entrain_edit_load do, but through functions, in the calling thread. Rank 0
 * calls the functions. In load_from with rank0_only 0, every rank calls its own functions and reads the data that it
 * needs; the functions of all ranks must give the same bytes. A rank that calls no function may give NULL for
 * `functions`, and functions that are not called may be missing. If a rank lacks a function that it needs, all ranks
 * return INVALID_ARGUMENT, which names the function. config.save_dir and ckpt_name must be NULL, and for a save
 * full_state_dict must be 1 (INVALID_ARGUMENT otherwise). A checkpoint of several files cannot be loaded in this way
 * (FAILED_PRECONDITION). Either all ranks make these calls or none. */
ENTRAIN_API entrain_status_t entrain_edit_save_to(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                  const entrain_checkpoint_functions_t* functions);
ENTRAIN_API entrain_status_t entrain_edit_load_from(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                    const entrain_checkpoint_functions_t* functions);
/* Start the two calls above. A thread of the library calls the functions. */
ENTRAIN_API entrain_status_t entrain_edit_save_to_start(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                        const entrain_checkpoint_functions_t* functions,
                                                        entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_edit_load_from_start(entrain_edit_t* edit,
                                                          const entrain_checkpoint_config_t* config,
                                                          const entrain_checkpoint_functions_t* functions,
                                                          entrain_work_t** work);

/* ---- The state, array by array --------------------------------------------------------------------------------
 *
 * These functions read and write the contents of a checkpoint array by array, for torch.distributed.checkpoint and
 * other formats. Each rank sees the arrays of which it has a part:
 * - anchors ("anchor", one for each layer), outer state ("outer/0", ...), detectors ("detector/LAYER/mean", ...),
 *   counts ("steps", ...), and so on;
 * - in the exact kind also live parameters ("live/LAYER") and so on;
 * - of ACCO, masters ("master" of layer 0) and moments ("optim/0", ...);
 * - arrays of the caller, as "caller/NAME".
 *
 * The manifest of a checkpoint has the same names, kinds and meanings. They stay the same within a format version.
 *
 *     entrain_edit_open_state(edit, ENTRAIN_CHECKPOINT_PORTABLE, &state);
 *     for (index = 0; index < count; ++index) {              read:  entrain_state_get, into the caller's format
 *       entrain_state_info(state, index, &info);             write: entrain_state_set, from there; all entries,
 *     }                                                             and then entrain_state_commit, on all ranks
 *     entrain_state_destroy(state);
 *
 * Only one thread at a time may call functions on a state, and on its object while the state is open. */

/* Opens the current state, to read it or to set it. `kind`: ENTRAIN_CHECKPOINT_*. Not collective. Waits for exchanges
 * that run behind further steps. Returns FAILED_PRECONDITION while an exchange is in progress, or after gradients have
 * been reduced. The state of a run that has not exchanged yet can be opened in order to be set. The options of the run
 * determine the arrays. The state takes no memory for arrays until they are set. */
ENTRAIN_API entrain_status_t entrain_edit_open_state(entrain_edit_t* edit, int32_t kind, entrain_state_t** state);
/* Starts entrain_edit_open_state. `state` is lent until the work is over, and written only on success. */
ENTRAIN_API entrain_status_t entrain_edit_open_state_start(entrain_edit_t* edit, int32_t kind, entrain_state_t** state,
                                                           entrain_work_t** work);
/* Frees the handle. Values that were set and not committed have no effect. A state may be destroyed before or after its
 * object, but calls on it return FAILED_PRECONDITION after its object is destroyed. A commit in progress continues;
 * destroying the object ends it. */
ENTRAIN_API void entrain_state_destroy(entrain_state_t* state);

/* An entry of a state: an array that this rank holds, alone or with the same values as other ranks, or a piece of a
 * layer. Each piece of a layer is an entry, and pieces of one layer follow each other. A rank has several pieces of a
 * layer that has several segments. The pieces of all ranks of a replica make the whole layer, without gaps or padding.
 * So a piece may have no elements. `name`, `part`, `layer` and `rank` together are unique over all ranks, except for
 * copies. */
typedef struct entrain_state_info_t {
  size_t size;
  const char* name;      /* lent until the state is destroyed */
  size_t whole_count;    /* elements of the whole layer; not a layer: equal to count */
  size_t first;          /* index of the piece's first element in the layer; not a layer: 0 */
  size_t count;          /* elements that entrain_state_get and _set copy */
  entrain_dtype_t dtype;
  int32_t holder;        /* ENTRAIN_STATE_* */
  int32_t layer;         /* layer; -1: not a layer */
  int32_t part;          /* number of the model part that has the layer: tensor coordinate + tensor length x pipeline
                            coordinate; -1: not a layer */
  int32_t rank;          /* REPLICA: first rank of the replica, or 0 in the portable kind; RANK: this rank; otherwise
                            -1. The number of a rank is replica x ranks of a replica + rank within the replica */
  int32_t saves;         /* 1: of the ranks that hold the same values, this rank gives them to a checkpoint. In the
                            portable kind a REPLICA array counts only on this rank */
} entrain_state_info_t;
ENTRAIN_API void entrain_state_info_init_sized(entrain_state_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_state_info_init(entrain_state_info_t* info) {
  entrain_state_info_init_sized(info, sizeof(*info));
}
/* Write the number of entries on this rank to *count, and a description of entry `index` to *info. */
ENTRAIN_API entrain_status_t entrain_state_count(const entrain_state_t* state, size_t* count);
ENTRAIN_API entrain_status_t entrain_state_info(const entrain_state_t* state, size_t index, entrain_state_info_t* info);
/* Writes to *index the entry with this name and layer (-1: not a layer); if the layer has several pieces, the first.
 * Returns INVALID_ARGUMENT, which states the name and the layer, if there is no such entry. */
ENTRAIN_API entrain_status_t entrain_state_find(const entrain_state_t* state, const char* name, int32_t layer,
                                                size_t* index);
/* Copies an entry to `data`, in host memory. `count` and `dtype` must be those of the entry (INVALID_ARGUMENT
 * otherwise). Local. Returns FAILED_PRECONDITION at a time when no checkpoint can be saved (see entrain_edit_save; for
 * ACCO, if micro-batches have been added), and if the run has continued since the state was opened. On device memory
 * waits for the stream. */
ENTRAIN_API entrain_status_t entrain_state_get(const entrain_state_t* state, size_t index, void* data, size_t count,
                                               entrain_dtype_t dtype);
/* Keeps a copy of `data` (host memory) as the future value of the entry; the run does not change. Local. If an entry is
 * set again, the last value counts. */
ENTRAIN_API entrain_status_t entrain_state_set(entrain_state_t* state, size_t index, const void* data, size_t count,
                                               entrain_dtype_t dtype);
/* Continues the run from the values that were set, as entrain_edit_load and entrain_acco_load continue from a
 * checkpoint of that kind. Collective over the object's ranks; blocks, at most timeout_ns (0: the communicators'
 * default). Either all ranks succeed, or nothing changes on any rank and the values that were set stay set. Errors:
 * - FAILED_PRECONDITION, naming the rank and the entries, if an entry with elements was not set; also in the cases
 *   in which a load returns it.
 * - INVALID_ARGUMENT, naming the array, if ranks that must hold the same values have set different ones.
 * - FAILED_PRECONDITION if the state has been committed already. */
ENTRAIN_API entrain_status_t entrain_state_commit(entrain_state_t* state, int64_t timeout_ns);
/* Starts entrain_state_commit and returns at once. *work is over when the commit is. */
ENTRAIN_API entrain_status_t entrain_state_commit_start(entrain_state_t* state, int64_t timeout_ns,
                                                        entrain_work_t** work);

/* ---- ACCO: gradients cross the network behind the computation ------------------------------------------------------
 *
 * A channel takes gradients and gives parameters one round later (ACCO, arXiv 2406.02613). The optimizer's state and
 * the f32 masters are sharded over the W ranks of the communicator (ZeRO-1). The caller computes the gradients of
 * micro-batches at the installed parameters, and adds them (sums, not means) to the channel's accumulator. When the
 * round in progress is over (entrain_acco_poll), entrain_acco_install takes its parameters and sends the gradients that
 * have been added:
 *
 *     for (;;) {
 *       ... forward and backward of a micro-batch; gradients += ...
 *       entrain_acco_add(acco, 1, tokens);
 *       entrain_acco_poll(acco, &ready);
 *       if (ready) { entrain_acco_install(acco, &finished); if (finished) break; }
 *     }
 *
 * Each rank makes as many micro-batches as fit into a round. All micro-batches have the same weight, on whichever rank
 * they were made. A rank may add while other ranks are slower: only install waits for them. Only one thread at a time
 * may call functions on a channel. An error of the network ends the channel on all ranks, and every later call returns
 * the first error.
 *
 * On device memory (config.memory), calls are ordered with config.stream: the device does the work of a call after the
 * work that is on the stream at the call, and work that is enqueued on the stream afterwards sees the result. "Added"
 * means that the additions are enqueued. The host waits for the device and for other ranks only in these calls:
 * - In install, until two conditions hold. The round before the one in progress is over. All ranks have handed over the
 *   gradients that the round in progress sums, because the counts of this round are known only then. With clip_norm,
 *   and with agd, whose steps count branches, the host also waits for the sum. It does not wait for the parameters; the
 *   stream does. In the install that ends the run, the host waits for all of the last round.
 * - In create, save, load and destroy.
 *
 * If an error occurs after install has returned (for example a rank dies while parameters are gathered), the stream
 * continues with the current contents of params, and the next install returns the error. A host that runs far ahead of
 * its device adds more micro-batches to a round than the device can compute in time; max_microbatches limits them. */

/* After a loss, with ENTRAIN_ON_LOSS_FINISH. Each rank keeps a copy of the shard (masters and optimizer state) of the rank
 * before it; rank 0 keeps a copy of the last rank's shard. A thread of the library applies each commit to the shard and
 * to the copy. So a commit sends L / W more elements of wire_dtype, and makes two steps. When ranks are lost, no call
 * returns an error on the other ranks. They agree on the remaining ranks (entrain_comm_shrink) and finish the round. If
 * all ranks had voted for the commit, it counts the lost ranks' gradients on all remaining ranks. Otherwise the round
 * is repeated without these gradients, and its divisor counts only the micro-batches of the remaining ranks; the
 * gradients that they have added stay. Then the shards are cut anew for the remaining ranks. After the same number of
 * installs, all of them have the same parameters, bit for bit.
 *
 * The accumulator and `params` stay where they are. A rank whose caller computes takes part in its next install. If a
 * rank and the next rank, which keeps the copy of its shard, are both lost before the shards have been cut anew, a
 * shard is lost: all calls then return MISMATCH, which names the two ranks. Start again from the last checkpoint. A
 * rank that was left out, because it was stopped or too late, gets STALE_GENERATION. A loss during create, save or load
 * is an error. In the last round, install waits until all ranks have finished it. With agd, the optimizer's counts of
 * branches include the copy. */

enum { /* entrain_acco_config_t.method. Each round sends 2 (W - 1) / W L elements per rank, L = padded parameters */
  ENTRAIN_ACCO = 0,      /* half A of a batch is computed at an estimate of the parameters, half B at the parameters. A
                            alone makes the next estimate (a preview of the optimizer step, which leaves no trace); A
                            and B make the next parameters. Two rounds per commit */
  ENTRAIN_ACCO_DPU = 1,  /* delayed parameter update: each round commits, with the gradients of the previous round */
  ENTRAIN_ACCO_WP = 2,   /* weight prediction: as DPU, but the next gradients are computed at the parameters that one
                            more such step would give (a reconstruction, because there is no published code) */
  ENTRAIN_ACCO_ZERO1 = 3 /* synchronous: install waits for the round that it starts */
};
enum { /* units of the schedule and of the limit; they are counted over the commits of all ranks together */
  ENTRAIN_UNIT_COMMITS = 0,
  ENTRAIN_UNIT_GRADIENTS = 1, /* micro-batches */
  ENTRAIN_UNIT_TOKENS = 2     /* as given to entrain_acco_add */
};

/* One step of an optimizer of the caller, on elements [first, first + count) of this rank's shard. The channel's thread
 * calls it for one piece after the other. Inside this function and inside the schedule, calls that need the engine
 * return FAILED_PRECONDITION, which names the function; queries and optimizers are allowed.
 * - `grads`: the mean gradient, clipped. `master`: the parameters. Both are f32, or f64 if params_dtype is f64.
 * - preview 0: a commit. `master` becomes the new parameters; `out` is NULL.
 * - preview 1: `out` receives the parameters that a commit would write to `master`; `master` and the optimizer's own
 *   state must not change.
 * - `step` counts commits from 1.
 *
 * On device memory all three arrays are device addresses, and the function enqueues its work on entrain_acco_stream.
 * Returns 0 on success. Any other number ends the channel on all ranks with ABORTED, "the ACCO step of commit 7
 * returned 5"; on other ranks the text names the rank. Then no further piece is stepped. `params` stay as the last
 * install left them, and `master` stays as the step left it. */
typedef int32_t (*entrain_acco_step_fn)(void* user, int32_t preview, int64_t step, double lr, size_t first, size_t count,
                                        const void* grads, void* master, void* out);
/* Returns the learning rate for `progress`, the amount that has been committed in schedule_unit. Must return the same
 * on all ranks. The channel's thread calls it. A rate that is negative or not finite ends the channel on all ranks with
 * ABORTED, which states the rate. */
typedef double (*entrain_acco_schedule_fn)(void* user, int64_t progress);

/* Elements [first, first + count) of the parameters, with their own optimizer and factor of the learning rate, for
 * example for norms and biases without weight decay. The struct has no `size`, because it is an element of an array.
 * Its four fields will not change. */
typedef struct entrain_acco_group {
  size_t first, count;          /* count >= 1 */
  const entrain_optim_t* optim; /* as config.optim; NULL: config.optim itself */
  double lr_scale;              /* > 0: the schedule's rate is multiplied by it */
} entrain_acco_group_t;

typedef struct entrain_acco_config {
  size_t size;
  void* params;                  /* `count` elements of params_dtype; lent until the channel is destroyed. Install
                                    writes them. All ranks start with the parameters of rank 0 */
  size_t count;                  /* Psi >= 1 */
  int32_t params_dtype;          /* ENTRAIN_F32 (default) or ENTRAIN_BF16; ENTRAIN_F64 only with `step` */
  int32_t grads_dtype;           /* type of the accumulator: params_dtype or ENTRAIN_F32; -1 (default): params_dtype */
  int32_t wire_dtype;            /* type of gradients on the wire: ENTRAIN_F32 or ENTRAIN_BF16; ENTRAIN_F64 if
                                    params_dtype is F64; -1 (default): params_dtype */
  int32_t method;                /* ENTRAIN_ACCO*; default ENTRAIN_ACCO */
  const entrain_optim_t* optim;  /* the optimizer; may be destroyed before the channel, which keeps its state arrays.
                                    The channel's memory and stream apply; those of the optimizer have no effect. NULL
                                    with `step`, or if groups cover all elements */
  entrain_acco_step_fn step;     /* the step of an optimizer of the caller, instead of optim */
  void* user;                    /* first argument of step */
  int64_t min_microbatches;      /* smallest number of micro-batches of this rank in a round; >= 1; default 1 */
  int64_t max_microbatches;      /* largest number of micro-batches of this rank in a round; >= min_microbatches. At
                                    this number the caller must call install, which then waits. 0 (default): no
                                    limit */
  const int32_t* scripted_counts; /* for tests: the exact number of micro-batches in each round, so that a run can be
                                     repeated bit for bit; NULL (default): none. Copied */
  size_t scripted_rounds;        /* number of entries of scripted_counts; the run cannot have more rounds */
  int64_t warmup_rounds;         /* synchronous rounds at the start; default 0 */
  double clip_norm;              /* > 0: largest norm of a round's mean gradient; each round then sends one more scalar.
                                    0 (default): no limit */
  double lr;                     /* default 1e-3 */
  double min_lr;                 /* learning rate at the end of the cosine; default 0 */
  int64_t schedule_warmup;       /* the rate grows linearly from 0 to lr up to this progress; default 0 */
  int64_t schedule_total;        /* then it follows half a cosine down to min_lr at this progress; 0 (default): it stays
                                    constant */
  int32_t schedule_unit;         /* ENTRAIN_UNIT_*: unit of these two numbers, and of `progress` of schedule; default
                                    COMMITS */
  int32_t limit_unit;            /* ENTRAIN_UNIT_*: unit of limit; default COMMITS */
  entrain_acco_schedule_fn schedule; /* replaces lr, min_lr, schedule_warmup and schedule_total; or NULL */
  void* schedule_user;           /* first argument of schedule */
  int64_t limit;                 /* the run ends at the first commit that reaches it; 0 (default): it ends at
                                    entrain_acco_stop */
  int64_t timeout_ns;            /* deadline of each collective, on DEVICE with its wait for the stream; 0: the
                                    communicator's default */
  int32_t memory;                /* ENTRAIN_MEMORY_HOST (default) or DEVICE, the same on all ranks: memory of params, of
                                    the accumulator, of all arrays of the channel, and of the arrays that a step of the
                                    caller receives */
  int32_t reserved;              /* 0 */
  void* stream;                  /* CUstream; NULL (default): the device's default stream. HOST requires NULL.
                                    entrain_acco_set_stream changes it */
  const entrain_acco_group_t* groups; /* disjoint and ascending. `optim` steps elements that are in no group, at the
                                         schedule's rate; if optim is NULL, every element must be in a group. Not with
                                         `step`. Copied. NULL (default): no groups */
  size_t group_count;            /* number of groups. The channel keeps as many state arrays as the optimizer that needs
                                    most of them; each is as long as the shard */
  int32_t on_loss;               /* ENTRAIN_ON_LOSS_*; default FAIL. FINISH is refused with `step` and on device memory */
  int32_t admit;                 /* ENTRAIN_ADMIT_*; default NONE. EXCHANGE is refused with `step` and on device memory */
  entrain_store_t* admit_store;  /* for admit: the store in which newcomers apply, as
                                    entrain_edit_config_t.admit_store */
  const char* admit_name;        /* for admit: the name under which newcomers apply, 1 to 128 bytes; copied. NULL
                                    (default): "acco". Channels that live together in one store need different names */
} entrain_acco_config_t;
ENTRAIN_API void entrain_acco_config_init_sized(entrain_acco_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_acco_config_init(entrain_acco_config_t* config) {
  entrain_acco_config_init_sized(config, sizeof(*config));
}

/* Describe the fields of entrain_acco_config_t that hold one number each, as entrain_edit_option_count,
 * entrain_edit_option and entrain_edit_option_matters describe those of EDiT. They omit params_dtype, grads_dtype,
 * wire_dtype and memory, which describe arrays. They do not look at optim and at the arrays and functions of `config`,
 * which may be NULL. */
ENTRAIN_API int32_t entrain_acco_option_count(void);
ENTRAIN_API entrain_status_t entrain_acco_option(int32_t index, entrain_edit_option_t* option);
ENTRAIN_API entrain_status_t entrain_acco_option_matters(const entrain_acco_config_t* config, int32_t index,
                                                         int32_t* matters);

/* Creates a channel. Collective over `comm`; blocks. All ranks must give the same config, except for params, the step,
 * the numbers of micro-batches, timeout_ns and stream. In addition to params, the channel takes (4 + 4 A) Psi / W bytes
 * for the shard, where A is the number of the optimizer's state arrays; and 8 Psi bytes with f32, 4 Psi with bf16, 6
 * Psi with bf16 and an f32 accumulator. The pieces of a step take up to 64 KiB more, or 16 MiB on a device. On a device
 * this call runs the collectives of a round once on arbitrary data, so that later rounds need not allocate memory.
 * ENTRAIN_ON_LOSS_FINISH takes as much again for the copy of a shard, a sum of gradients of Psi / W elements, and Psi
 * elements of wire_dtype. */
ENTRAIN_API entrain_status_t entrain_acco_create(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                                 entrain_acco_t** acco);
/* Creates a channel that joins a channel that trains already. The ranks of that channel, the members, have set
 * ENTRAIN_ADMIT_EXCHANGE. `comm` has this process alone. Create it in the members' store, because the route to the
 * store determines the address at which the members reach this process. Give it a name of its own. `config` is as on
 * the members; admit must be set. Blocks until the members have taken this rank in, at most wait_ns; 0: the
 * communicator's default deadline. *acco belongs to the caller. config->params then holds the parameters that the
 * members installed last. See "Newcomers" below. Errors are those of entrain_edit_join. Optimizers are compared by the
 * result of one step on arbitrary values, so the values in the text of MISMATCH may be such results. */
ENTRAIN_API entrain_status_t entrain_acco_join(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                               int64_t wait_ns, entrain_acco_t** acco);
/* Frees the channel, and ends a round in progress on all ranks. So destroy a channel after the end of the run, or on
 * all ranks together (on device memory, when the streams of all ranks have finished their last install). Waits at most
 * 1 s for a running step or schedule, as entrain_edit_destroy does. With ENTRAIN_ADMIT_EXCHANGE rank 0 also waits at
 * most 0.5 s for the end of a request to the store. If newcomers are being connected, the wait for the end of this
 * attempt is at most 2 s, or a quarter of the time limit if the store does not answer. Does nothing for NULL. */
ENTRAIN_API void entrain_acco_destroy(entrain_acco_t* acco);
/* Writes the stream of rounds to *stream, on which a step of the caller enqueues its work; NULL on host memory. Lent
 * until the channel is destroyed. */
ENTRAIN_API entrain_status_t entrain_acco_stream(const entrain_acco_t* acco, void** stream);
/* DEVICE: orders later calls on the channel with `stream` (NULL: the device's default stream) instead of the previous
 * stream (config.stream, or that of an earlier call). Work that is enqueued on `stream` after this call waits for the
 * work that the previous stream has at this call. Local; cheap enough for every micro-batch. The stream must live until
 * another is set or the channel is destroyed, and until open states of the channel are destroyed. HOST: returns
 * FAILED_PRECONDITION. Returns INVALID_ARGUMENT if the stream is not one of the channel's device. */
ENTRAIN_API entrain_status_t entrain_acco_set_stream(entrain_acco_t* acco, void* stream);
/* Writes the address of the accumulator to *gradients: `count` elements of grads_dtype, zero at first. Only the caller
 * adds to it. Install clears the accumulator when necessary. Lent until the channel is destroyed. */
ENTRAIN_API entrain_status_t entrain_acco_gradients(entrain_acco_t* acco, void** gradients);
/* Tells the channel that the gradients of `microbatches` (>= 1) micro-batches with `tokens` (>= 0) tokens have been
 * added to the accumulator. Local. */
ENTRAIN_API entrain_status_t entrain_acco_add(entrain_acco_t* acco, int64_t microbatches, int64_t tokens);
/* Writes 1 to *ready if the round in progress is over and min_microbatches have been added, so that install would not
 * wait for other ranks; also if max_microbatches have been added. Never blocks. */
ENTRAIN_API entrain_status_t entrain_acco_poll(entrain_acco_t* acco, int32_t* ready);
/* Waits until entrain_acco_install would not wait, at most timeout_ns (0: does not wait; < 0: as long as the deadlines
 * of the round allow). Returns IN_PROGRESS when timeout_ns has passed, and may then be called again. Use this function
 * for signals, watchdogs and progress. Fails where install would fail, with the same error. If install would wait for
 * the round that it starts (zero1, warm-up), this function starts that round; then nothing may be added, saved or
 * loaded before install (FAILED_PRECONDITION). Otherwise this function changes nothing. */
ENTRAIN_API entrain_status_t entrain_acco_wait(entrain_acco_t* acco, int64_t timeout_ns);
/* Creates a work that is over when entrain_acco_install would not wait, with the status of the round. If
 * entrain_acco_wait would start a round, this function starts the round too, with the same restrictions. */
ENTRAIN_API entrain_status_t entrain_acco_work(entrain_acco_t* acco, entrain_work_t** work);
/* Waits for the round in progress, installs its parameters, and starts the next round with the gradients that have been
 * added. *finished becomes 1 when the run is over, on all ranks after the same commit. The parameters are then those of
 * that commit, and gradients that were added after it are dropped. */
ENTRAIN_API entrain_status_t entrain_acco_install(entrain_acco_t* acco, int32_t* finished);
/* Ends the run at the first commit that learns of this call. Any rank may call. Local. If a checkpoint was saved after
 * this end, a run that loads it continues, up to its own limit. */
ENTRAIN_API entrain_status_t entrain_acco_stop(entrain_acco_t* acco);

/* The state after the last install. After the same number of installs all ranks read the same values, except for
 * `dropped` and the fields from exposed_ns to bytes_held. */
typedef struct entrain_acco_info_t {
  size_t size;
  int64_t rounds;          /* rounds installed */
  int64_t commits;         /* commits; this field and the next two count for all ranks together */
  int64_t gradients;       /* micro-batches committed */
  int64_t tokens;
  int64_t dropped;         /* micro-batches of this rank that came too late for the last commit */
  int64_t microbatches;    /* micro-batches of all ranks in the last round; for a commit, those of both its halves */
  double lr;               /* learning rate of the last round */
  double grad_norm;        /* norm of the last round's mean gradient, with clip_norm; otherwise NaN */
  double clip_factor;      /* factor by which this gradient was clipped; 1: not clipped */
  int32_t committed;       /* 1: the last round was a commit */
  int32_t finished;
  uint64_t exposed_ns;     /* time for which install waited, since creation */
  uint64_t round_ns;       /* time that rounds took since creation, in parallel to the caller */
  uint64_t bytes_sent;     /* payload bytes that this rank sent */
  int64_t bytes_held;      /* bytes of memory that the channel holds, without params */
  int32_t ranks;        /* ranks whose micro-batches are in the last round; before the first round: ranks of the channel */
  int32_t losses;       /* ranks that were lost before the last round: entrain_acco_loss describes them. A newcomer
                           counts the losses since it has joined */
  int64_t joins;        /* newcomers that were taken in before the last round */
} entrain_acco_info_t;
ENTRAIN_API void entrain_acco_info_init_sized(entrain_acco_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_acco_info_init(entrain_acco_info_t* info) {
  entrain_acco_info_init_sized(info, sizeof(*info));
}
ENTRAIN_API entrain_status_t entrain_acco_info(const entrain_acco_t* acco, entrain_acco_info_t* info);
/* Describes loss `index`. Losses are numbered from 0 in the order in which this rank learned of them. *rank becomes the
 * number of the lost rank in the communicator of entrain_acco_create (newcomers have the next numbers, in the order in
 * which they came), *round the round that was under way, counted from 1, and `text` the reason, cut to `bytes` bytes
 * with a 0 at the end. Each output may be NULL. Returns INVALID_ARGUMENT if this rank knows of no such loss. It may
 * know of losses that entrain_acco_info does not count yet. */
ENTRAIN_API entrain_status_t entrain_acco_loss(const entrain_acco_t* acco, int32_t index, int32_t* rank, int64_t* round,
                                               char* text, size_t bytes);

/* Newcomers, with ENTRAIN_ADMIT_EXCHANGE. A process calls entrain_acco_join. A thread of the library looks into the
 * store between rounds (rank 0: two requests, at most every 20 ms) and connects newcomers on all ranks, while rounds go
 * on. At the beginning of the first round after a commit, the shards of masters and optimizer state are cut anew for
 * all ranks. Newcomers get their shards, the parameters and the counters, and check hashes. The rounds stop for this
 * transfer only. This round counts the gradients of newcomers too, so it waits until the newcomers have called
 * entrain_acco_install. All ranks then have the same bits.
 *
 * The members keep their old state until all of them have agreed that the transfer has succeeded. If a newcomer dies or
 * stops before that, the attempt fails. No round waits for the newcomer, except that the transfer may wait 10 s beyond
 * the time for its data. Afterwards the newcomer is a rank like the others: with ENTRAIN_ON_LOSS_FAIL its loss ends the
 * run, with FINISH the others go on. If a member is lost meanwhile, newcomers apply again, or go on with the others. No
 * newcomer is taken in after the last commit. The arrays of entrain_acco_add_state are not sent: they keep the
 * newcomer's values.
 *
 * From its first entrain_acco_install on, a newcomer makes the same calls as the members. After this install its
 * entrain_acco_info_t equals that of the members. With ZERO1 this install brings a new commit. With the other methods
 * it brings no round: entrain_acco_info_t is that of the commit before the admission, which the members have installed
 * already. If the members save this commit, the newcomer must take part in the save. So decide about saves from
 * entrain_acco_info after each install. If a newcomer does not save a commit because it knows the commit from its
 * admission, the members wait in entrain_acco_save. */

/* Checkpoints of a channel. Arguments and errors are those of entrain_edit_add_state, entrain_edit_save and
 * entrain_edit_load. Save between install and the next add. A save waits for the round in progress and changes nothing.
 * - Exact: the run continues with the same bits (with scripted counts), by the same method.
 * - Portable: a run with any number of ranks and any method continues from the last commit. For f32 masters only. Of an
 *   optimizer of the caller, the checkpoint has only the arrays that were added as state.
 *
 * Groups must be those of the checkpoint, with the same number of state arrays each (FAILED_PRECONDITION, which names
 * the group). The rates and other numbers of a group may differ from those of the checkpoint, as lr may. */
ENTRAIN_API entrain_status_t entrain_acco_add_state(entrain_acco_t* acco, const char* name, void* data, size_t count,
                                                    entrain_dtype_t dtype, int32_t holder);
ENTRAIN_API entrain_status_t entrain_acco_save(entrain_acco_t* acco, const entrain_checkpoint_config_t* config);
ENTRAIN_API entrain_status_t entrain_acco_load(entrain_acco_t* acco, const entrain_checkpoint_config_t* config);
ENTRAIN_API entrain_status_t entrain_acco_save_start(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_acco_load_start(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);
/* As entrain_edit_save_to, entrain_edit_load_from and entrain_edit_open_state. The channel counts as one replica and
 * one layer. The state may be opened where a checkpoint may be saved, and before the first add. */
ENTRAIN_API entrain_status_t entrain_acco_save_to(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                  const entrain_checkpoint_functions_t* functions);
ENTRAIN_API entrain_status_t entrain_acco_load_from(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                    const entrain_checkpoint_functions_t* functions);
ENTRAIN_API entrain_status_t entrain_acco_save_to_start(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                        const entrain_checkpoint_functions_t* functions,
                                                        entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_acco_load_from_start(entrain_acco_t* acco,
                                                          const entrain_checkpoint_config_t* config,
                                                          const entrain_checkpoint_functions_t* functions,
                                                          entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_acco_open_state(entrain_acco_t* acco, int32_t kind, entrain_state_t** state);
ENTRAIN_API entrain_status_t entrain_acco_open_state_start(entrain_acco_t* acco, int32_t kind, entrain_state_t** state,
                                                           entrain_work_t** work);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_TRAIN_H_ */
