/* Training: the mesh of ranks, layer-wise sharding of a model, EDiT on a sharded model, and the gradient channel of
 * ACCO. ACCO needs neither mesh nor sharding. All arrays are flat. The model belongs to the caller.
 *
 *              sync ->                    M = shard group size: the ranks that together hold one replica
 *          r0   r2   r4                   N = sync group size: the ranks that hold the same part of all replicas
 *  shard   r1   r3   r5                   here M = 2, N = 3: r0, r1 are replica 0; r0, r2, r4 hold the same part
 *
 * Sources: EDiT is arXiv 2412.07210 (Cheng et al., ICLR 2025). The symbols are those of the paper: theta, the
 * parameters that the caller trains; a, the anchor, that is, the parameters on which all replicas agreed last;
 * Delta = a - theta, the pseudo-gradient; G, the norm of Delta; eta and mu, the outer learning rate and momentum; H,
 * the sync interval. ACCO is arXiv 2406.02613 and has its own section below.
 *
 * Unless a function says otherwise:
 * - Only one thread at a time may call functions on one object.
 * - "Collective" means that all ranks of the mesh make the call in the same order.
 * - If a communicator inside the object fails, the first call that notices this returns the error.
 * - A call on an EDiT object or a gradient channel may fail on one rank only. Then the library tells the reason to the
 *   ranks that wait for this rank. When their deadline passes, or the failed rank exits, their error states this
 *   reason. (Not for save, load, reduce, open_state and commit with a wrong argument: there the others only learn which
 *   rank has not come.)
 *
 * Every call of a training loop that blocks has a form with a time limit, for signals, watchdogs and event loops: an
 * argument `work`, or a function whose name ends in _work. Both give a work, for entrain_work_wait, _notify,
 * _descriptor and so on (collectives.h). Names in the table are without "entrain_":
 *
 *   | blocking call                          | form with a time limit                                                 |
 *   | edit_wait_layer                        | edit_layer_work                                                        |
 *   | shard_wait, shard_release              | shard_gather_work                                                      |
 *   | shard_finish_gradients                 | shard_gradients_work                                                   |
 *   | shard_gradients, shard_set_buffers     | shard_gradients_work, if the memory is the caller's                    |
 *   | acco_install                           | acco_work, followed by acco_install                                    |
 *   | edit_begin_forward, edit_leave,        | the same with `work`                                                   |
 *   | edit_open_state, acco_open_state       |                                                                        |
 *   | shard_broadcast, shard_gradient_norm   | the same with `work`. The shard's timeout_ns bounds them. After        |
 *   |                                        | TIMED_OUT the shard can only be destroyed                              |
 *   | edit_save, edit_load, acco_save,       | the same with `work`. config.timeout_ns bounds the call                |
 *   | acco_load                              |                                                                        |
 *   | edit_reduce, acco_reduce, state_commit | the same with `work`. timeout_ns bounds the call                       |
 *   | edit_join, acco_join                   | none. wait_ns bounds the wait for the others                           |
 *   | mesh_create, mesh_create_from,         | none. The communicators' default (entrain_comm_set_timeout)            |
 *   | shard_create, edit_create, acco_create | bounds each collective inside. After TIMED_OUT no object exists,       |
 *   |                                        | and the communicator on which the collective ran has ended             |
 *
 * A work from a function ..._work only observes the operation. Nothing changes when you free the work, or stop waiting
 * for it. The caller still makes the blocking call. This call returns at once if the work is over.
 *
 * With an argument `work` that is not NULL, a thread of the library executes the call. The call cannot be withdrawn,
 * and continues after its work is freed. Until the call is over, no other call may use the object. If the object is an
 * EDiT object, no other call may use its shard or its open states either. Such a call returns FAILED_PRECONDITION. But
 * queries of constants are allowed (shard_layer_info, shard_slab_count, state_count, state_info, state_find). If the
 * object is destroyed, the started call ends with ABORTED, also on the ranks that wait for this rank. Before you
 * destroy an object, make sure that blocking calls on it in other threads have returned. The library copies arguments,
 * but not the array `in` of a reduction. This array, output arguments, and the object that `user` points to, are lent
 * until the work is over.
 *
 * done() of entrain_work_notify may call functions of both kinds: those whose name ends in _work, and those with an
 * argument `work`, if this argument is not NULL. For works of both kinds entrain_work_info reports sequence 0, the
 * layer as tag (-1 if the call has none), and the replica's communicator (ACCO: that of entrain_acco_create). */
#ifndef ENTRAIN_TRAIN_H_
#define ENTRAIN_TRAIN_H_

#include "entrain/collectives.h"
#include "entrain/comm.h"
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

typedef struct entrain_mesh_config_t {
  size_t size;
  int32_t tensor, pipeline, context; /* ranks along each axis; default 1. Ranks along the context axis hold the same
                                        parameters. Each of them works on its own part of every sequence, and the
                                        library averages their gradients. In every exchange EDiT compares the parameters
                                        of these ranks. It also compares the copies of layers that are replicated along
                                        the tensor axis. If copies differ, the call returns MISMATCH; the text names the
                                        layer and the ranks */
  int32_t shard;                     /* M: ranks along this axis; default 1 */
  int32_t sync;                      /* N: ranks along this axis; 0 (default): the size of the communicator divided by
                                        the lengths of the other axes */
  const char* order;                 /* the axes, in the order in which rank numbers run through them. Neighbours along
                                        the first axis have consecutive ranks. NULL:
                                        "tensor,context,shard,pipeline,sync" */
} entrain_mesh_config_t;
static ENTRAIN_INLINE void entrain_mesh_config_init(entrain_mesh_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_MESH_CONFIG, config, sizeof(*config));
}

/* Creates a mesh: splits `comm` into the groups of the mesh. Collective over `comm`; blocks. Returns INVALID_ARGUMENT
 * if the product of the lengths of the axes is not the size of `comm`; the text names the axes and their lengths. */
ENTRAIN_API entrain_status_t entrain_mesh_create(entrain_comm_t* comm, const entrain_mesh_config_t* config,
                                                 entrain_mesh_t** mesh);
/* Creates a mesh from two existing communicators: `shard_comm` has the ranks of this rank's replica, `sync_comm` the
 * ranks that hold the same part in all replicas. Both communicators still belong to the caller, who may destroy them
 * before the mesh. Collective over both communicators, because the call compares their sizes; blocks. */
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

/* Layer l has P_l = layer_counts[l] elements, padded with zeros to a multiple of M. Rank m of the shard group holds the
 * elements [m p_l, (m + 1) p_l), where p_l = ceil(P_l / M). These elements are the rank's shard of the layer. A rank
 * keeps its shards of all layers in one of two ways. Either they lie one after the other in one flat array, the slab
 * (entrain_shard_bind); the slab has as many elements as the sum of p_l over all layers. Or each shard lies in its own
 * array (entrain_shard_bind_layers). */
/* With layer_segments, a layer is cut in the same way as by FSDP2 and torch.chunk. Each segment (tensor) is cut along
 * its dimension 0 into M chunks of ceil(rows / M) rows. The last chunks may be shorter or empty. A rank's shard of the
 * layer has one chunk of each segment, one after the other, each padded with zeros to ceil(rows / M) rows. So p_l is
 * the sum over the segments of ceil(rows / M) count / rows, and there is padding between chunks, too. The caller keeps
 * the padding zero, also in gradients. A gathered layer consists of the M shards one after the other, and so does a
 * gradient buffer. entrain_shard_load and checkpoints use another form of the layer: the segments one after the other,
 * without padding. So a portable checkpoint fits any M. */
typedef struct entrain_shard_config_t {
  size_t size;
  int32_t layers;
  int32_t prefetch;           /* number of layers that the library gathers before the caller needs them; default 1; 0:
                                 none */
  const size_t* layer_counts; /* P_l: `layers` entries, in the order of the forward pass; 0: no parameters */
  entrain_dtype_t param_dtype; /* type of gathered layers, in memory and on the wire: ENTRAIN_F32 (default) or
                                  ENTRAIN_BF16 */
  entrain_dtype_t grad_dtype;  /* type of gradient buffers, in memory and on the wire: ENTRAIN_F32 (default) or
                                  ENTRAIN_BF16. Bound arrays have their own type */
  int64_t timeout_ns;          /* deadline of each collective inside; 0: the communicators' default */
  const uint8_t* layer_frozen; /* `layers` entries. 1: the layer is frozen, that is, none of its parameters train; 0:
                                  the layer trains; NULL: all layers train. A frozen layer is gathered like the others.
                                  It has no gradients (the library does not change its part of the gradient slab) and no
                                  anchor. EDiT does not exchange it and does not count it in norms. But an optimizer
                                  step over the whole slab does change it, for example by weight decay */
  const uint8_t* layer_replicated; /* `layers` entries. 1: all ranks along the tensor axis hold the same copy of this
                                      layer (for example the weights of a norm layer); 0: each of these ranks holds its
                                      own part; NULL: 0 for all layers. A replicated layer counts once in norms. So all
                                      these ranks use the same norm, weight and clip factor. The caller keeps the
                                      gradients of the copies equal */
  const int32_t* layer_segments; /* `layers` entries: number of segments (tensors) of each layer. NULL (default): each
                                    layer is cut as one flat array. If it is not NULL, the two fields below have one
                                    entry for each segment, layer by layer */
  const size_t* segment_counts;  /* number of elements of each segment; the segments of a layer add up to its P_l */
  const size_t* segment_rows;    /* length of dimension 0 of each segment; must divide the number of elements; 0 exactly
                                    for a segment without elements */
} entrain_shard_config_t;
static ENTRAIN_INLINE void entrain_shard_config_init(entrain_shard_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_SHARD_CONFIG, config, sizeof(*config));
}

/* The arrays of a sharded model, of EDiT and of ACCO are in host memory. Device memory is refused where it is given
 * (INVALID_ARGUMENT names the argument). To train on a device, give the library arrays in host memory, best
 * page-locked, and copy: for EDiT see entrain_edit_config_t.fetch; for ACCO copy the sums of gradients to the
 * accumulator before entrain_acco_install, and params back after it. */

/* Creates a sharded model on the mesh. Collective; blocks. The ranks of the shard, context and sync groups must give the
 * same layers. The parts of a tensor or pipeline axis have layers of their own. */
ENTRAIN_API entrain_status_t entrain_shard_create(entrain_mesh_t* mesh, const entrain_shard_config_t* config,
                                                  entrain_shard_t** shard);
ENTRAIN_API void entrain_shard_destroy(entrain_shard_t* shard);

typedef struct entrain_shard_layer_t {
  size_t size;
  size_t full_count;   /* P_l */
  size_t padded_count; /* M p_l: elements of a gathered layer, and of a gradient buffer */
  size_t shard_count;  /* p_l */
  size_t first;        /* index in the padded layer of this rank's first element: m p_l */
  size_t valid_count;  /* number of elements of this rank's shard, without the padding at its end */
  size_t slab_offset;  /* index in the slab of the shard's first element */
} entrain_shard_layer_t;
static ENTRAIN_INLINE void entrain_shard_layer_init(entrain_shard_layer_t* layer) {
  entrain_struct_init(ENTRAIN_STRUCT_SHARD_LAYER, layer, sizeof(*layer));
}
ENTRAIN_API entrain_status_t entrain_shard_layer_info(const entrain_shard_t* shard, int32_t layer,
                                                      entrain_shard_layer_t* out);
/* Writes the number of elements of the slab to *count. */
ENTRAIN_API entrain_status_t entrain_shard_slab_count(const entrain_shard_t* shard, size_t* count);

/* Lends the slab of parameters and the slab of gradients to the library until the shard and the EDiT object on it are
 * destroyed. Each slab has as many elements of `dtype` as entrain_shard_slab_count reports, in host memory. `dtype`:
 * ENTRAIN_F32, or ENTRAIN_BF16 (see entrain_shard_bind_layers); UNIMPLEMENTED for others. Call either this function or
 * entrain_shard_bind_layers, once, before the functions below. The library accesses the parameters only from a call of
 * this header until the end of its wait: it reads them, and EDiT also writes them. The library adds to the gradients
 * and never clears them. */
ENTRAIN_API entrain_status_t entrain_shard_bind(entrain_shard_t* shard, void* params, void* grads,
                                                entrain_dtype_t dtype);
/* Lends one array per layer instead of slabs. params[l] and grads[l] are this rank's shard of layer l. Each has
 * shard_count elements of `dtype`. `dtype` is the same on all ranks. Both lists have `layers` entries; the library
 * copies the lists. For a layer without elements the entries are NULL. For a frozen layer grads[l] may be NULL. If
 * `grads` is NULL, the caller reduces gradients itself, and entrain_shard_gradients returns FAILED_PRECONDITION.
 *
 * `dtype`: ENTRAIN_F32, or ENTRAIN_BF16 for parameters without an f32 copy. With bf16:
 * - EDiT's anchors, pseudo-gradients and outer state are f32. After an exchange theta is the anchor a, rounded to
 *   nearest even. In the next exchange theta counts as a + (theta - rounded a). So the rounding adds nothing to
 *   pseudo-gradients.
 * - Between exchanges theta has only the precision of bf16. If a step of the optimizer is smaller than half the
 *   distance to the next bf16 number (2^-9 of the value), theta does not change. The same holds for an outer step, but
 *   the anchor does change.
 * - Gradients are summed in f32 and rounded at each reduction.
 * - An EDiT object takes 10 bytes more per element of the largest shard, 20 with overlap_steps or with late CARRY or
 *   WEIGHTED. */
ENTRAIN_API entrain_status_t entrain_shard_bind_layers(entrain_shard_t* shard, void* const* params, void* const* grads,
                                                       entrain_dtype_t dtype);

/* Copies this rank's part of the whole layer `full` to the bound parameters. `full` has P_l elements of `dtype`: f32,
 * f64, bf16 or f16 (UNIMPLEMENTED for others). Converts the elements to the type of the parameters, and sets the
 * padding to zero. Local. */
ENTRAIN_API entrain_status_t entrain_shard_load(entrain_shard_t* shard, int32_t layer, const void* full,
                                                entrain_dtype_t dtype);
/* Makes all replicas start with the same parameters. Copies the parameters of replica 0 to all replicas. Also copies
 * those of the first rank along the context axis to the other ranks along this axis. Collective; blocks if `work` is
 * NULL. */
ENTRAIN_API entrain_status_t entrain_shard_broadcast(entrain_shard_t* shard, entrain_work_t** work);

/* ---- Passes over a sharded model ------------------------------------------------------------------------------ */

enum { ENTRAIN_PASS_FORWARD = 0, ENTRAIN_PASS_BACKWARD = 1 };
/* Tells the library the order in which the caller will use the layers: ascending (forward) or descending (backward).
 * The library prefetches layers in this order. Collective. */
ENTRAIN_API entrain_status_t entrain_shard_begin_pass(entrain_shard_t* shard, int32_t pass);
/* Starts the all-gather of a layer's parameters over the shard group; returns at once. Does nothing if a gather of the
 * layer has been started and the layer has not been released. All ranks of the shard group gather the same layers, in
 * any order. */
ENTRAIN_API entrain_status_t entrain_shard_gather(entrain_shard_t* shard, int32_t layer);
/* Waits until the layer is gathered. Starts the gather if no call has started it. Also starts the gathers of the next
 * `prefetch` layers of the pass. *params becomes the address of padded_count elements of param_dtype. This memory
 * belongs to the library. The caller may read it until entrain_shard_release, and must not write it. */
ENTRAIN_API entrain_status_t entrain_shard_wait(entrain_shard_t* shard, int32_t layer, void** params);
/* Starts the layer's gather if no call has started it. Does not start gathers of other layers. *work is over when
 * entrain_shard_wait would not block. It has the status that entrain_shard_wait would return. */
ENTRAIN_API entrain_status_t entrain_shard_gather_work(entrain_shard_t* shard, int32_t layer, entrain_work_t** work);
/* Returns the memory of the gathered layer to the library. If the gather is still running, waits for its end. */
ENTRAIN_API entrain_status_t entrain_shard_release(entrain_shard_t* shard, int32_t layer);

/* Writes to *grads the address of a gradient buffer for the layer: padded_count elements of grad_dtype, all zero. The
 * memory belongs to the library. The caller may add to it until entrain_shard_reduce_gradients; until then a further
 * call gives the same buffer, with what it contains. Returns INVALID_ARGUMENT for a frozen layer. */
ENTRAIN_API entrain_status_t entrain_shard_gradients(entrain_shard_t* shard, int32_t layer, void** grads);
/* Takes the gradient buffer of the layer back and starts its reduction; returns at once. The reduction has these steps:
 * - a reduce-scatter over the shard group,
 * - an all-reduce over the C ranks of the context group,
 * - with global gradients also an all-reduce over the sync group,
 * - division by M C (local) or M C N (global), and addition to the bound gradients.
 *
 * So each rank must give the gradient of the mean loss over its own tokens. If a rank's loss is its part of a sum over
 * the whole sequence, multiply this loss by C first. For layers that are replicated along the tensor axis, the caller
 * itself combines the gradients of the copies. All ranks reduce the same layers, in any order. But with global
 * gradients the ranks of a sync group must use the same order. */
ENTRAIN_API entrain_status_t entrain_shard_reduce_gradients(entrain_shard_t* shard, int32_t layer);
/* Waits until the results of all reductions that were started have been added to the bound gradients. */
ENTRAIN_API entrain_status_t entrain_shard_finish_gradients(entrain_shard_t* shard);
/* *work is over when the results of all reductions that have been started so far are added to the bound gradients. The
 * caller must still call entrain_shard_finish_gradients, which then does not block. *work has the status that
 * entrain_shard_finish_gradients would return. */
ENTRAIN_API entrain_status_t entrain_shard_gradients_work(entrain_shard_t* shard, entrain_work_t** work);

/* Makes the library use memory of the caller as the buffers of a layer. Each buffer has padded_count elements.
 * `gathered`, of param_dtype: every gather writes the layer to this
 * address, even if the shard group has one rank. `gradients`, of grad_dtype: entrain_shard_gradients clears this memory
 * and returns its address. NULL: memory of the library. For a frozen layer `gradients` must be NULL. The memory is lent
 * until other memory is set or the shard is destroyed. With such memory entrain_shard_gradients waits for the layer's
 * previous reduction. Returns FAILED_PRECONDITION before the arrays are bound, from
 * the start of the layer's gather to its release, and while its gradient buffer is lent. Waits for a running reduction
 * of the layer. Local. */
ENTRAIN_API entrain_status_t entrain_shard_set_buffers(entrain_shard_t* shard, int32_t layer, void* gathered,
                                                       void* gradients);
/* Writes to *norm the norm of all bound gradients of a replica, that is, over its shard, tensor and pipeline groups.
 * The norm is the square root of the sum of squares, in double. Each element counts once, even if several ranks hold it
 * along the context axis or, for replicated layers, along the tensor axis. Frozen layers and padding do not count. All
 * ranks of a replica get the same bits. If gradients are global (ENTRAIN_GRADIENTS_GLOBAL), all replicas get the same
 * bits. The norm is not finite if a gradient is not finite. Returns FAILED_PRECONDITION if no gradients are bound, or
 * if they are not reduced as entrain_edit_end_step requires. Collective over the replica; blocks if `work` is NULL.
 * Each rank sends one number. */
ENTRAIN_API entrain_status_t entrain_shard_gradient_norm(entrain_shard_t* shard, double* norm, entrain_work_t** work);

enum {
  ENTRAIN_GRADIENTS_LOCAL = 0, /* averaged over the shard and context groups, so that each replica trains alone */
  ENTRAIN_GRADIENTS_GLOBAL = 1 /* averaged over the shard, context and sync groups (synchronous data parallelism); the
                                  default */
};
/* Sets the scope of reductions that start after this call. `scope`: ENTRAIN_GRADIENTS_*. An EDiT object on this shard
 * sets the scope itself. Collective. */
ENTRAIN_API entrain_status_t entrain_shard_set_gradients(entrain_shard_t* shard, int32_t scope);

typedef struct entrain_shard_stats_t {
  size_t size;
  uint64_t gather_wait_ns;   /* time for which entrain_shard_wait blocked the caller, without waits for exchanges */
  uint64_t reduce_wait_ns;   /* time for which entrain_shard_finish_gradients blocked the caller */
  uint64_t bytes_sent_shard; /* payload bytes that this rank sent within its shard and context groups */
  uint64_t bytes_sent_sync;  /* payload bytes that this rank sent to other replicas, for gradients and
                                entrain_shard_broadcast */
} entrain_shard_stats_t;
static ENTRAIN_INLINE void entrain_shard_stats_init(entrain_shard_stats_t* stats) {
  entrain_struct_init(ENTRAIN_STRUCT_SHARD_STATS, stats, sizeof(*stats));
}
/* Reads the counters since creation. Exact when no call of the shard is in flight. */
ENTRAIN_API entrain_status_t entrain_shard_stats(const entrain_shard_t* shard, entrain_shard_stats_t* stats);

/* ---- EDiT ----------------------------------------------------------------------------------------------------- */

enum { /* entrain_edit_config_t.outer_optimizer */
  ENTRAIN_OUTER_NONE = 0,     /* a = a - the combined Delta. Together with ENTRAIN_REDUCER_NONE this is "plain
                                 averaging", which has no anchor */
  ENTRAIN_OUTER_SGD = 1,      /* b = mu b + g, a = a - eta (g + mu b) (nesterov) or a - eta b */
  ENTRAIN_OUTER_ADAMW = 2,    /* AdamW with gradient g and decoupled weight decay; the state has two moments instead of
                                 b */
  ENTRAIN_OUTER_CALLBACK = 3, /* entrain_edit_config_t.outer_step */
  ENTRAIN_OUTER_LION = 4      /* Lion (arXiv 2302.06675): a = (1 - eta lambda) a - eta sign(beta1 m + (1 - beta1) g),
                                 then m = beta2 m + (1 - beta2) g. The state has the moment m instead of b */
};
/* Copies the parameters of all layers into the bound host arrays. Give this function if the parameters of your
 * framework lie in memory that the library cannot see (of an accelerator, or in another form).
 *
 * The library calls the function inside entrain_edit_begin_forward and entrain_edit_leave, on their thread, or with
 * `work` on a thread of the library. It calls the function only if it is about to read or change the parameters, and
 * once in such a call. So steps without an exchange or a merge cost no copy. The caller copies the arrays back to its
 * own memory at two times:
 * - After entrain_edit_begin_forward or entrain_edit_leave has returned: the layers that the call has merged (with
 *   overlap_steps or quorum, and in leave). Copy all layers.
 * - After entrain_edit_wait_layer has returned: this layer.
 *
 * The caller itself copies to the arrays before entrain_edit_save, entrain_edit_load and entrain_edit_open_state. It
 * copies back after entrain_shard_broadcast, entrain_edit_join, entrain_edit_load and entrain_state_commit. The
 * function must not call this EDiT object. Returns 0 on success. Any other number ends the call on all ranks with
 * ABORTED. */
typedef int32_t (*entrain_edit_fetch_fn)(void* user);
/* Changes the hyperparameters of an outer step. `step` counts the outer steps of `layer` from 1. The count continues
 * after a load, and a newcomer continues the count of the other replicas. On entry *lr is outer_lr and *momentum is
 * outer_momentum. The function may change both: 0 <= *lr, 0 <= *momentum < 1, both finite. Each layer may have values
 * of its own, and so may each fragment. If outer_momentum is 0, there is no momentum, and *momentum must stay 0.
 * Optimizers other than ENTRAIN_OUTER_SGD ignore *momentum. The function must return the same values on all ranks, so
 * compute them from the arguments alone. If values differ, the next exchange finds the difference (anchor_check). The
 * thread that makes the layer's outer step calls the function before the step; the rules of entrain_outer_step_fn
 * apply. Returns 0 on success. Any other number, or a value out of its range, ends the communicators of this EDiT
 * object on all ranks with ABORTED. */
typedef int32_t (*entrain_outer_schedule_fn)(void* user, int32_t layer, int64_t step, double* lr, double* momentum);
/* Returns the length of the next interval. For EDiT this is H in steps: an integer of at least 1 and of at least
 * overlap_steps. With use_async it is tau in seconds, more than 0. `exchanges` is the number of intervals before this
 * one, and `steps` is the number of steps since warm-up at its beginning. EDiT asks for the intervals in order, each
 * once, and in the same way on all replicas. After a load or a join it asks again, from the first interval on. So
 * compute H from the arguments alone. If the steps of an exchange differ between replicas, the exchange ends on all
 * ranks with MISMATCH and a message that names both steps. With quorum or round_deadline they are not compared,
 * because a late replica may be at another step. A-EDiT may ask several times for one interval, and each replica has a
 * tau of its own. The library calls the function inside entrain_edit_begin_forward, entrain_edit_leave and
 * entrain_edit_join, on their thread or a thread of the library. The function must not call this EDiT object. A value
 * out of range ends the call with ABORTED on all ranks. */
typedef double (*entrain_interval_schedule_fn)(void* user, int64_t exchanges, int64_t steps);

/* The caller's outer step of one layer. Moves this rank's `count` elements of the anchor, in place, in the direction
 * opposite to `grad`. `grad` is the combined and clipped pseudo-gradient. `step` is 1 for the layer's first step, and
 * increases by 1 each time. A thread of the library calls the function, for one layer at a time. The function must not
 * wait for other work of this thread. Both arrays are lent during the call. Inside the function, calls that need the
 * engine return FAILED_PRECONDITION, which names the function; queries and optimizers are allowed. The ranks of
 * a sync group receive the same bits, and must produce the same bits. Otherwise the next exchange finds the difference.
 *
 * Returns 0 on success. Any other number ends the communicators of this EDiT object on all ranks with ABORTED: "the
 * outer step of layer 3, step 7, returned 5". The other ranks receive this error in their next exchange at the latest;
 * the text names the failed rank. After a failure the anchor stays as the function left it, and the parameters stay as
 * they were before the layer's exchange. This rank calls the function for no other layer. */
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
 * since the last rendezvous of the replicas. Each replica reads its own monotonic clock. When the time of a replica has
 * passed, it waits in entrain_edit_begin_forward for the other replicas. A replica of one rank arrives at most one step
 * after its own time has passed. A replica of several ranks arrives at most two steps after that time: it uses the
 * clock of its first rank, and its other ranks learn one step later that the time has passed. At the rendezvous the
 * replicas add up the steps that they have made since the last exchange. If the sum is less than
 * min_total_global_steps, they continue without an exchange, and have the next rendezvous after the same time. */
enum { /* overlap_merge: the new theta at the end of an exchange that ran during further steps. a is the new anchor */
  ENTRAIN_MERGE_ADD = 0,    /* a + the change that this replica has made since the exchange began */
  ENTRAIN_MERGE_MIX = 1,    /* alpha theta + (1 - alpha) a (Streaming DiLoCo, arXiv 2501.18512, algorithm 2) */
  ENTRAIN_MERGE_RESTART = 2 /* as ADD, but theta is also set to the current anchor when the exchange begins. So the
                               steps of a replica take effect one round later, at the same time on all replicas. With
                               overlap_steps = H this is CO2 (arXiv 2401.16265) */
};
enum { /* fragment_pattern */
  ENTRAIN_FRAGMENT_SEQUENTIAL = 0, /* each fragment has consecutive layers, not counting frozen ones */
  ENTRAIN_FRAGMENT_STRIDED = 1     /* each fragment has every P-th layer, not counting frozen ones */
};
enum { /* on_loss: what happens when a rank is lost. A rank is lost if its process dies or cannot be reached, or if the
          rank does not arrive at an exchange within timeout_ns, or if its library is silent (`silence`) */
  ENTRAIN_ON_LOSS_FAIL = 0,  /* the next call on every rank returns the error */
  ENTRAIN_ON_LOSS_FINISH = 1 /* EDiT: the replicas that have lost no rank finish the exchange and continue. ACCO: the
                                remaining ranks finish the round and continue. See "After a loss" in each section */
};
enum { /* admit: when newcomers become replicas */
  ENTRAIN_ADMIT_NONE = 0,    /* never */
  ENTRAIN_ADMIT_EXCHANGE = 1 /* EDiT: after an exchange, during the next steps. ACCO: after a commit. See "Newcomers" in
                                each section */
};
enum { /* anchor_check: what happens when the anchors of replicas differ. At each rendezvous the replicas compare
          checksums of their anchors, layer by layer. The checksums are computed from the memory at that time. So the
          check finds an outer step whose result differs between replicas, and memory that has changed since the last
          exchange. The check sends 8 bytes per rank and rendezvous. The pass over memory that computes the norms
          computes the checksums, too */
  ENTRAIN_ANCHOR_CHECK_STOP = 0,   /* the exchange fails on every rank with MISMATCH; the text names the layer, the
                                      replicas and the checksums */
  ENTRAIN_ANCHOR_CHECK_REPAIR = 1, /* the library stores a checksum of an anchor when it writes the anchor. The anchor
                                      that has the majority of these stored checksums is the right one. Replicas with
                                      another anchor in memory receive the right anchor, and the outer state, from the
                                      lowest replica that has the right anchor. So two replicas are enough to repair
                                      memory that has changed on one of them. On its replica, a repaired layer
                                      contributes nothing to this exchange, as if its norm were not finite. Its
                                      parameters become the new anchor. A warning in the log names the layer, the
                                      replicas and the checksums. If there is no majority, the exchange fails as with
                                      STOP */
  ENTRAIN_ANCHOR_CHECK_OFF = 2     /* anchors are not compared */
};
enum { /* late: what happens to the pseudo-gradient of a replica that arrives after its round was closed. See "Rounds
          that are closed early" below */
  ENTRAIN_LATE_DROP = 0,    /* theta becomes the new anchor */
  ENTRAIN_LATE_CARRY = 1,   /* theta = theta + new anchor - previous anchor. So the next round includes the
                               pseudo-gradient. Takes 4 more bytes per element of this rank's shards */
  ENTRAIN_LATE_WEIGHTED = 2 /* as CARRY. In addition, the weight of the replica in the next round is divided by 1 + the
                               number of rounds that it has missed. This happens before the weights are normalised */
};
typedef struct entrain_edit_config_t {
  size_t size;
  entrain_shard_t* shard;              /* the sharded model, with bound arrays. The EDiT object keeps it alive */
  int64_t local_sgd_sync_interval;     /* H: optimizer steps between exchanges, >= 1; default 1 */
  int64_t local_sgd_warmup_steps;      /* W_s: synchronous steps before the first local step, >= 0; default 0 */
  int32_t gradient_accumulation_steps; /* number of micro-batches per optimizer step, >= 1; default 1.
                                          entrain_edit_end_step checks this number */
  int32_t reducer;                     /* ENTRAIN_REDUCER_*; default NONE */
  int32_t pseudo_gradnorm_reduce;      /* 1: the replicas have the weights softmax(-G / T) ("norm weights"); this needs
                                          a reducer. 0 (default): no norm weights */
  int32_t normalize;                   /* 1 (default): weighted mean; 0: weighted sum. For gta, and for linear without
                                          norm weights */
  double weight_softmax_temperature;   /* T > 0; 0 (default): not set. With norm weights T is then 1 */
  double clip_pseudo_grad;             /* phi > 0: largest norm of a layer's combined Delta; 0 (default): no limit */
  int32_t outer_optimizer;             /* ENTRAIN_OUTER_*; default NONE */
  int32_t outer_nesterov;              /* 0 (default) or 1 */
  double outer_lr;                     /* eta > 0; default 0.7 */
  double outer_momentum;               /* mu, 0 <= mu < 1; default 0.8 */
  double outer_weight_decay;           /* >= 0; default 0 */
  int32_t prefetch;                    /* number of layers that are exchanged before the caller needs them; default 1.
                                          0: a layer is exchanged in its entrain_edit_wait_layer */
  int32_t use_async;                   /* 1: A-EDiT; 0 (default): EDiT */
  int64_t timeout_ns;                  /* deadline of each collective inside; 0: the communicators' default. At a
                                          rendezvous it bounds the wait for the slowest replica */
  double local_sgd_sync_time;          /* tau > 0, in seconds; default 600; for use_async */
  int64_t min_total_global_steps;      /* steps of all replicas together, >= 1; default 100; for use_async */
  int32_t use_step_weight;             /* for use_async, and for quorum with overlap_steps. 1: the replicas have weights
                                          proportional to their training since the last exchange ("step weights"): to
                                          their tokens, or to their steps if tokens are not recorded (see
                                          entrain_edit_record). With quorum and overlap_steps: to their tokens times
                                          their tokens per step (arXiv 2604.21428). 0 (default): no step weights */
  int32_t skip_anomaly;                /* 1: for each layer and replica, a detector rejects a pseudo-gradient whose norm
                                          is far above the earlier norms of this layer and replica. 0 (default): rejects
                                          only norms that are not finite, or above 1e18 */
  double step_weight_ratio;            /* r in (0, 1], default 0.5. With a reducer, the share of the step weights in the
                                          weights. Without a reducer the weights are the step weights */
  double ewma_alpha;                   /* in (0, 1), default 0.02: weight of a new norm in the running mean and
                                          deviation of norms */
  int64_t ewma_warmup_steps;           /* length of a detector's warm-up, in exchanges, 2 to 1048576; default 120. A norm
                                          can be rejected only after this number of norms has been accepted, counted
                                          from the first norm that is not zero. The warm-up begins again after 5
                                          rejections in a row. It also begins again if two exchanges in a row reject all
                                          replicas. In both cases the level of the norms has changed */
  double ewma_threshold;               /* > 0, default 3: a norm is rejected above mean + threshold x deviation. The
                                          deviation counts as at least 1 % of the mean. The limit is higher in two
                                          cases. (1) Mean and deviation are uncertain, because there are few norms or
                                          alpha is large. So a threshold of 3 rejects 0.14 % of normal noise in this
                                          case, too. (2) Recent norms scatter by more than their deviation */
  double outer_beta1, outer_beta2, outer_eps; /* for adamw; the betas also for lion. outer_beta1: in [0, 1), default
                                                 0.9. outer_beta2: in [0, 1), default 0.999. outer_eps: >= 1e-37,
                                                 default 1e-8 */
  entrain_outer_step_fn outer_step;    /* the outer step for ENTRAIN_OUTER_CALLBACK, else NULL */
  void* outer_user;                    /* first argument of outer_step; owned by the caller */
  int32_t is_debug;                    /* 1: for each layer and exchange, the first rank of each replica writes one line
                                          to the log, at any log level. The line has the norm, its z-score and limit,
                                          whether it was rejected, the weight and the clip factor. 0 (default): off */
  int32_t compat;                      /* 1: uses the arithmetic of the published code; only for comparisons with that
                                          code, not for training. It differs in these points: Rejected replicas count in
                                          the divisor. Step weights count steps since the beginning. The mean and
                                          deviation of norms begin at 0, and include rejected norms. With skip_anomaly,
                                          if the absolute values of the elements of a shard's combined Delta sum to less
                                          than 1e-6, the shard returns to its anchor. 0 (default): off */
  int32_t overlap_steps;               /* 0 (default): layers wait for their exchange. EDiT, 1 to H: the exchange runs
                                          during this number of further steps. It uses the parameters from the time when
                                          it began. At its end theta = a + the change that this replica has made during
                                          these steps (see overlap_merge). A-EDiT, 1: the result is merged at the first
                                          step after the end of the exchange, and no replica waits for another. Takes 4
                                          more bytes per element of this rank's shards. Not in plain averaging. With
                                          quorum or round_deadline: the steps of grace, see "Rounds that no replica waits
                                          for" below */
  int32_t consensus_method;            /* for gta: ENTRAIN_CONSENSUS_* (collectives.h); default NONE */
  int32_t sparsification_method;       /* for gta: ENTRAIN_SPARSIFY_*, applied to each shard of a layer; default NONE */
  double density;                      /* share of the elements that sparsification keeps, in (0, 1). Without
                                          sparsification: 1 (default). With MAGNITUDE the share must be large enough to
                                          keep an element of every shard */
  uint64_t seed;                       /* seed of random sparsification and stochastic rounding; default 0 */
  int32_t wire_format;                 /* ENTRAIN_WIRE_*: encoding of pseudo-gradients on the wire; default F32. Not in
                                          plain averaging */
  int32_t wire_block;                  /* INT8, INT4, INT2: values per scale, a multiple of 16 from 16 to 65536; 0
                                          (default): 256 */
  int32_t wire_rounding;               /* ENTRAIN_ROUND_*; default NEAREST */
  int32_t error_feedback;              /* 1: keeps the part of a pseudo-gradient that was not sent, and adds it to the
                                          next pseudo-gradient of the layer. 0 (default): drops this part */
  int32_t overlap_merge;               /* ENTRAIN_MERGE_*, for overlap_steps; default ADD */
  double overlap_mix;                  /* alpha in [0, 1) of ENTRAIN_MERGE_MIX; default 0.5 */
  int32_t staleness_penalty;           /* for overlap_steps with outer sgd. 1: divides the combined Delta by 1 + d / C.
                                          d is the length of the layer's last outer step, C the mean length of all its
                                          outer steps. 0 (default): no penalty */
  int32_t fragments;                   /* P >= 1, default 1: number of fragments. A fragment is a set of layers that are
                                          exchanged at the same steps. Fragment p is exchanged at the steps W_s + (p +
                                          1) H / P + k H, k >= 0. Each fragment must have a layer that is not frozen.
                                          EDiT only. entrain_edit_request_sync exchanges all layers */
  double outer_momentum_clip;          /* for outer sgd without nesterov. > 0: largest norm of the new momentum b = mu b
                                          + g of a layer; 0 (default): no limit */
  const int32_t* fragment_of_layer;    /* fragment of each layer, 0 to P - 1; NULL (default): fragment_pattern decides.
                                          The library copies this array and the next two */
  const int64_t* fragment_intervals;   /* P numbers of steps, each >= 1: the interval of each fragment, instead of H;
                                          NULL (default): H for all */
  const int64_t* fragment_offsets;     /* P numbers of steps, each >= 0: a fragment is first exchanged this number of
                                          steps after W_s, but never at W_s itself; NULL (default): evenly over the
                                          interval */
  int32_t fragment_pattern;            /* ENTRAIN_FRAGMENT_*; default SEQUENTIAL */
  int32_t sparsify_chunk;              /* MAGNITUDE: number of elements per chunk of a shard. The share `density` of
                                          each chunk is kept, at least one element. A multiple of 64; 0 (default): one
                                          chunk per shard. Each rank of the sync group reduces one part of the shard,
                                          and each of these parts begins a new chunk */
  double error_decay;                  /* beta in (0, 1], default 1: with error_feedback, the part that was not sent is
                                          multiplied by beta before the layer's next pseudo-gradient is added
                                          (SparseLoCo, arXiv 2508.15706) */
  int32_t on_loss;                     /* ENTRAIN_ON_LOSS_*; default FAIL. FINISH is refused in plain averaging, with
                                          error_feedback and with compat. With ENTRAIN_OUTER_CALLBACK
                                          each rank keeps the last combined pseudo-gradient of each layer. After a loss,
                                          a rank that has not made a layer's outer step makes it from this array. If
                                          replicas have several ranks, FINISH needs a mesh from entrain_mesh_create. The
                                          communicator that was given to entrain_mesh_create must then exist until
                                          entrain_edit_create returns */
  int32_t admit;                       /* ENTRAIN_ADMIT_*; default NONE. EXCHANGE needs ENTRAIN_ON_LOSS_FINISH. In
                                          entrain_edit_create it also needs a mesh of at least 2 replicas. It is refused
                                          with ENTRAIN_OUTER_CALLBACK, because the library cannot send the state of the
                                          callback */
  int32_t most_replicas;               /* for admit: largest number of replicas. All numbers of replicas are below this
                                          value. 0 (default): N of the mesh, so that newcomers only replace lost
                                          replicas */
  entrain_store_t* admit_store;        /* for admit: the store in which newcomers apply, the same on all ranks. Not a
                                          store from entrain_store_create. The EDiT object keeps it open. NULL
                                          (default): the store that entrain_comm_create_from_env finds */
  const char* admit_name;              /* for admit: the name under which newcomers apply, 1 to 128 bytes; copied. NULL
                                          (default): "edit". EDiT objects that use one store at the same time need
                                          different names */
  int32_t anchor_check;                /* ENTRAIN_ANCHOR_CHECK_*; default STOP. REPAIR is refused with
                                          ENTRAIN_OUTER_CALLBACK, with ENTRAIN_MERGE_RESTART, and with context and
                                          tensor axes. Not in plain averaging, which has no anchors */
  double round_deadline;               /* > 0, in seconds, less than timeout_ns: the time from the arrival of the first
                                          replica to the end of the round. When it has passed, the round is closed
                                          without the replicas that have not arrived. 0 (default): no deadline */
  int32_t quorum;                      /* > 0: a round is closed when this number of replicas has arrived and
                                          round_deadline, if it is set, has passed. At most the number of replicas, or
                                          most_replicas if that is larger. 0 (default): no quorum; a round is closed at
                                          round_deadline, whatever the number of replicas. If quorum and round_deadline
                                          are 0, a round needs all replicas */
  int32_t late;                        /* ENTRAIN_LATE_*, for quorum and round_deadline; default DROP */
  int64_t newcomer_warmup;             /* for admit: number of exchanges over which the weight of a newcomer grows, 0 to
                                          1000; k in "Newcomers" below. 0 (default): a newcomer has its full weight at
                                          once */
  int64_t in_flight_bytes;             /* >= 0; default 64 MiB. Limits the memory of a rank for the deltas that are sent
                                          at the same time. Has an effect only if the replicas are at distant sites (a
                                          round trip of 4 ms or more) and `prefetch` is not 0. At least two layers are
                                          always sent at the same time, as between near replicas. To fill a link, the
                                          memory must be the rate of the link times the round trip */
  const char* identity;                /* describes this run in lines KEY=VALUE, for example the data, the seed, the
                                          batch size, the learning-rate schedule; up to 64 lines and 4096 bytes; copied.
                                          The library compares the lines of all ranks at creation, and the lines of a
                                          newcomer with those of the members. If a value differs, it returns MISMATCH;
                                          the text names the key. If ENTRAIN_RUN_ID is set, the library adds it as a
                                          line, which counts. A newcomer of another job is refused in this way, and the
                                          members continue. A checkpoint contains the lines. A load logs a warning with
                                          the keys that differ. NULL (default): no lines of the caller */
  double silence;                      /* for on_loss, in seconds, at least 0.1. While a rank waits for other ranks, its
                                          library asks their libraries whether they answer. A library answers whatever
                                          its program does. A rank that answers nothing for this time is lost: its
                                          process is stopped or hangs, or its host is cut off. So such a rank holds the
                                          others up for this time, and not until the deadline. 0 (default):
                                          entrain_comm_config_t.silence_ns if it is set, otherwise 3 s with admit and 30
                                          s without. Applies to the exchanges of EDiT. The communicators of the mesh and
                                          of the shard have entrain_comm_config_t.silence_ns */
  entrain_edit_fetch_fn fetch;         /* for parameters in memory that the library cannot see; NULL (default): none */
  void* fetch_user;                    /* first argument of fetch; owned by the caller */
  entrain_outer_schedule_fn outer_schedule; /* changes outer_lr and outer_momentum step by step; NULL (default): they stay.
                                          Not with ENTRAIN_OUTER_NONE and ENTRAIN_OUTER_CALLBACK */
  void* outer_schedule_user;           /* first argument of outer_schedule; owned by the caller */
  entrain_interval_schedule_fn interval_schedule; /* returns each interval, instead of local_sgd_sync_interval or
                                                     local_sgd_sync_time, which then must have their defaults. NULL
                                                     (default): none. Needs one fragment. Refused if overlap_steps is
                                                     set together with quorum or round_deadline */
  void* interval_schedule_user;        /* first argument of interval_schedule; owned by the caller */
  int32_t threads;                     /* 0 to 64: number of threads of this rank that share the passes of an exchange
                                          over the arrays (norms, deltas, the outer step, merging). The thread that
                                          makes the exchange is one of them. The library starts the other threads at the
                                          first array of at least 131072 elements, and ends them with the object; they
                                          sleep between passes. outer_step and fetch are called on the same thread as
                                          without these threads. The bits of all results are the same for every number.
                                          0 (default): the CPUs of the host, by affinity and cgroup, divided by the
                                          number of ranks of the mesh on this host; at most the CPUs of this rank, and
                                          at most 8 */
  int32_t reserved;                    /* must be 0 */
} entrain_edit_config_t;
static ENTRAIN_INLINE void entrain_edit_config_init(entrain_edit_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_EDIT_CONFIG, config, sizeof(*config));
}

/* ---- Options of EDiT as data, and presets --------------------------------------------------------------------- */

/* The options of EDiT are the fields of entrain_edit_config_t that hold one number each. The functions below describe
 * these options, so that programs can make flags, forms or bindings from the descriptions. They describe the options of
 * entrain_acco_config_t in the same way. */
enum { /* the methods that have options */
  ENTRAIN_METHOD_EDIT = 0, /* entrain_edit_config_t */
  ENTRAIN_METHOD_ACCO = 1  /* entrain_acco_config_t. Its fields params_dtype, grads_dtype, wire_dtype and memory are not
                              among the options, because they describe arrays */
};
enum { /* entrain_option_t.type: the type of the field */
  ENTRAIN_OPTION_SWITCH = 0, /* int32_t, 0 or 1 */
  ENTRAIN_OPTION_CHOICE = 1, /* int32_t, the index of a name in `choices`, from 0 */
  ENTRAIN_OPTION_I32 = 2,
  ENTRAIN_OPTION_I64 = 3,
  ENTRAIN_OPTION_U64 = 4,
  ENTRAIN_OPTION_F64 = 5
};
typedef struct entrain_option_t {
  size_t size;
  const char* name;       /* name of the field. All texts are constants of the library */
  const char* choices;    /* CHOICE: the names, separated by commas; otherwise NULL */
  const char* help;       /* one line */
  size_t offset;          /* position of the field in the struct of its method, in bytes */
  double default_value;   /* as the struct's init function sets it */
  double least, most;     /* limits of the value; infinity: no limit */
  int32_t type;           /* ENTRAIN_OPTION_* */
  int32_t open;           /* whether the value may equal its limits. 0: it may; 1: not `least`; 2: not `most`; 3:
                             neither */
} entrain_option_t;
static ENTRAIN_INLINE void entrain_option_init(entrain_option_t* option) {
  entrain_struct_init(ENTRAIN_STRUCT_OPTION, option, sizeof(*option));
}
/* Returns the number of options of `method` (ENTRAIN_METHOD_*); 0 for another method. The options are numbered from 0.
 * Needs no object; any thread. */
ENTRAIN_API int32_t entrain_option_count(int32_t method);
/* Writes option `index` of `method` to *option. Returns INVALID_ARGUMENT if there is no such option. Needs no object;
 * any thread. */
ENTRAIN_API entrain_status_t entrain_option(int32_t method, int32_t index, entrain_option_t* option);
/* Writes to *matters whether option `index` can have an effect together with the other values of `config`. 0:
 * entrain_edit_create would refuse every value but the default, because the option has no effect. 1: no rule about this
 * option alone says so; entrain_edit_create may still refuse values because of several options. Ignores the arrays and
 * functions of `config`. config->shard may be NULL. Returns INVALID_ARGUMENT for an option or a value out of range.
 * Needs no object; any thread. */
ENTRAIN_API entrain_status_t entrain_edit_option_matters(const entrain_edit_config_t* config, int32_t index,
                                                         int32_t* matters);

/* Sets the options in *config that make EDiT the published method `name`. The hyperparameters are those of the
 * publication, or better ones if this library has them (docs/training.md). Call it after entrain_edit_config_init. The
 * names are:
 *   "edit"              EDiT (arXiv 2412.07210): weights by norms, clipping, anomaly elimination, outer Nesterov SGD; H 16
 *   "a-edit"            as "edit", but exchanges by time (local_sgd_sync_time)
 *   "diloco"            DiLoCo (arXiv 2311.08105): plain mean, outer Nesterov SGD; H 16
 *   "streaming-diloco"  (arXiv 2501.18512): fragments, one step of overlap, int4
 *   "decoupled-diloco"  (arXiv 2604.21428): fragments in rounds that no replica waits for
 *   "post-local-sgd"    (arXiv 1808.07217): the mean of the parameters; set local_sgd_warmup_steps
 *   "co2"               (arXiv 2401.16265): each exchange runs during the whole next interval
 *   "sparseloco"        (arXiv 2508.15706): 1/64 of the elements in two bits
 *   "published"         the defaults of the published code of EDiT, which are those of entrain_edit_config_init
 *
 * `given`: the names of `count` fields that the caller has set before this call; they keep their values. An option of
 * the method that would have no effect together with these values is left out. Values of the caller that conflict with
 * the method stay, and entrain_edit_create refuses them by name. A field that is set after this call also overrides the
 * method. But it may make another field useless; entrain_edit_create then refuses that field by name. `layers`: the
 * number of layers, which determines the number of fragments; 0: one fragment. For an unknown name returns
 * INVALID_ARGUMENT; the text lists the names. Needs no object; any thread. */
ENTRAIN_API entrain_status_t entrain_edit_config_preset(entrain_edit_config_t* config, const char* name, int32_t layers,
                                                        const char* const* given, int32_t count);
/* Return the number of these methods, and the name of method `index`; "" if there is none. */
ENTRAIN_API int32_t entrain_edit_preset_count(void);
ENTRAIN_API const char* entrain_edit_preset_name(int32_t index);

/* ---- Creating and joining EDiT -------------------------------------------------------------------------------- */

/* Creates an EDiT object on the mesh. Collective; blocks. Checks the options, and refuses options that would have no
 * effect (INVALID_ARGUMENT). The text says what to set. Examples: clipping or norm weights without outer optimizer or
 * reducer; a temperature without norm weights; an outer_* value other than the default without outer optimizer. */
ENTRAIN_API entrain_status_t entrain_edit_create(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                                 entrain_edit_t** edit);
/* Creates an EDiT object that joins a running job. The replicas of this job, the members, have set
 * ENTRAIN_ADMIT_EXCHANGE. `mesh` contains the ranks of this replica and no others. The replicas of the members must
 * have the same number of ranks. Create the communicator of `mesh` in the members' store, because the members reach
 * this process at the address that its route to this store determines. Give this communicator another name than those
 * of the job. `config` is as on the members; `admit` must be set. Blocks until the members have admitted this replica,
 * at most wait_ns (0: config.timeout_ns; if that is 0, too, the communicator's default deadline). Collective over the
 * ranks of this replica. *edit belongs to the caller. See "Newcomers" below. Errors:
 * - TIMED_OUT after wait_ns. The text states the reason, as the text of entrain_comm_join does, or the reason for
 *   which the last attempt failed.
 * - MISMATCH if an option, a layer or the number of ranks differs from that of the members; the text names it and both
 *   values. The number of ranks is compared with what the members have written into the store, before their first
 *   exchange after warm-up: until then a replica that does not fit waits. Also if the hash of the received state
 *   differs from the members' hash.
 * - PEER_LOST if the store cannot be reached. */
ENTRAIN_API entrain_status_t entrain_edit_join(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                               int64_t wait_ns, entrain_edit_t** edit);
/* Frees the object. With overlap_steps, the other ranks need this rank's part of a round in progress. So the function
 * waits for the end of this round: at most 10 s, or at most 1 s if the caller has an outer_step or outer_schedule. For
 * this reason ranks that each make the same number of steps may destroy their objects at different times. Then the
 * function ends an exchange that is still in progress, on all ranks (ABORTED there). Without overlap_steps it does not
 * wait for an exchange for whose layers the caller has not waited, but ends it at once. entrain_comm_abort ends every
 * exchange at once.
 *
 * The function waits at most 1 s for a running outer step of the caller. The step may not return within this time, for
 * example because it waits for a lock that the caller of this function holds. Then the step continues on a thread of
 * the library, and the library logs a warning. The object that outer_user points to must stay valid until the step
 * returns. The library keeps the arrays of the step until it returns. */
ENTRAIN_API void entrain_edit_destroy(entrain_edit_t* edit);

/* ---- Steps of EDiT -------------------------------------------------------------------------------------------- */

/* The calls of a step, in their order, for each rank of the mesh.
 *
 * EDiT can be used without this library's sharding: with FSDP, ZeRO or DDP, or without any sharding. This use needs
 * only the lines marked x. The library then does not gather parameters and does not reduce gradients. The caller binds
 * its arrays (entrain_shard_bind_layers, grads NULL), and reduces its gradients before it ends the step. If
 * entrain_edit_gradient_scope reports LOCAL, the caller averages them over the shard and context groups. If it reports
 * GLOBAL, the caller averages them over the sync group, too. The library does not check this. But if the replicas have
 * not averaged their gradients during warm-up, their anchors differ, and the first exchange after warm-up reports the
 * difference. With and without the library's sharding, equal gradients give equal bits.
 *
 *   | call of one step             | collective over    | between            | if it is missing                      |
 * x | edit_begin_forward           | all, if training   | end_step and the   | end_step returns FAILED_PRECONDITION  |
 *   |                              |                    | first layer's use  |                                       |
 *   | shard_begin_pass             | shard group        | passes             | layers are prefetched in wrong order  |
 * x | edit_wait_layer, each layer  | none, but others'  | begin_forward and  | end_step returns FAILED_PRECONDITION, |
 *   |                              | waits depend on it | the layer's use    | naming the layer, on this rank        |
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
 * The caller may write the bound parameters of a layer from the layer's wait to the next begin_forward that exchanges
 * the layer. With overlap_steps it may write them at any time except during calls of this header. The caller may read
 * them at any time except between begin_forward and the layer's wait. */

/* After a loss, with ENTRAIN_ON_LOSS_FINISH. A replica that has lost a rank cannot continue. Its other ranks get
 * PEER_LOST; the text names the replica and the rank, and says that the replica has left. On the ranks of other
 * replicas no call returns an error. These ranks agree on the remaining ranks (entrain_comm_shrink). A thread of the
 * library does this even while the callers compute (with ENTRAIN_PROGRESS_CALLER only while some call of the library
 * waits). If a replica is lost between two exchanges, the others make the next exchange without it. If it is lost
 * during an exchange, the others finish this exchange. If one of them has finished a layer with the lost replica's
 * pseudo-gradient, all of them include this pseudo-gradient in the layer. In all other layers, weights and divisors are
 * computed without the lost replica. So all replicas get the same bits. (If a replica has several ranks, this rule
 * holds for each shard of a layer.) If ranks cannot reach each other, the side with the majority continues, as in
 * entrain_comm_shrink. A rank that was left out, because it was stopped or too late, gets STALE_GENERATION.
 *
 * Replicas keep their numbers. The groups of the mesh and of the shard do not change. So calls over the sync group fail
 * after the loss: the reduction of gradients in warm-up, and entrain_shard_broadcast. A loss during warm-up or during a
 * load ends the run. After a loss during a save, the survivors finish the save (see entrain_edit_save). */

/* Newcomers, with ENTRAIN_ADMIT_EXCHANGE. The M ranks of a new replica call entrain_edit_join. The first rank of the
 * first replica looks for newcomers in the store before each rendezvous, if a number is free for a replica; this costs
 * one or two requests. After the exchange, a thread of the library on each rank admits the newcomers while the callers
 * train. It connects them, compares the options, and sends them the anchors, the outer state, the detectors of the
 * first replica and the counters. Each replica sends a share of each array. The newcomers check hashes of the data. At
 * the next rendezvous the newcomers take part as replicas. If this rendezvous becomes due earlier, it begins when the
 * newcomers have the state.
 *
 * When entrain_edit_join returns, theta = a. entrain_edit_info_t.steps is then the step of the fastest member, but at
 * most the step of the next exchange. So the newcomer arrives at that exchange together with the members. In this
 * exchange only the steps that the newcomer itself has made count for it; without such a step it contributes nothing.
 * The library does not send the arrays of entrain_edit_add_state: they keep the newcomer's values. It does send frozen
 * layers.
 *
 * The inner optimizer of a newcomer has no state yet. Its first steps could therefore disturb the other replicas. With
 * newcomer_warmup = k, the weight of a newcomer grows over its first k exchanges of a layer:
 *
 *   w'_n = f_n w_n / (sum over the accepted m of f_m w_m),   f_n = (c_n + 1) / (k + 1)
 *
 * w is the weight that the other options give (uniform, softmax, mixed with steps or tokens). c_n is the number of
 * earlier exchanges of the layer to which newcomer n has contributed a pseudo-gradient. For c_n >= k, and for replicas
 * that are not newcomers, f_n = 1. If the option `normalize` is 0, the weights are f_n w_n. All replicas compute the
 * same bits.
 *
 * A newcomer gets the lowest number that no replica has. So a replacement gets the number of the lost replica.
 * entrain_edit_info_t.replica is this number. It is below entrain_edit_info_t.most_replicas. The mesh of a newcomer
 * contains only its own replica.
 *
 * If a newcomer dies or stops during its admission, the admission fails. This costs the members at most 10 s more than
 * the computed time for the data of one layer. The computation takes a quarter of the rate at which the first 512 KiB
 * came, but at least 16 KiB/s and at most 4 MiB/s. For the first 512 KiB themselves it takes 64 KiB/s. If a member is
 * lost during the admission, the newcomers apply again without a call of their caller. The members admit no newcomer at
 * an exchange of entrain_edit_request_sync, or when a replica leaves or wishes to stop. */

/* Rounds that are closed early, with quorum or round_deadline. A round is one exchange. A replica has arrived when
 * entrain_edit_begin_forward has begun the exchange on all ranks of the replica. When a round is closed, the replicas
 * that have arrived exchange. The other replicas are late. While their callers compute, a thread of the library takes
 * part in the round for them, with weight zero and without their parameters. So all replicas have the same anchors.
 * When a late replica arrives, it does not exchange, but applies the results of the rounds that it has missed, as the
 * option `late` says. A round takes up to 50 ms longer than without these options.
 *
 * An exchange of entrain_edit_request_sync needs all replicas, and entrain_edit_begin_forward waits for them. A late
 * replica applies its missed rounds first. Replicas that have left (entrain_edit_leave) take part in all rounds, but do
 * not count for the quorum. If a round is not closed within timeout_ns, the exchange fails with TIMED_OUT; the text
 * names the replicas that have not arrived. With ENTRAIN_ON_LOSS_FINISH these replicas are lost instead. A save fails
 * if a replica was late for the last round, so save after an exchange of entrain_edit_request_sync.
 * entrain_edit_open_state is refused. With ENTRAIN_ON_LOSS_FINISH the remaining replicas carry out the last decision to
 * close a round, even if only one of them knew this decision. A lost replica does not count for the quorum. If fewer
 * replicas remain than the quorum, a round needs all of them.
 *
 * Rounds that no replica waits for: overlap_steps together with quorum, round_deadline or both. This is Decoupled
 * DiLoCo (arXiv 2604.21428), but without the separate synchroniser of the paper: the replicas agree among themselves.
 * Each replica has a clock of its own. At its own steps W_s + ... + k H it offers a fragment (see fragments), with a
 * copy of its parameters, and continues to train. Threads of the library exchange the fragment when all replicas offer
 * it, or when enough replicas offer it and the time of grace is over. Replicas that offer the fragment contribute their
 * copies; the other replicas take part with weight zero. The time of grace ends round_deadline after the first offer
 * (if round_deadline is 0: at once). It also ends when a replica that offers the fragment needs the result:
 * overlap_steps of its steps after its offer, less the usual time of a round. So the time of grace adapts to the speed
 * of the replicas.
 *
 * entrain_edit_begin_forward never waits. It merges the results that have come (overlap_merge), and sets *syncing to 1
 * if it has offered a fragment. A replica that was late for a round takes over the result of this round at its next
 * begin_forward (late). If no round has answered an offer when the fragment is due again, the replica offers the
 * fragment anew, with all its steps. quorum counts the replicas that train. If fewer replicas are left than the quorum,
 * a round needs only those that are left.
 * - entrain_edit_request_sync needs all replicas, and begin_forward waits for them, as above. All fragments are
 *   exchanged together. A checkpoint can be saved after this exchange. entrain_edit_leave waits until all replicas
 *   leave.
 * - The ranks of a replica merge at the same step: one step after the results have come on all of them. To agree on
 *   this, they make an all-reduce of P bytes at each step, and wait for a round under way.
 * - Context and tensor axes, overlap_merge RESTART, anchor_check REPAIR and staleness_penalty are refused.
 *
 * quorum and round_deadline are refused in plain averaging, with use_async, error_feedback or compat, and with
 * fragments if overlap_steps is 0. ENTRAIN_LATE_CARRY and WEIGHTED are also refused with ENTRAIN_ANCHOR_CHECK_REPAIR.
 * If replicas have several ranks, quorum and round_deadline need a mesh as ENTRAIN_ON_LOSS_FINISH does (on_loss). */

/* Call this function before each forward pass. The function starts an exchange if `training` is 1, `first_microbatch`
 * is 1 and an exchange is due. It begins the exchange with the first layer, sets *syncing to 1, and returns without
 * waiting for the exchange. (With use_async it waits for the other replicas, see above.) Otherwise it sets *syncing to
 * 0. Exchanges are due at the steps W_s + k H, never twice at the same step. The exchange at W_s only creates the
 * anchors; it sends nothing, and sets *syncing to 0. When warm-up ends, the function switches the shard's gradients
 * from global to local. With overlap_steps the layers do not wait for the exchange, and a later begin_forward merges
 * the result. With EDiT this later begin_forward waits for the exchange. `work` (NULL: the call blocks) is for the
 * waits of use_async and of overlap_steps. */
ENTRAIN_API entrain_status_t entrain_edit_begin_forward(entrain_edit_t* edit, int32_t training,
                                                        int32_t first_microbatch, int32_t* syncing,
                                                        entrain_work_t** work);
/* Call this function before the layer is gathered. Waits until the layer's exchange is done. Then theta = a for this
 * layer, with the same bits on all replicas. Returns at once if no exchange of the layer is in progress.
 * entrain_shard_wait does the same for its layer. The gathers that it prefetches begin when the exchanges of these
 * layers are done; a gather that was started counts as a wait for the layer. */
ENTRAIN_API entrain_status_t entrain_edit_wait_layer(entrain_edit_t* edit, int32_t layer);
/* Lets the exchange of the layer begin, as entrain_edit_wait_layer does before it waits. *work is over when
 * entrain_edit_wait_layer would not block. It has the status that entrain_edit_wait_layer would return. */
ENTRAIN_API entrain_status_t entrain_edit_layer_work(entrain_edit_t* edit, int32_t layer, entrain_work_t** work);
/* Counts a step. Call this function after the step of the inner optimizer. Returns FAILED_PRECONDITION in these cases:
 * - For this step the number of begin_forward calls with training 1 is not gradient_accumulation_steps; the text has
 *   both numbers. A call with first_microbatch 1 begins the count again.
 * - A layer is in exchange, and no call has waited for it.
 * - entrain_shard_gradients was called in this step for some layer, and one of these calls is missing:
 *   entrain_shard_reduce_gradients for each layer that is not frozen, after the last entrain_shard_gradients for this
 *   layer; entrain_shard_finish_gradients after all reductions. The text names the layers. So also reduce a layer that
 *   had no part in the step; its gradients are zeros. */
ENTRAIN_API entrain_status_t entrain_edit_end_step(entrain_edit_t* edit);
/* Writes to *scope the scope (ENTRAIN_GRADIENTS_*) over which the gradients of the current step are averaged. The
 * current step is the one that the last begin_forward with training 1 began. The library's reduction uses this scope. A
 * caller that reduces gradients itself must use it, too. Local; at any time. */
ENTRAIN_API entrain_status_t entrain_edit_gradient_scope(const entrain_edit_t* edit, int32_t* scope);
/* Requests an exchange: the next begin_forward with training 1 exchanges even if no exchange is due (but not in
 * warm-up, and not twice at one step: the request is then lost). With overlap_steps this begin_forward waits for the
 * exchanges in progress, and the layers wait for the requested exchange. So theta = a on all replicas afterwards.
 * Collective. Use it at the end of training, and to evaluate the parameters on which all replicas agree. */
ENTRAIN_API entrain_status_t entrain_edit_request_sync(entrain_edit_t* edit);

/* Records the work of this rank since its last record: the number of tokens on which it has trained (>= 0), and a
 * metric, such as the loss, with its weight (>= 0, finite; 0: no metric). The library adds up the records of the ranks
 * of a replica. If several ranks work on the same tokens, only one of them records the tokens. If all ranks of a
 * replica record 0 tokens (for example because each step was skipped), the replica has step weight 0 (use_step_weight).
 * Steps count instead of tokens in two cases: a replica that made steps did not call this function, or no replica
 * recorded a token. The ranks send their records at the next rendezvous. So metrics need no messages of their own, and
 * replicas do not wait for each other between two rendezvous. Local. */
ENTRAIN_API entrain_status_t entrain_edit_record(entrain_edit_t* edit, int64_t tokens, double metric, double weight);

enum { /* entrain_edit_wish */
  ENTRAIN_WISH_CHECKPOINT = 1,
  ENTRAIN_WISH_STOP = 2
};
/* Tells all ranks at the next rendezvous that this rank has these wishes (bitwise OR of ENTRAIN_WISH_*). All ranks see
 * the wishes of all ranks at the same rendezvous, in entrain_edit_info_t.wishes. So they can act together. Local. */
ENTRAIN_API entrain_status_t entrain_edit_wish(entrain_edit_t* edit, int32_t wishes);
/* Tells the other replicas that this replica has made its last step. The others may continue, and this function takes
 * part in their rendezvous. After the last steps of this replica have been exchanged, its weight is zero. Returns when
 * all replicas have left. Then theta = a, the same on all replicas. Collective over the replica; blocks if `work` is
 * NULL. For each rendezvous it waits at most tau plus timeout_ns (of the config). With ENTRAIN_ON_LOSS_FINISH it also
 * waits, at most twice timeout_ns, until all ranks have finished the last exchange. This rank must not train
 * afterwards. Returns FAILED_PRECONDITION in warm-up, for a second call, and if a layer has not been waited for. */
ENTRAIN_API entrain_status_t entrain_edit_leave(entrain_edit_t* edit, entrain_work_t** work);

/* ---- What EDiT knows of its replicas and layers --------------------------------------------------------------- */

typedef struct entrain_edit_replica_t {
  size_t size;
  int64_t steps;        /* g: optimizer steps counted */
  int64_t steps_since;  /* steps counted since the previous exchange */
  int64_t tokens_since; /* tokens recorded since the previous exchange */
  int32_t wishes;       /* ENTRAIN_WISH_* */
  int32_t leaving;      /* 1: the replica has called entrain_edit_leave */
} entrain_edit_replica_t;
static ENTRAIN_INLINE void entrain_edit_replica_init(entrain_edit_replica_t* replica) {
  entrain_struct_init(ENTRAIN_STRUCT_EDIT_REPLICA, replica, sizeof(*replica));
}
/* Copies to *out what replica `replica` (0 to most_replicas - 1) reported at the last rendezvous. Returns
 * FAILED_PRECONDITION before the first rendezvous of the object or after a load, and if the replica took no part in the
 * last rendezvous. */
ENTRAIN_API entrain_status_t entrain_edit_replica(const entrain_edit_t* edit, int32_t replica,
                                                  entrain_edit_replica_t* out);

typedef struct entrain_edit_info_t {
  size_t size;
  int64_t steps;             /* g: optimizer steps counted */
  int64_t syncs;             /* number of exchanges, not counting the creation of the anchors */
  int64_t last_sync_step;    /* g at the last exchange or at the creation of the anchors; -1: none yet */
  uint64_t anchor_checksum;  /* checksum of this rank's anchors after the last finished exchange; 0: no anchors. Equal
                                on all ranks of a sync group */
  uint64_t exposed_ns;       /* time for which entrain_edit_begin_forward and entrain_edit_wait_layer blocked the
                                caller */
  uint64_t sync_ns;          /* time of all exchanges, also while the caller computed */
  uint64_t bytes_sent_shard; /* payload bytes that this rank sent within its replica, for exchanges */
  uint64_t bytes_sent_sync;  /* payload bytes that this rank sent to other replicas, for exchanges */
  int32_t in_warmup;
  int32_t wishes;            /* ENTRAIN_WISH_* of any replica at the last rendezvous */
  int64_t rendezvous;        /* number of rendezvous, with or without an exchange */
  double metric;             /* mean of the metrics that all replicas recorded before the last rendezvous; NaN: none */
  int64_t rejections;        /* number of layers of this replica that were rejected, over all exchanges */
  int64_t rollbacks;         /* number of layers, over all exchanges, for which all replicas were rejected. In this case
                                theta returns to the anchor, and the anchor does not change */
  int32_t replicas;          /* number of replicas that are not lost, newcomers included, as far as this rank knows */
  int32_t losses;            /* number of losses of replicas; entrain_edit_loss describes them */
  int64_t short_rounds;      /* number of exchanges during which a replica was lost, so that some layers were finished
                                without it */
  int64_t joins;             /* number of admissions of newcomers; on a newcomer, its own admission is the first */
  int32_t replica;           /* the number of this rank's replica */
  int32_t most_replicas;     /* N of the mesh, or the option most_replicas. All numbers of replicas are below this
                                value. It does not change during the life of the object */
  int64_t repairs;           /* with ENTRAIN_ANCHOR_CHECK_REPAIR: number of anchors of layers that were repaired, summed
                                over the ranks of this sync group */
  int64_t missed;            /* number of rounds that were closed without this replica */
} entrain_edit_info_t;
static ENTRAIN_INLINE void entrain_edit_info_init(entrain_edit_info_t* info) {
  entrain_struct_init(ENTRAIN_STRUCT_EDIT_INFO, info, sizeof(*info));
}
/* The counts of exchanges, and the checksum, are those after the last finished exchange; the other values are
 * current. */
ENTRAIN_API entrain_status_t entrain_edit_info(const entrain_edit_t* edit, entrain_edit_info_t* info);

/* Reduces `count` elements of `in` over all ranks of the replicas that are not lost, and writes the result to `out`.
 * All ranks get the same bits. Use it for the reductions that a run makes beside its exchanges: for evaluations,
 * reports and decisions. A newcomer takes part from its first exchange on, and needs no other communicator.
 *
 * With ENTRAIN_ON_LOSS_FINISH, a loss does not make the call fail. If some ranks have the result already, all remaining
 * ranks get this result, which includes the values of the lost rank. Otherwise the remaining ranks repeat the call.
 * *rank becomes the number of this rank among the ranks whose values are in the result, and *ranks becomes the number
 * of these ranks (each output may be NULL). So a call with count 0 finds out who is there, for example to divide the
 * batches of an evaluation.
 *
 * `in` and `out` are host memory of at most 64 KiB, and may be the same memory; the caller keeps them. After an error
 * `out` is unchanged. `op` is a built-in operator. `timeout_ns` limits the call (0: the communicators' default); after
 * a loss, the repeated call has this time again. Collective over all ranks of all replicas, which must make these calls
 * and saves in the same order; blocks if `work` is NULL. The call is legal when an exact checkpoint may be saved (see
 * entrain_edit_save), during the warm-up, and after entrain_edit_leave. At other times all ranks get
 * FAILED_PRECONDITION. If count, dtype or op differ, all ranks get INVALID_ARGUMENT. */
ENTRAIN_API entrain_status_t entrain_edit_reduce(entrain_edit_t* edit, const void* in, void* out, size_t count,
                                                 entrain_dtype_t dtype, entrain_op_t op, int64_t timeout_ns,
                                                 int32_t* rank, int32_t* ranks, entrain_work_t** work);

/* Describes loss `index`. Losses are numbered from 0 in the order in which this rank learned of them. *replica becomes
 * the number of the lost replica, and *rendezvous the number of rendezvous that were over at that time. `text` becomes
 * the reason, cut to `bytes` bytes and ended by a zero byte. Each output may be NULL. Returns INVALID_ARGUMENT if there
 * was no such loss. */
ENTRAIN_API entrain_status_t entrain_edit_loss(const entrain_edit_t* edit, int32_t index, int32_t* replica,
                                               int64_t* rendezvous, char* text, size_t bytes);

/* Copies this rank's anchors to `anchor`, and converts them to `dtype` (f32, f64, bf16 or f16; UNIMPLEMENTED for
 * others). `anchor` has as many elements as entrain_shard_slab_count reports, in the order of the slab. For a frozen
 * layer, copies its parameters. Returns FAILED_PRECONDITION before the anchors exist, and while an exchange is in
 * progress. */
ENTRAIN_API entrain_status_t entrain_edit_anchor(const entrain_edit_t* edit, void* anchor, entrain_dtype_t dtype);

/* Writes the results of a layer's last exchange: the norm and the weight of each replica, and the factor that clipped
 * the combined pseudo-gradient. The layer must not be frozen or empty. `norms` and `weights` have
 * entrain_edit_info_t.most_replicas elements each. Both values are 0 for a replica that is lost or did not take part.
 * Each output may be NULL. */
ENTRAIN_API entrain_status_t entrain_edit_layer_report(const entrain_edit_t* edit, int32_t layer, double* norms,
                                                       double* weights, double* clip_factor);
/* Writes how this replica's detector (skip_anomaly) judged the layer's norm at the last exchange. *z becomes the
 * z-score of the norm. *limit becomes the z-score above which a norm is rejected. Both are 0 during the detector's
 * warm-up. *z is infinity if the norm is not finite. Each output may be NULL. */
ENTRAIN_API entrain_status_t entrain_edit_layer_score(const entrain_edit_t* edit, int32_t layer, double* z, double* limit);

/* ---- Checkpoints of EDiT -------------------------------------------------------------------------------------- */

enum { /* entrain_checkpoint_config_t.kind */
  ENTRAIN_CHECKPOINT_PORTABLE = 0, /* steps, anchors (or parameters if there are no anchors), outer state, and the
                                      detectors of replica 0. A run may continue from it with another number of
                                      replicas, or of ranks per replica. Its inner optimizer begins anew */
  ENTRAIN_CHECKPOINT_EXACT = 1     /* also the state of each rank: theta, counts, and the caller's arrays. On the same
                                      mesh the run continues with the same bits. This kind can also be loaded as
                                      PORTABLE */
};
enum {                     /* which ranks have the same array. An array of the caller is ALL or RANK */
  ENTRAIN_STATE_ALL = 0,   /* the same on all ranks. Both kinds of checkpoint keep one copy */
  ENTRAIN_STATE_RANK = 1,  /* different on each rank. Only the exact kind keeps it */
  ENTRAIN_STATE_REPLICA = 2, /* the same on all ranks of a replica. The portable kind keeps the array of replica 0, for
                                all replicas */
  ENTRAIN_STATE_LAYER = 3  /* a layer, which is divided among the ranks of a replica. The same in all replicas */
};
/* Makes `count` elements at `data` part of the state. A save reads them from `data`, and a load writes them to `data`.
 * Use this function for the state of the inner optimizer, data loaders and random number generators. All ranks must add
 * the same names. `name`: 1 to 121 letters, digits and ". _ - /"; each name only once. `data` is lent until the EDiT
 * object is destroyed. Local. */
ENTRAIN_API entrain_status_t entrain_edit_add_state(entrain_edit_t* edit, const char* name, void* data, size_t count,
                                                    entrain_dtype_t dtype, int32_t holder);

typedef struct entrain_checkpoint_config_t {
  size_t size;
  const char* save_dir;    /* the directory; NULL: "local_sgd_ckpt". A save creates the directory, but not its parent */
  const char* ckpt_name;   /* name of the file without ".ckpt" (save_dir/ckpt_name.ckpt): letters, digits and ". _ -";
                              NULL: "local_sgd_ckpt" */
  int32_t kind;            /* ENTRAIN_CHECKPOINT_*; default PORTABLE. Saving: the kind to write. Loading: the kind to
                              load. A file of the exact kind can be loaded as either kind */
  int32_t full_state_dict; /* saving: 1 (default): rank 0 writes one file with whole layers; 0: each rank that holds
                              data writes its own file, and ckpt_name.ckpt refers to these files. Loading: no effect,
                              because the library recognises the form */
  int32_t rank0_only;      /* loading: 1 (default): rank 0 reads the files and sends the data, so other ranks need no
                              access to the files; 0: each rank reads the data that it needs. Saving: no effect, because
                              no rank ever gathers a copy of the whole state */
  int32_t overwrite;       /* saving: 1: a run that has begun anew may replace a checkpoint of a later step; 0 (default): it
                              may not. Loading: no effect */
  int64_t timeout_ns;      /* deadline of the whole call; 0: the communicators' default */
} entrain_checkpoint_config_t;
static ENTRAIN_INLINE void entrain_checkpoint_config_init(entrain_checkpoint_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_CHECKPOINT_CONFIG, config, sizeof(*config));
}

/* Functions of the caller that write or read the bytes of a checkpoint instead of the file save_dir/ckpt_name.ckpt.
 * They may use an object store, memory, or the format of another library. The bytes are those of the file. Each
 * function returns 0 on success. If it returns another number, the call fails on all ranks: FAILED_PRECONDITION "rank
 * 0: ...: write_at returned 5 at byte 128".
 *
 * The comment of entrain_edit_save states on which ranks and threads the library calls the functions. It calls them
 * one at a time. `data` is lent during the call. Inside the functions, calls that need the engine return
 * FAILED_PRECONDITION; the text names the function. The other ranks wait for the functions, so the time of the
 * functions counts against timeout_ns. The library checks the bytes from read_at in the same way as those of a file. */
typedef int32_t (*entrain_checkpoint_write_fn)(void* user, int64_t offset, const void* data, size_t bytes);
typedef int32_t (*entrain_checkpoint_finish_fn)(void* user);
typedef int32_t (*entrain_checkpoint_read_fn)(void* user, int64_t offset, void* data, size_t bytes);
typedef struct entrain_checkpoint_functions_t {
  size_t size;
  void* user;                            /* first argument of all functions; owned by the caller */
  entrain_checkpoint_write_fn write_at;  /* saving: receives every byte once. First come the bytes from offset 128 on,
                                            in ascending order without a gap; then bytes 0 to 127 in one call. There may
                                            be many calls with few bytes each. If a write is expensive, collect the
                                            bytes of several calls */
  entrain_checkpoint_finish_fn finish;   /* saving: called after all bytes are written and all ranks have sent their
                                            data. The checkpoint is valid when this function returns 0. If the save
                                            fails earlier, the library does not call it */
  entrain_checkpoint_read_fn read_at;    /* loading: writes all bytes [offset, offset + bytes) of the checkpoint to
                                            `data` */
  int64_t bytes;                         /* loading: length of the checkpoint, >= 0 */
} entrain_checkpoint_functions_t;
static ENTRAIN_INLINE void entrain_checkpoint_functions_init(entrain_checkpoint_functions_t* functions) {
  entrain_struct_init(ENTRAIN_STRUCT_CHECKPOINT_FUNCTIONS, functions, sizeof(*functions));
}
/* Saves the state. Does not change it, and makes no exchange. Collective; blocks if `work` is NULL. `config` may be
 * NULL (defaults). `functions`: see below; NULL: a file.
 *
 * When a save is legal (FAILED_PRECONDITION otherwise):
 * - After an exchange (or the creation of the anchors) and before the next reduction of gradients. In terms of calls:
 *   after a begin_forward that exchanges, and after the waits for all layers.
 * - With use_async, the exact kind also after a rendezvous without an exchange.
 * - With overlap_steps, an exact save of EDiT waits for the exchanges in progress and saves their results, too. So each
 *   result is merged at its step. The portable kind, and A-EDiT, need an exchange of entrain_edit_request_sync, for
 *   which the layers wait.
 *
 * A rank can ask all ranks for a save with ENTRAIN_WISH_CHECKPOINT. A replica in entrain_edit_leave
 * (entrain_edit_replica_t.leaving) cannot take part, so save before or after entrain_edit_leave.
 *
 * With ENTRAIN_ON_LOSS_FINISH, the remaining ranks finish a save during which a rank is lost, and it succeeds.
 *
 * A run that has begun anew, with neither a load nor a join, never replaces a checkpoint of a later step. Otherwise a
 * launcher that starts a run again without a load would undo the earlier run. The save returns FAILED_PRECONDITION; the
 * text names both steps. `overwrite` permits the save.
 *
 * A wrong argument, or a layer for which this rank has not waited, is an error of this rank alone; the other ranks wait
 * for it until their deadline. Otherwise either all ranks succeed, or all return the error of one rank; the text names
 * the rank and the path. The new checkpoint replaces an older one of the same name in one step, when all data are on
 * the disk. Before this step, and after an error, the older checkpoint is unchanged. A process that is killed during a
 * save leaves files in save_dir. A save removes such files if they are older than its own beginning. A load removes
 * them if they are older than the checkpoint that it loaded. If destroy ends a save, an older checkpoint of the same
 * name is unchanged.
 *
 * With `functions` the bytes go through functions of the caller, which run on the calling thread of rank 0, or with
 * `work` on a thread of the library. But in a load with rank0_only 0, each rank calls its own functions and reads the
 * data that it needs. Then the functions of all ranks must give the same bytes. Functions that are not needed may be
 * NULL. If a rank lacks a function that it needs, all ranks return INVALID_ARGUMENT; the text names the function. Give
 * a struct on all ranks or on none; on a rank where no function runs it may be as entrain_checkpoint_functions_init
 * leaves it. The fields save_dir and ckpt_name of `config` must be NULL, and for a save full_state_dict must be 1
 * (INVALID_ARGUMENT otherwise). A checkpoint of several files cannot be loaded in this way (FAILED_PRECONDITION). */
ENTRAIN_API entrain_status_t entrain_edit_save(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                               const entrain_checkpoint_functions_t* functions, entrain_work_t** work);
/* Continues from a checkpoint, at the step of the checkpoint, right after its exchange. The next call is begin_forward,
 * which does not exchange again. Collective; blocks if `work` is NULL. No exchange may be in progress, and no layer may
 * be gathered. The library reads all data and checks every byte before it changes anything. In the following cases the
 * call fails on all ranks, and the run is unchanged:
 * - INVALID_ARGUMENT: the file is damaged, truncated, of a newer format, or not a checkpoint.
 * - FAILED_PRECONDITION: there is no such checkpoint; or it is of another model, has other arrays (options that keep
 *   state, entrain_edit_add_state), or, for the exact kind, is of another mesh.
 *
 * A load of the portable kind ignores detectors if skip_anomaly is 0, because this run has no place for them. It
 * reports them in the log, at level info. */
ENTRAIN_API entrain_status_t entrain_edit_load(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                               const entrain_checkpoint_functions_t* functions, entrain_work_t** work);

/* ---- The state, array by array --------------------------------------------------------------------------------
 *
 * These functions read and write the contents of a checkpoint array by array, for torch.distributed.checkpoint and
 * other formats. A rank sees the arrays of which it has all or a part:
 * - anchors ("anchor", one for each layer), outer state ("outer/0", ...), detectors ("detector/LAYER/mean", ...),
 *   counts ("steps", ...), and so on;
 * - in the exact kind also the parameters theta ("live/LAYER") and so on;
 * - for ACCO, the f32 masters ("master" of layer 0) and moments ("optim/0", ...);
 * - arrays of the caller, as "caller/NAME".
 *
 * The manifest of a checkpoint file uses the same names and kinds, with the same meanings. They do not change within a
 * format version.
 *
 *     entrain_edit_open_state(edit, ENTRAIN_CHECKPOINT_PORTABLE, &state, NULL);
 *     for (index = 0; index < count; ++index) {              read:  entrain_state_get, into the caller's format
 *       entrain_state_info(state, index, &info);             write: entrain_state_set, from there; all entries,
 *     }                                                             and then entrain_state_commit, on all ranks
 *     entrain_state_destroy(state);
 *
 * While a state is open, only one thread at a time may call functions on the state and on its object. */

/* Opens the current state, to read it or to set it. `kind`: ENTRAIN_CHECKPOINT_*. Not collective. With overlap_steps
 * waits for the exchanges in progress. Without overlap_steps returns FAILED_PRECONDITION while an exchange is in
 * progress. Also returns FAILED_PRECONDITION after gradients have been reduced. If a run has not exchanged yet, its
 * state can be opened and set, but not read. The options of the run determine the arrays. The state takes no memory for
 * an array until the array is set. */
ENTRAIN_API entrain_status_t entrain_edit_open_state(entrain_edit_t* edit, int32_t kind, entrain_state_t** state,
                                                     entrain_work_t** work);
/* Frees the handle. Values that were set and not committed have no effect. A state may be destroyed before or after its
 * object. But when its object has been destroyed, calls on the state return FAILED_PRECONDITION. A commit in progress
 * continues until it is over or the object is destroyed. */
ENTRAIN_API void entrain_state_destroy(entrain_state_t* state);

/* An entry of a state is an array that this rank holds, or a piece of a layer. Other ranks may hold copies of such an
 * array. Each piece of a layer is an entry of its own, and the pieces of one layer follow each other. If a layer has
 * several segments, a rank has a piece of each segment. The pieces of all ranks of a replica make the whole layer,
 * without gaps or padding. So a piece may have no elements. `name`, `part`, `layer` and `rank` together identify an
 * array over all ranks. */
typedef struct entrain_state_info_t {
  size_t size;
  const char* name;      /* lent until the state is destroyed */
  size_t whole_count;    /* elements of the whole layer; equal to count if the entry is not a piece of a layer */
  size_t first;          /* index in the layer of the piece's first element; 0 if the entry is not a piece of a layer */
  size_t count;          /* number of elements that entrain_state_get and _set copy */
  entrain_dtype_t dtype;
  int32_t holder;        /* ENTRAIN_STATE_* */
  int32_t layer;         /* the layer; -1: the entry is not a piece of a layer */
  int32_t part;          /* number of the model part that has the layer: tensor coordinate + tensor length x pipeline
                            coordinate; -1: the entry is not a piece of a layer */
  int32_t rank;          /* holder REPLICA: first rank of the replica, or 0 in the portable kind; holder RANK: this
                            rank; other holders: -1. Here the number of a rank is replica x ranks per replica + rank
                            within the replica */
  int32_t saves;         /* 1: of the ranks that hold this array, this rank saves it in a checkpoint. In the portable
                            kind only the REPLICA array of this rank has an effect */
} entrain_state_info_t;
static ENTRAIN_INLINE void entrain_state_info_init(entrain_state_info_t* info) {
  entrain_struct_init(ENTRAIN_STRUCT_STATE_INFO, info, sizeof(*info));
}
/* Write to *count the number of entries on this rank, and to *info the description of entry `index`. */
ENTRAIN_API entrain_status_t entrain_state_count(const entrain_state_t* state, size_t* count);
ENTRAIN_API entrain_status_t entrain_state_info(const entrain_state_t* state, size_t index, entrain_state_info_t* info);
/* Writes to *index the number of the entry with this name and layer (-1: not a piece of a layer). If this rank has
 * several pieces of the layer, writes the number of the first. Returns INVALID_ARGUMENT if there is no such entry; the
 * text has the name and the layer. */
ENTRAIN_API entrain_status_t entrain_state_find(const entrain_state_t* state, const char* name, int32_t layer,
                                                size_t* index);
/* Copies an entry to `data`. `count` and `dtype` must be those of the entry (INVALID_ARGUMENT
 * otherwise). Local. Returns FAILED_PRECONDITION if no checkpoint can be saved at this time (see entrain_edit_save; for
 * ACCO, if micro-batches have been added). Also if the run has continued since the state was opened. */
ENTRAIN_API entrain_status_t entrain_state_get(const entrain_state_t* state, size_t index, void* data, size_t count,
                                               entrain_dtype_t dtype);
/* Keeps a copy of `data` (host memory) as the value of the entry for entrain_state_commit. The run does not change.
 * Local. If an entry is set several times, the last value counts. */
ENTRAIN_API entrain_status_t entrain_state_set(entrain_state_t* state, size_t index, const void* data, size_t count,
                                               entrain_dtype_t dtype);
/* Continues the run from the values that were set, as if entrain_edit_load or entrain_acco_load had loaded them from a
 * checkpoint of the state's kind. Collective over the object's ranks; blocks if `work` is NULL, at most timeout_ns (0:
 * the communicators' default). Either all ranks succeed, or nothing changes on any rank. After a failure the values
 * that were set stay set. Errors:
 * - FAILED_PRECONDITION if an entry with elements was not set; the text names the rank and the entries. Also in all
 *   cases in which a load returns this error.
 * - INVALID_ARGUMENT if ranks that must hold the same values have set different values; the text names the array.
 * - FAILED_PRECONDITION if the state has been committed already. */
ENTRAIN_API entrain_status_t entrain_state_commit(entrain_state_t* state, int64_t timeout_ns, entrain_work_t** work);

/* ---- ACCO: gradients are reduced during the computation ------------------------------------------------------
 *
 * A channel takes gradients, and gives the resulting parameters one round later (ACCO, arXiv 2406.02613). A round
 * reduces gradients, makes the optimizer's step or a preview of it, and gathers the new parameters. The optimizer's
 * state and the f32 masters are sharded over the W ranks of the communicator (ZeRO-1). The caller computes the
 * gradients of micro-batches at the installed parameters, and adds them (sums, not means) to the channel's accumulator.
 * When the round in progress is over (entrain_acco_poll), the caller calls entrain_acco_install. Install writes the
 * parameters of this round to config.params. Then it starts the next round with the gradients that have been added:
 *
 *     for (;;) {
 *       ... forward and backward of a micro-batch; gradients += ...
 *       entrain_acco_add(acco, 1, tokens);
 *       entrain_acco_poll(acco, &ready);
 *       if (ready) { entrain_acco_install(acco, &finished); if (finished) break; }
 *     }
 *
 * Each rank computes as many micro-batches as fit into a round. All micro-batches of all ranks have the same weight. A
 * rank may add gradients without waiting for slower ranks; only install waits for them. Only one thread at a time may
 * call functions on a channel. An error of the network ends the channel on all ranks, and every later call returns the
 * first error. */

/* After a loss, with ENTRAIN_ON_LOSS_FINISH. Each rank keeps a copy of the shard (masters and optimizer state) of the
 * previous rank; rank 0 keeps a copy of the last rank's shard. A thread of the library applies each commit (see
 * entrain_acco_config_t.method) to the shard and to the copy. So a commit sends L / W more elements of wire_dtype, and
 * makes two steps. If ranks are lost, no call returns an error on the other ranks. The remaining ranks agree on their
 * membership (entrain_comm_shrink) and finish the round. In a round that commits, each rank reports that it is ready
 * before it makes the step. If all ranks had reported this before the loss, the commit includes the lost ranks'
 * gradients on all remaining ranks. Otherwise the remaining ranks repeat the round without these gradients, and divide
 * by the number of their own micro-batches. The gradients that they have added stay. Then the shards are redistributed
 * over the remaining ranks. After the same number of installs, all remaining ranks have the same parameters, bit for
 * bit.
 *
 * The accumulator and `params` keep their addresses. If the caller of a rank computes at the time of the loss, the rank
 * takes part in its next install. A shard is lost if its rank and the next rank, which has the copy, are both lost
 * before the shards are redistributed. All calls then return MISMATCH; the text names the two ranks. Start again from
 * the last checkpoint in this case. A rank that was left out, because it was stopped or too late, gets
 * STALE_GENERATION. A loss during create or load is an error; after a loss during a save, the survivors finish the
 * save. In the last round, install waits until all ranks have finished this round. With agd, the counters of
 * entrain_optim_info include the steps on the copy. */

enum { /* entrain_acco_config_t.method. A commit is a round whose step changes masters and optimizer state. In each
          round a rank sends 2 L (W - 1) / W elements, where L is the number of parameters with padding */
  ENTRAIN_ACCO = 0,      /* two rounds per commit. The gradients of half A of a batch are computed at an estimate of the
                            parameters, those of half B at the parameters. A alone gives the next estimate, by a preview
                            of the optimizer's step, which changes neither masters nor state. A and B together give the
                            next parameters */
  ENTRAIN_ACCO_DPU = 1,  /* delayed parameter update: each round commits, with the gradients of the previous round */
  ENTRAIN_ACCO_WP = 2,   /* weight prediction: as DPU, but the next gradients are computed at predicted parameters:
                            those that a second step with the same gradients would give. (There is no published code;
                            this is a reconstruction) */
  ENTRAIN_ACCO_ZERO1 = 3 /* synchronous: install waits for the round that it starts */
};
enum { /* units of the schedule and of the limit. Amounts are summed over all commits and all ranks */
  ENTRAIN_UNIT_COMMITS = 0,
  ENTRAIN_UNIT_GRADIENTS = 1, /* micro-batches */
  ENTRAIN_UNIT_TOKENS = 2     /* as given to entrain_acco_add */
};

/* One step of an optimizer of the caller, on elements [first, first + count) of this rank's shard. The channel's thread
 * calls the function for one piece of the shard after the other. Inside this function and inside the schedule, calls
 * that need the engine return FAILED_PRECONDITION; the text names the function. Queries and optimizers are allowed.
 * - `grads`: the mean gradient, clipped. `master`: the parameters. Both are f32, or f64 if params_dtype is f64.
 * - preview 0: a commit. `master` becomes the new parameters; `out` is NULL.
 * - preview 1: `out` receives the parameters that a commit would write to `master`; `master` and the optimizer's own
 *   state must not change.
 * - `step` counts commits from 1.
 *
 * Returns 0 on success. Any other number ends the channel on all ranks with ABORTED: "the ACCO step of commit 7
 * returned 5". On other ranks the text names the rank. After a failure the library calls the function for no further
 * piece. `params` stay as the last install left them, and `master` stays as the step left it. */
typedef int32_t (*entrain_acco_step_fn)(void* user, int32_t preview, int64_t step, double lr, size_t first, size_t count,
                                        const void* grads, void* master, void* out);
/* Returns the learning rate for `progress`, which is the amount committed so far, in the unit of schedule_unit. Must
 * return the same rate on all ranks. The channel's thread calls this function. If the rate is negative or not finite,
 * the channel ends on all ranks with ABORTED; the text has the rate. */
typedef double (*entrain_acco_schedule_fn)(void* user, int64_t progress);

/* Elements [first, first + count) of the parameters with their own optimizer or their own factor of the learning rate.
 * An example: norm layers and biases, without weight decay. The struct has no `size`, because it is an element of an
 * array. Its four fields will not change. */
typedef struct entrain_acco_group_t {
  size_t first, count;          /* count >= 1 */
  const entrain_optim_t* optim; /* as entrain_acco_config_t.optim; NULL: the same optimizer as there */
  double lr_scale;              /* > 0: factor by which the schedule's rate is multiplied */
} entrain_acco_group_t;

typedef struct entrain_acco_config_t {
  size_t size;
  void* params;                  /* `count` elements of params_dtype; lent until the channel is destroyed.
                                    entrain_acco_install writes them. All ranks start with the parameters of rank 0 */
  size_t count;                  /* Psi >= 1 */
  int32_t params_dtype;          /* ENTRAIN_F32 (default) or ENTRAIN_BF16; ENTRAIN_F64 only with `step` */
  int32_t grads_dtype;           /* type of the accumulator: params_dtype or ENTRAIN_F32; -1 (default): params_dtype */
  int32_t wire_dtype;            /* type of gradients on the wire: ENTRAIN_F32 or ENTRAIN_BF16; ENTRAIN_F64 if
                                    params_dtype is F64; -1 (default): params_dtype */
  int32_t method;                /* ENTRAIN_ACCO*; default ENTRAIN_ACCO */
  const entrain_optim_t* optim;  /* the optimizer; may be destroyed before the channel. The channel keeps the state
                                    arrays. Its memory must be ENTRAIN_MEMORY_HOST. NULL with
                                    `step`, or if `groups` cover all elements */
  entrain_acco_step_fn step;     /* the step of an optimizer of the caller, instead of optim */
  void* user;                    /* first argument of step */
  int64_t min_microbatches;      /* >= 1; default 1: smallest number of micro-batches of this rank in a round */
  int64_t max_microbatches;      /* >= min_microbatches: largest number of micro-batches of this rank in a round. At
                                    this number the caller must call entrain_acco_install, which then waits for the
                                    round. 0 (default): no limit */
  int64_t warmup_rounds;         /* number of synchronous rounds at the start; default 0 */
  double clip_norm;              /* > 0: largest norm of a round's mean gradient. Each round then reduces one more
                                    scalar. 0 (default): no limit */
  double lr;                     /* default 1e-3 */
  double min_lr;                 /* learning rate at the end of the schedule; default 0 */
  int64_t schedule_warmup;       /* progress up to which the rate grows linearly from 0 to lr; default 0 */
  int64_t schedule_total;        /* progress at which the rate reaches min_lr, along half a cosine after
                                    schedule_warmup; 0 (default): the rate stays at lr */
  int32_t schedule_unit;         /* ENTRAIN_UNIT_*: unit of schedule_warmup, schedule_total, and the argument `progress`
                                    of schedule; default COMMITS */
  int32_t limit_unit;            /* ENTRAIN_UNIT_*: unit of limit; default COMMITS */
  entrain_acco_schedule_fn schedule; /* replaces lr, min_lr, schedule_warmup and schedule_total; or NULL */
  void* schedule_user;           /* first argument of schedule */
  int64_t limit;                 /* the run ends at the first commit at which the committed amount reaches this number;
                                    0 (default): it ends at entrain_acco_stop */
  int64_t timeout_ns;            /* deadline of each collective. 0: the communicator's default */
  const entrain_acco_group_t* groups; /* groups of elements, disjoint and ascending. Elements in no group use `optim` at
                                         the schedule's rate. If `optim` is NULL, every element must be in a group. Not
                                         with `step`. Copied. NULL (default): no groups */
  size_t group_count;            /* number of groups. The number of state arrays in the channel is the largest that one
                                    of the optimizers needs. Each array is as long as the shard */
  int32_t on_loss;               /* ENTRAIN_ON_LOSS_*; default FAIL. FINISH is refused with `step` */
  int32_t admit;                 /* ENTRAIN_ADMIT_*; default NONE. EXCHANGE is refused with `step`, and with a
                                    communicator of more than 1500 ranks */
  entrain_store_t* admit_store;  /* for admit: the store in which newcomers apply; the same rules as for
                                    entrain_edit_config_t.admit_store */
  const char* admit_name;        /* for admit: the name under which newcomers apply, 1 to 128 bytes; copied. NULL
                                    (default): "acco". Channels that use one store at the same time need different
                                    names */
  const char* identity;          /* as entrain_edit_config_t.identity */
  double silence;                /* as entrain_edit_config_t.silence, for the rounds; `comm` has its own silence_ns */
} entrain_acco_config_t;
static ENTRAIN_INLINE void entrain_acco_config_init(entrain_acco_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_ACCO_CONFIG, config, sizeof(*config));
}

/* As entrain_edit_option_matters. Ignores optim, and the arrays and functions of `config`; all of these fields may be
 * NULL. */
ENTRAIN_API entrain_status_t entrain_acco_option_matters(const entrain_acco_config_t* config, int32_t index,
                                                         int32_t* matters);

/* Creates a channel. Collective over `comm`; blocks. All ranks must give the same config, except for params, the step,
 * the numbers of micro-batches and timeout_ns.
 *
 * Memory of the channel in addition to params:
 * - (4 + 4 A) Psi / W bytes for the shard, where A is the number of the optimizer's state arrays;
 * - Psi elements of grads_dtype, and Psi elements of the wider one of params_dtype and wire_dtype. With the default
 *   wire_dtype these are 8 Psi bytes with f32 parameters, 4 Psi with bf16, 6 Psi with bf16 and an f32 accumulator;
 * - up to 64 KiB for the pieces of a step;
 * - with ENTRAIN_ON_LOSS_FINISH the bytes of one more shard, a sum of gradients of Psi / W elements, and Psi elements
 *   of wire_dtype.
 */
ENTRAIN_API entrain_status_t entrain_acco_create(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                                 entrain_acco_t** acco);
/* Creates a channel that joins a running job. The ranks of this job, the members, have set ENTRAIN_ADMIT_EXCHANGE.
 * `comm` contains this process alone. Create `comm` in the members' store, because the members reach this process at
 * the address that its route to this store determines. Give `comm` another name than those of the job. `config` is as
 * on the members; `admit` must be set. Blocks until the members have admitted this rank, at most wait_ns (0:
 * config.timeout_ns; if that is 0, too, the communicator's default deadline). *acco belongs to the caller. After
 * success config->params holds the parameters that the members installed last. See "Newcomers" below. Errors are those
 * of entrain_edit_join. The library compares optimizers by the results of one step on arbitrary values. So the values
 * in the text of MISMATCH may be such results. */
ENTRAIN_API entrain_status_t entrain_acco_join(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                               int64_t wait_ns, entrain_acco_t** acco);
/* Frees the channel. The other ranks need this rank's part of a round in progress. So the function waits for the end of
 * this round: at most 10 s, or at most 1 s if the caller has a step or a schedule, because these could wait for the
 * calling thread. Then it ends the round on all ranks (ABORTED there). entrain_comm_abort ends the round at once.
 * Because of this wait, ranks that each make the same number of installs may destroy their channels at different times.
 * The function waits at most 1 s for a running step or schedule of the caller, as entrain_edit_destroy does. With
 * ENTRAIN_ADMIT_EXCHANGE rank 0 also waits for the end of a request to the store, at most 0.5 s. If newcomers are being
 * connected at this time, the function waits for the end of this attempt: at most 2 s, or a quarter of timeout_ns if
 * the store does not answer. Does nothing for NULL. */
ENTRAIN_API void entrain_acco_destroy(entrain_acco_t* acco);
/* Writes the address of the accumulator to *gradients: `count` elements of grads_dtype, zero at first. Only the caller
 * adds to the accumulator. entrain_acco_install clears it when necessary. Lent until the channel is destroyed. */
ENTRAIN_API entrain_status_t entrain_acco_gradients(entrain_acco_t* acco, void** gradients);
/* Tells the channel that the gradients of `microbatches` (>= 1) micro-batches with `tokens` (>= 0) tokens have been
 * added to the accumulator. Local. Returns FAILED_PRECONDITION above max_microbatches, and after the end of the run. */
ENTRAIN_API entrain_status_t entrain_acco_add(entrain_acco_t* acco, int64_t microbatches, int64_t tokens);
/* Writes to *ready whether the caller should call entrain_acco_install now: 1 or 0. It is 1 if the round in progress is
 * over and min_microbatches have been added; install then does not wait for other ranks, except in synchronous rounds
 * (see entrain_acco_work). It is also 1 if max_microbatches have been added. Never blocks. */
ENTRAIN_API entrain_status_t entrain_acco_poll(entrain_acco_t* acco, int32_t* ready);
/* Creates a work that is over when entrain_acco_install would not wait. It has the status that install would return.
 * Use it with entrain_work_wait for signals, watchdogs and progress. In synchronous rounds (ENTRAIN_ACCO_ZERO1,
 * warm-up) install waits for the round that it starts. Then this function starts this round. Returns
 * FAILED_PRECONDITION if fewer than min_microbatches have been added, and after the end of the run. After that, nothing
 * may be added, saved or loaded before install (FAILED_PRECONDITION). In other rounds this function changes nothing. */
ENTRAIN_API entrain_status_t entrain_acco_work(entrain_acco_t* acco, entrain_work_t** work);
/* Waits for the round in progress, installs its parameters, and starts the next round with the gradients that have been
 * added. *finished becomes 1 when the run is over, on all ranks after the same commit. The parameters are then those of
 * the last commit. The channel drops gradients that were added too late for this commit. */
ENTRAIN_API entrain_status_t entrain_acco_install(entrain_acco_t* acco, int32_t* finished);
/* Ends the run. The next round that this rank starts carries this request to all ranks. If that round is a commit, the
 * run ends with it, otherwise with the next commit. Any rank may call. Local. A checkpoint may be saved after the end
 * of the run. A run that loads such a checkpoint continues up to its own limit. */
ENTRAIN_API entrain_status_t entrain_acco_stop(entrain_acco_t* acco);

/* ---- What ACCO knows, and its checkpoints --------------------------------------------------------------------- */

/* The state after the last install. After the same number of installs all ranks have the same values, except for
 * `dropped` and the fields from exposed_ns to bytes_held. */
typedef struct entrain_acco_info_t {
  size_t size;
  int64_t rounds;          /* number of rounds installed */
  int64_t commits;         /* number of commits. This field and the next two are equal on all ranks, and count the work
                              of all ranks */
  int64_t gradients;       /* number of micro-batches committed */
  int64_t tokens;
  int64_t dropped;         /* number of micro-batches of this rank that were added too late for the last commit of the
                              run */
  int64_t microbatches;    /* number of micro-batches of all ranks in the last round; for a commit of ENTRAIN_ACCO,
                              those of both halves */
  double lr;               /* learning rate of the last round */
  double grad_norm;        /* norm of the last round's mean gradient if clip_norm is set; otherwise NaN */
  double clip_factor;      /* factor with which this gradient was multiplied; 1: not clipped */
  int32_t committed;       /* 1: the last round was a commit */
  int32_t finished;
  uint64_t exposed_ns;     /* time for which entrain_acco_install has waited since creation */
  uint64_t round_ns;       /* time of all rounds since creation, also while the caller computed */
  uint64_t bytes_sent;     /* payload bytes that this rank sent */
  int64_t bytes_held;      /* bytes of memory that the channel holds, without params */
  int32_t ranks;        /* number of ranks whose micro-batches are in the last round; before the first round: number of
                           ranks */
  int32_t losses;       /* number of ranks lost before the last round; entrain_acco_loss describes them. On a newcomer:
                           since it has joined */
  int64_t joins;        /* number of newcomers admitted before the last round */
} entrain_acco_info_t;
static ENTRAIN_INLINE void entrain_acco_info_init(entrain_acco_info_t* info) {
  entrain_struct_init(ENTRAIN_STRUCT_ACCO_INFO, info, sizeof(*info));
}
ENTRAIN_API entrain_status_t entrain_acco_info(const entrain_acco_t* acco, entrain_acco_info_t* info);
/* Describes loss `index`. Losses are numbered from 0 in the order in which this rank learned of them. *rank becomes the
 * number of the lost rank in the communicator of entrain_acco_create. (Newcomers have the next numbers, in the order in
 * which they joined.) *round becomes the number of the round in progress at that time, counted from 1. `text` becomes
 * the reason, cut to `bytes` bytes and ended by a zero byte. Each output may be NULL. Returns INVALID_ARGUMENT if this
 * rank knows of no such loss. The rank may know of losses that entrain_acco_info does not count yet. */
ENTRAIN_API entrain_status_t entrain_acco_loss(const entrain_acco_t* acco, int32_t index, int32_t* rank, int64_t* round,
                                               char* text, size_t bytes);

/* Newcomers, with ENTRAIN_ADMIT_EXCHANGE. A newcomer is a process that calls entrain_acco_join. Between rounds, rank 0
 * looks for newcomers in the store (one or two requests, at most every 20 ms). A thread of the library connects the
 * newcomers on all ranks, while rounds continue. At the beginning of the first round after a commit, the shards of
 * masters and optimizer state are redistributed over all ranks. Newcomers get their shards, the parameters and the
 * counters, and check hashes of these data. The rounds stop only for this transfer. The same round then includes the
 * gradients of the newcomers, so it waits until they have called entrain_acco_install. All ranks then have the same
 * bits.
 *
 * The members keep their old state until all of them have agreed that the transfer has succeeded. If a newcomer dies or
 * stops before that, the admission fails. The transfer may then wait 10 s longer than the data need; otherwise no round
 * waits for the newcomer. After the agreement the newcomer is a rank like the others. Its loss ends the run with
 * ENTRAIN_ON_LOSS_FAIL; with FINISH the other ranks continue. If a member is lost during the admission, the newcomers
 * either apply again or continue with the remaining ranks. After the last commit the members admit no newcomer. The
 * library does not send the arrays of entrain_acco_add_state: they keep the newcomer's values.
 *
 * From its first entrain_acco_install on, a newcomer makes the same calls as the members. After this install its
 * entrain_acco_info_t equals that of the members. With ZERO1 this call brings a new commit. With the other methods
 * it installs no new round: entrain_acco_info_t then describes the commit before the admission, which the members have
 * installed already. If the members save this commit, the newcomer must take part in the save; otherwise the members
 * wait in entrain_acco_save. So every rank should decide after each install, from entrain_acco_info alone, whether to
 * save. */

/* Checkpoints of a channel. Arguments and errors are those of entrain_edit_add_state, entrain_edit_save and
 * entrain_edit_load. Save between entrain_acco_install and the next entrain_acco_add. A save waits for the round in
 * progress and changes nothing.
 * - ENTRAIN_CHECKPOINT_EXACT: the run continues with the same method, and with the same bits if each rank adds the same
 *   number of micro-batches to each round as before. (Call entrain_acco_install at that number, whatever
 *   entrain_acco_poll says; or set min_microbatches and max_microbatches to it.)
 * - ENTRAIN_CHECKPOINT_PORTABLE: a run with any number of ranks and any method continues from the last commit. For f32
 *   masters only. If the optimizer belongs to the caller (config.step), the checkpoint has none of its state except for
 *   the arrays of entrain_acco_add_state.
 *
 * The groups of a run must be those of the checkpoint, each with the same number of state arrays. Otherwise a load
 * returns FAILED_PRECONDITION; the text names the group. The rates and other numbers of a group may differ from those
 * of the checkpoint, and so may lr. */
ENTRAIN_API entrain_status_t entrain_acco_add_state(entrain_acco_t* acco, const char* name, void* data, size_t count,
                                                    entrain_dtype_t dtype, int32_t holder);
ENTRAIN_API entrain_status_t entrain_acco_save(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                               const entrain_checkpoint_functions_t* functions, entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_acco_load(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                               const entrain_checkpoint_functions_t* functions, entrain_work_t** work);
/* Like entrain_edit_reduce, over the ranks of the channel. Legal whenever a checkpoint may be saved. */
ENTRAIN_API entrain_status_t entrain_acco_reduce(entrain_acco_t* acco, const void* in, void* out, size_t count,
                                                 entrain_dtype_t dtype, entrain_op_t op, int64_t timeout_ns,
                                                 int32_t* rank, int32_t* ranks, entrain_work_t** work);
/* As entrain_edit_open_state. The channel counts as one replica and one layer. The state may be opened whenever a
 * checkpoint may be saved, and also before the first entrain_acco_add. */
ENTRAIN_API entrain_status_t entrain_acco_open_state(entrain_acco_t* acco, int32_t kind, entrain_state_t** state,
                                                     entrain_work_t** work);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_TRAIN_H_ */
