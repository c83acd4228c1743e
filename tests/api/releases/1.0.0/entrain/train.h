/* Training: the mesh of ranks, layer-wise sharding of a model, and EDiT on top; and, on its own, ACCO's gradient
 * channel. Flat arrays in, flat arrays out; the model stays the caller's.
 *
 *              sync ->                    M = shard group size: the ranks that hold one replica between them
 *          r0   r2   r4                   N = sync group size: the ranks that hold the same part of all replicas
 *  shard   r1   r3   r5                   here M = 2, N = 3: r0, r1 are replica 0; r0, r2, r4 hold slot 0
 *
 * Sources: EDiT is arXiv 2412.07210 (Cheng et al., ICLR 2025); symbols as there: theta live parameters, a anchor,
 * Delta = a - theta pseudo-gradient, G its norm, eta, mu outer learning rate and momentum, H sync interval.
 * ACCO is arXiv 2406.02613, and has a section of its own below.
 *
 * Unless said otherwise: calls on one object come from one thread at a time; "collective" means that all ranks of the
 * mesh make the call in the same order; errors of the communicators inside surface from whichever call meets them. If a
 * call of an EDiT object or a gradient channel fails on one rank alone, those that wait for this rank are told: when
 * they give up, or it has gone, their error has the reason.
 *
 * Every call that blocks has a form with a time limit, for signals, watchdogs and event loops:
 *
 *   | call that blocks                  | with a time limit                                                                      |
 *   | edit_wait_layer                   | edit_layer_work, then entrain_work_wait, _notify, _descriptor and so on (collectives.h) |
 *   | shard_wait, shard_release         | shard_gather_work, likewise                                                            |
 *   | shard_finish_gradients            | shard_gradients_work, likewise                                                         |
 *   | shard_gradients, shard_set_buffers | the same, where memory is the caller's                                                |
 *   | edit_layer_report, _layer_score   | edit_layer_work, on device memory                                                      |
 *   | edit_begin_forward, edit_leave    | edit_begin_forward_start, edit_leave_start, likewise                                   |
 *   | shard_broadcast                   | shard_broadcast_start, likewise                                                        |
 *   | acco_install                      | acco_wait or acco_work, then install                                                   |
 *   | edit_save, _load, _save_to,       | edit_save_start and so on, likewise; timeout_ns of the config bounds the whole call    |
 *   | _load_from, and of acco           |                                                                                        |
 *   | edit_open_state, acco_open_state  | edit_open_state_start, acco_open_state_start, likewise                                 |
 *   | state_commit                      | state_commit_start, likewise; its timeout_ns bounds the whole call                     |
 *   | state_get                         | waits for a stream only; the object's timeout_ns bounds it                             |
 *   | shard_gradient_norm               | shard_gradient_norm_start, likewise; the shard's timeout_ns bounds it, and after       |
 *   |                                   | TIMED_OUT the shard is only to be destroyed                                            |
 *   | shard_bind, shard_load            | on device memory wait for the stream; the shard's timeout_ns bounds it                 |
 *   | mesh_create, mesh_create_from,    | the default of the communicators (entrain_comm_set_timeout) bounds each collective     |
 *   | shard_create, edit_create,        | inside; after TIMED_OUT there is no object, and the communicator on which it happened  |
 *   | acco_create                       | has ended                                                                              |
 *
 * Works named ..._work only watch: to free one, or to give up a wait, changes nothing, and the blocking call is still made, which then
 * returns at once. A call with _start is made by a thread of the library's. It cannot be taken back, and goes on when its work is
 * freed. Until it is over, no other call may use the object, and of an EDiT object its shard and open states: such calls return
 * FAILED_PRECONDITION, except those that ask for constants (shard_layer_info, shard_slab_count, edit_stream, state_count, _info,
 * _find). Destroying the object ends the call with ABORTED, also on the ranks that wait for this one. A blocking call that another
 * thread is in must be over before the object is destroyed. Arguments are copied, but output arguments and what `user` points to
 * are lent until the work is over. Both kinds may be made in done() of entrain_work_notify.
 * entrain_work_info says of them: sequence 0, the layer as tag, the replica's communicator. */
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
                                        parameters, and each works on its own part of every sequence: their gradients are
                                        averaged. EDiT compares these copies, and those of layers that are replicated along
                                        the tensor axis, in every exchange: MISMATCH names the layer and the ranks of
                                        copies that have drifted apart */
  int32_t shard;                     /* M; default 1 */
  int32_t sync;                      /* N; 0 (default): what remains of the communicator */
  const char* order;                 /* axes from the one whose neighbours have consecutive ranks to the slowest; NULL:
                                        "tensor,context,shard,pipeline,sync" */
} entrain_mesh_config_t;
ENTRAIN_API void entrain_mesh_config_init_sized(entrain_mesh_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_mesh_config_init(entrain_mesh_config_t* config) {
  entrain_mesh_config_init_sized(config, sizeof(*config));
}

/* Collective over `comm`: splits it into the groups of the mesh. The product of the axes must be the size of `comm`;
 * INVALID_ARGUMENT names the axes and sizes otherwise. */
ENTRAIN_API entrain_status_t entrain_mesh_create(entrain_comm_t* comm, const entrain_mesh_config_t* config,
                                                 entrain_mesh_t** mesh);
/* A mesh of two communicators that exist: `shard_comm` (this rank's replica) and `sync_comm` (its part in all
 * replicas). Both stay the caller's, and may be destroyed before the mesh. Collective over both: their shapes are compared. */
ENTRAIN_API entrain_status_t entrain_mesh_create_from(entrain_comm_t* shard_comm, entrain_comm_t* sync_comm,
                                                      entrain_mesh_t** mesh);
/* This rank's coordinate and the length along an axis or group. */
ENTRAIN_API entrain_status_t entrain_mesh_coordinate(const entrain_mesh_t* mesh, int32_t axis, int32_t* coordinate,
                                                     int32_t* length);
/* The communicator of an axis or group; the mesh's own, valid until it is destroyed. */
ENTRAIN_API entrain_status_t entrain_mesh_comm(const entrain_mesh_t* mesh, int32_t axis, entrain_comm_t** comm);
ENTRAIN_API void entrain_mesh_destroy(entrain_mesh_t* mesh);

/* ---- A model sharded layer by layer --------------------------------------------------------------------------- */

/* Layer l has P_l = layer_counts[l] elements, padded with zeros to a multiple of M; slot m of the shard group holds
 * elements [m p_l, (m + 1) p_l) with p_l = ceil(P_l / M). A rank's shards of all layers lie one after the other in one
 * flat array, the slab: sum of p_l elements; or each is an array of its own (entrain_shard_bind_layers). */
/* With layer_segments a layer is cut as FSDP2 and torch.chunk cut it: each segment along its dimension 0 into M chunks of
 * ceil(rows / M) rows, of which the last may be shorter or empty. A rank's shard of the layer is its chunks of all segments
 * one after the other, each padded with zeros to ceil(rows / M) rows. Then p_l is the sum over the segments of
 * ceil(rows / M) count / rows, and padding lies between chunks too: the caller keeps it zero, gradients included. What gather
 * delivers, and gradient buffers, are the M shards one after the other. entrain_shard_load takes, and checkpoints have, whole
 * layers: the segments one after the other, without padding; so a portable checkpoint goes with any M. */
typedef struct entrain_shard_config {
  size_t size;
  int32_t layers;
  int32_t prefetch;           /* how many layers are gathered ahead of use; default 1; 0: none */
  const size_t* layer_counts; /* P_l, `layers` entries; in the order of the forward pass; 0: no parameters */
  entrain_dtype_t param_dtype; /* what gather delivers and what travels: ENTRAIN_F32 (default) or ENTRAIN_BF16 */
  entrain_dtype_t grad_dtype;  /* what the caller writes and what travels: likewise; what is bound has a type of its own */
  int64_t timeout_ns;          /* of each collective inside; 0: the communicators' default */
  const uint8_t* layer_frozen; /* `layers` entries, 1: nothing in the layer trains, 0: it does; NULL: all train. A frozen
                                  layer is gathered like the others, but has no gradients (its part of the gradient
                                  slab is left alone) and no anchor, and EDiT neither exchanges it nor counts it in
                                  norms. An optimizer step over the whole slab reaches it all the same: weight decay
                                  would shrink it */
  const uint8_t* layer_replicated; /* `layers` entries, 1: the ranks along the tensor axis all hold this layer alike (the
                                      weights of a norm, say), 0: each has a part of its own; NULL: all have. A layer that
                                      is replicated counts once in norms, so that it is judged, weighed and clipped the
                                      same way on all of them; keeping its gradients alike is the caller's */
  int32_t memory; /* ENTRAIN_MEMORY_HOST (default) or DEVICE, on all ranks alike: where what is bound is,
                     and everything that is lent. See below */
  void* stream;   /* a CUstream of that device; NULL (default): its default stream. HOST: NULL */
  const int32_t* layer_segments; /* `layers` entries: how many segments (tensors) each layer is made of; NULL (default): a
                                    layer is cut as one flat array. Else the two below have an entry for each segment, in
                                    order over all layers */
  const size_t* segment_counts;  /* elements; those of a layer's segments add up to its P_l */
  const size_t* segment_rows;    /* length of dimension 0, which divides the elements; 0 only of a segment without any */
} entrain_shard_config_t;
ENTRAIN_API void entrain_shard_config_init_sized(entrain_shard_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_shard_config_init(entrain_shard_config_t* config) {
  entrain_shard_config_init_sized(config, sizeof(*config));
}

/* On device memory. Calls of the object, and of an EDiT object on it, are ordered with `stream`:
 * their effects begin when the device has come to where the stream was at the call, and what is
 * enqueued on it afterwards sees them; that a call waits means that the stream does. The host
 * waits for neither the device nor other ranks, but where it is said, and in bind, load,
 * broadcast and destroy. So an error of the network, or of the device, comes out of a later call,
 * and what the stream computes until then may be of no use; none of it goes to other replicas. A
 * time limit also bounds how late the stream may come to where it was: let it cover how far the
 * host runs ahead. All ranks of the shard group gather layers in the same order; they, and those of
 * the context group, reduce them in the same order. Memory that is lent is used again when the stream has come to where it was
 * at the release, and stays until destroy, which waits for all streams of the device. */

/* Collective. All ranks must give the same layers. */
ENTRAIN_API entrain_status_t entrain_shard_create(entrain_mesh_t* mesh, const entrain_shard_config_t* config,
                                                  entrain_shard_t** shard);
ENTRAIN_API void entrain_shard_destroy(entrain_shard_t* shard);

typedef struct entrain_shard_layer {
  size_t size;
  size_t full_count;   /* P_l */
  size_t padded_count; /* M p_l: elements of what gather delivers and of the gradient buffer */
  size_t shard_count;  /* p_l */
  size_t first;        /* where this rank's shard begins in the padded layer: m p_l */
  size_t valid_count;  /* elements of this rank's shard up to the last that is not padding */
  size_t slab_offset;  /* where the shard begins in the slab */
} entrain_shard_layer_t;
ENTRAIN_API void entrain_shard_layer_init_sized(entrain_shard_layer_t* layer, size_t bytes);
static ENTRAIN_INLINE void entrain_shard_layer_init(entrain_shard_layer_t* layer) {
  entrain_shard_layer_init_sized(layer, sizeof(*layer));
}
ENTRAIN_API entrain_status_t entrain_shard_layer_info(const entrain_shard_t* shard, int32_t layer,
                                                      entrain_shard_layer_t* out);
/* Elements of the slab. */
ENTRAIN_API entrain_status_t entrain_shard_slab_count(const entrain_shard_t* shard, size_t* count);

/* Lends the slab of parameters and the slab of gradients, each entrain_shard_slab_count() elements of `dtype`, where
 * config.memory says, until the shard and the EDiT object on it are destroyed. Once, before anything below, by this call or the next. `dtype`:
 * ENTRAIN_F32, or ENTRAIN_BF16 (see there); others are UNIMPLEMENTED. The library reads params, and EDiT writes them, only
 * inside the calls of this header and until their waits; gradients are added to, never cleared. */
ENTRAIN_API entrain_status_t entrain_shard_bind(entrain_shard_t* shard, void* params, void* grads,
                                                entrain_dtype_t dtype);
/* The same with one array a layer instead of slabs: params[l] and grads[l], `layers` entries each, are this rank's shard of
 * layer l, shard_count elements of `dtype`, which is the same on all ranks. The lists themselves are copied. A layer without
 * elements has NULL; so may the gradients of a frozen one. grads NULL: the caller reduces gradients itself, and
 * entrain_shard_gradients is FAILED_PRECONDITION. `dtype`: ENTRAIN_F32, or ENTRAIN_BF16 for parameters that have no f32
 * masters. EDiT's anchors, pseudo-gradients and outer state are f32 all the same: theta = a rounded to nearest even, and in
 * an exchange theta counts as a + (theta - rounded a), so that rounding adds nothing to pseudo-gradients. What is lost is
 * what bf16 loses between exchanges: of an optimizer's step, or an outer step, that is less than half the distance to the
 * next bf16 number (2^-9 of the value) theta shows nothing, though the anchor keeps it; and gradients are summed in f32 and
 * rounded at each reduction. An EDiT object takes 10 bytes more per element of the largest shard, 20 with overlap_steps. */
ENTRAIN_API entrain_status_t entrain_shard_bind_layers(entrain_shard_t* shard, void* const* params, void* const* grads,
                                                       entrain_dtype_t dtype);

/* DEVICE: from now on calls of the shard, and of an EDiT object on it, are ordered with this stream instead of the one that
 * was given before (config.stream, or here); NULL: the device's default stream. What is enqueued on `stream` afterwards
 * waits for what is on the stream before now, so nothing that was lent or is being gathered has to end first; of what the
 * caller enqueues on the stream before from now on the shard knows nothing. Local; cheap enough for every step; the stream
 * must live until another is set or the shard is destroyed. Optimizers have streams of their own. HOST: FAILED_PRECONDITION.
 * A stream that is not one of the shard's device: INVALID_ARGUMENT, before bind by bind. */
ENTRAIN_API entrain_status_t entrain_shard_set_stream(entrain_shard_t* shard, void* stream);

/* Copies this rank's part of a whole layer (P_l elements of `dtype`: f32, f64, bf16 or f16) into its parameters,
 * converted to their type and padded with zeros. Local. Other types: UNIMPLEMENTED. With parameters
 * on a device `full` may be there or on the host. */
ENTRAIN_API entrain_status_t entrain_shard_load(entrain_shard_t* shard, int32_t layer, const void* full,
                                                entrain_dtype_t dtype);
/* Copies the parameters of replica 0 to all replicas, and those of the first rank along the context axis to the others, so
 * that they start alike. Collective; blocks. */
ENTRAIN_API entrain_status_t entrain_shard_broadcast(entrain_shard_t* shard);
/* The same as a started call (see above). */
ENTRAIN_API entrain_status_t entrain_shard_broadcast_start(entrain_shard_t* shard, entrain_work_t** work);

enum { ENTRAIN_PASS_FORWARD = 0, ENTRAIN_PASS_BACKWARD = 1 };
/* Says in which order layers come next, for prefetching: up or down. Collective. */
ENTRAIN_API entrain_status_t entrain_shard_begin_pass(entrain_shard_t* shard, int32_t pass);
/* Starts the all-gather of a layer's parameters over the shard group; returns at once. Starting it twice before release
 * does nothing. All ranks of the shard group gather the same layers, in any order. */
ENTRAIN_API entrain_status_t entrain_shard_gather(entrain_shard_t* shard, int32_t layer);
/* Waits for the layer (starting its gather if nobody did), starts gathering the next `prefetch` layers of the pass, and
 * points *params at padded_count elements of param_dtype. The library's memory, to be read only, until release. */
ENTRAIN_API entrain_status_t entrain_shard_wait(entrain_shard_t* shard, int32_t layer, void** params);
/* Starts the layer's gather if nobody did, and none ahead. *work is over when entrain_shard_wait would not block (on device memory,
 * where it never does, when the layer has been gathered), with the status that it would return. */
ENTRAIN_API entrain_status_t entrain_shard_gather_work(entrain_shard_t* shard, int32_t layer, entrain_work_t** work);
/* Gives the memory back. A gather that is under way is waited for. */
ENTRAIN_API entrain_status_t entrain_shard_release(entrain_shard_t* shard, int32_t layer);

/* A gradient buffer for the layer: padded_count elements of grad_dtype, zero. The library's memory, the caller's to add
 * to until entrain_shard_reduce_gradients. Frozen layers: INVALID_ARGUMENT. */
ENTRAIN_API entrain_status_t entrain_shard_gradients(entrain_shard_t* shard, int32_t layer, void** grads);
/* Takes the buffer back and starts its reduction; returns at once: reduce-scatter over the shard group, all-reduce over the
 * C ranks of the context group, with global gradients also over the sync group, division by M C (local) or M C N (global),
 * and addition to the gradients that are bound. So each rank's gradient is of the mean loss over its own tokens; where a rank's loss is
 * its part of a sum over the whole sequence, it is multiplied by C first. Gradients of what is replicated along the tensor
 * axis are the caller's to combine. Ranks reduce the same layers, in any order; but with global gradients those of a sync
 * group in the same order (and on device memory, see above). */
ENTRAIN_API entrain_status_t entrain_shard_reduce_gradients(entrain_shard_t* shard, int32_t layer);
/* Waits until everything that was reduced has been added to the gradients that are bound. */
ENTRAIN_API entrain_status_t entrain_shard_finish_gradients(entrain_shard_t* shard);
/* *work is over when all that has been reduced so far has been added, so that entrain_shard_finish_gradients, which is still to
 * be called, does not block (on device memory, where it never does, when the additions are done), with the status that it would
 * return. */
ENTRAIN_API entrain_status_t entrain_shard_gradients_work(entrain_shard_t* shard, entrain_work_t** work);

/* Memory of the caller's for a layer, where config.memory says, padded_count elements each: `gathered`, of param_dtype, is
 * where gather delivers the layer, the same place in every pass, also where nothing has to be gathered; `gradients`, of
 * grad_dtype, is what entrain_shard_gradients gives, cleared by it. NULL: the library's (of a frozen layer gradients must
 * be). Lent until changed, or until the shard is destroyed. Before entrain_shard_gradients lends such memory again it waits
 * for the layer's reduction before (on device memory the stream does). FAILED_PRECONDITION before bind, between gather and
 * release, and between gradients and reduce; waits for the layer's reduction. Local. */
ENTRAIN_API entrain_status_t entrain_shard_set_buffers(entrain_shard_t* shard, int32_t layer, void* gathered,
                                                       void* gradients);
/* *norm: the square root of the sum of squares, in double, of all gradients of a replica as they are bound: over its shard,
 * tensor and pipeline groups. Each element counts once: copies along the context axis, and layers that are replicated along
 * the tensor axis, on the first of their ranks; frozen layers and padding not at all. The same bits on all ranks of a
 * replica, and on all replicas where gradients are global. Not finite if a gradient is not. Gradients must be bound, and
 * reduced as entrain_edit_end_step has it (FAILED_PRECONDITION). Collective over the replica; blocks: one number a rank; on
 * device memory the host waits for the stream too. */
ENTRAIN_API entrain_status_t entrain_shard_gradient_norm(entrain_shard_t* shard, double* norm);
/* The same as a started call. `norm` is lent until the work is over, and written if it ends well. */
ENTRAIN_API entrain_status_t entrain_shard_gradient_norm_start(entrain_shard_t* shard, double* norm,
                                                               entrain_work_t** work);

enum {
  ENTRAIN_GRADIENTS_LOCAL = 0, /* averaged over shard and context group: each replica trains alone */
  ENTRAIN_GRADIENTS_GLOBAL = 1 /* averaged over these and the sync group: synchronous data parallel; the default */
};
/* Which it is from the next reduction on. An EDiT object on this shard sets it itself. Collective. */
ENTRAIN_API entrain_status_t entrain_shard_set_gradients(entrain_shard_t* shard, int32_t scope);

typedef struct entrain_shard_stats_t {
  size_t size;
  uint64_t gather_wait_ns;   /* time that entrain_shard_wait kept the caller */
  uint64_t reduce_wait_ns;   /* time that entrain_shard_finish_gradients kept the caller */
  uint64_t bytes_sent_shard; /* payload this rank sent within its shard and context group */
  uint64_t bytes_sent_sync;  /* payload this rank sent across replicas for gradients and the broadcast */
} entrain_shard_stats_t;
ENTRAIN_API void entrain_shard_stats_init_sized(entrain_shard_stats_t* stats, size_t bytes);
static ENTRAIN_INLINE void entrain_shard_stats_init(entrain_shard_stats_t* stats) {
  entrain_shard_stats_init_sized(stats, sizeof(*stats));
}
/* Since creation. Exact when nothing is in flight. */
ENTRAIN_API entrain_status_t entrain_shard_stats(const entrain_shard_t* shard, entrain_shard_stats_t* stats);

/* ---- EDiT ----------------------------------------------------------------------------------------------------- */

enum { /* entrain_edit_config_t.outer_optimizer */
  ENTRAIN_OUTER_NONE = 0,     /* a = a - Delta (the combined one); with no reducer either: plain averaging, no anchor */
  ENTRAIN_OUTER_SGD = 1,      /* b = mu b + g, a = a - eta (g + mu b) (nesterov) or a - eta b */
  ENTRAIN_OUTER_ADAMW = 2,    /* AdamW against g, decoupled weight decay; two moments instead of b */
  ENTRAIN_OUTER_CALLBACK = 3, /* entrain_edit_config_t.outer_step */
  ENTRAIN_OUTER_LION = 4      /* Lion (arXiv 2302.06675): a = (1 - eta lambda) a - eta sign(beta1 m + (1 - beta1) g), then
                                 m = beta2 m + (1 - beta2) g; the moment m instead of b */
};
/* The caller's outer step of one layer: moves this rank's `count` elements of the anchor, in place, against the combined
 * and clipped pseudo-gradient `grad`. `step`: 1 for the layer's first, then one more each time. Called for one layer at a
 * time, by a thread of the library's, which it must not wait for; both arrays are lent for the call. In it, calls that need
 * the engine are FAILED_PRECONDITION naming it; queries and optimizers are allowed. On
 * device memory they are addresses of the device, and what the step does is enqueued on
 * entrain_edit_stream. Ranks of a sync group get the same bits and
 * must make the same bits of them: a difference is found at the next exchange. Returns 0. Any other number ends the
 * communicators of this EDiT object on all ranks: ABORTED, "the outer step of layer 3, step 7, returned 5", on other ranks with the rank, at the latest in their next exchange.
 * The library then writes nothing more: the anchor is what the step has left of it, the parameters are what they were
 * before the layer's exchange, and no other layer's step is called on this rank. */
typedef int32_t (*entrain_outer_step_fn)(void* user, int32_t layer, int64_t step, float* anchor, const float* grad,
                                         size_t count);
enum { /* entrain_edit_config_t.reducer */
  ENTRAIN_REDUCER_NONE = 0,  /* uniform mean */
  ENTRAIN_REDUCER_LINEAR = 1, /* weighted mean */
  ENTRAIN_REDUCER_GTA = 2     /* generalised task arithmetic: entrain_reduction_gta with the replicas' weights */
};

/* Options under the names of the published code, with its defaults.
 *
 * EDiT exchanges every local_sgd_sync_interval steps. A-EDiT (use_async) does when local_sgd_sync_time has passed since
 * the replicas last met, by each replica's own monotonic clock: whose time is up waits in begin_forward for the others,
 * which are at most one step behind their own time (two where a replica has several ranks: the first one's clock counts,
 * and its word travels behind a step). There they find out whether they have made min_total_global_steps since the
 * last exchange, all together; if not, they go on, and meet again after as long. */
enum { /* overlap_merge: theta when an exchange that ran behind further steps has come, a being the new anchor */
  ENTRAIN_MERGE_ADD = 0,    /* a + what this replica has done since the exchange began */
  ENTRAIN_MERGE_MIX = 1,    /* alpha theta + (1 - alpha) a (Streaming DiLoCo, arXiv 2501.18512, algorithm 2) */
  ENTRAIN_MERGE_RESTART = 2 /* as ADD; but when the exchange begins, theta = the anchor there was: what replicas have done
                               counts for all of them a round late, and for none of them before (CO2, arXiv 2401.16265,
                               with overlap_steps = H) */
};
enum { /* fragment_pattern */
  ENTRAIN_FRAGMENT_SEQUENTIAL = 0, /* neighbouring layers that train */
  ENTRAIN_FRAGMENT_STRIDED = 1     /* every P-th of them */
};
typedef struct entrain_edit_config {
  size_t size;
  entrain_shard_t* shard;              /* the model; bound; shared: the EDiT object keeps it, and memory and stream
                                          are the model's */
  int64_t local_sgd_sync_interval;     /* H: optimizer steps between exchanges, >= 1; default 1 */
  int64_t local_sgd_warmup_steps;      /* synchronous steps before the first local one, >= 0; default 0 */
  int32_t gradient_accumulation_steps; /* micro-batches per optimizer step, >= 1; default 1; end_step insists on it */
  int32_t reducer;                     /* ENTRAIN_REDUCER_*; default NONE */
  int32_t pseudo_gradnorm_reduce;      /* 1: weights softmax(-G / T) over the replicas; needs a reducer; or 0 */
  int32_t normalize;                   /* linear without norm weights, and gta: 1 (default) a mean, 0 a sum */
  double weight_softmax_temperature;   /* T > 0; 0 (default): unset, which is 1 with norm weighting */
  double clip_pseudo_grad;             /* phi > 0: largest norm of a module's combined Delta; 0 (default): off */
  int32_t outer_optimizer;             /* ENTRAIN_OUTER_*; default NONE */
  int32_t outer_nesterov;              /* 0 (default) or 1 */
  double outer_lr;                     /* eta > 0; default 0.7 */
  double outer_momentum;               /* mu, 0 <= mu < 1; default 0.8 */
  double outer_weight_decay;           /* >= 0; default 0 */
  int32_t prefetch;                    /* layers whose exchange runs ahead of use; default 1; 0: each in its wait.
                                          On device memory all run ahead; 0: one after the other */
  int32_t use_async;                   /* 1: A-EDiT; 0 (default): EDiT */
  int64_t timeout_ns;                  /* of each collective inside; 0: the communicators' default. At a rendezvous it
                                          bounds the wait for the slowest replica */
  double local_sgd_sync_time;          /* tau > 0, seconds; default 600; with use_async */
  int64_t min_total_global_steps;      /* >= 1, default 100; with use_async */
  int32_t use_step_weight;             /* 1: replicas count by what they have trained since the last exchange (tokens, if
                                          all called entrain_edit_record, else steps); with use_async. Or 0 */
  int32_t skip_anomaly;                /* 1: norms far above those before are rejected, each layer and replica for
                                          itself; 0 (default): only those that are not finite */
  double step_weight_ratio;            /* r in [0, 1], default 0.5: the share of that in the weights, with a reducer;
                                          without one it is all of the weight */
  double ewma_alpha;                   /* in (0, 1), default 0.02: how fast the mean and deviation of norms follow */
  int64_t ewma_warmup_steps;           /* >= 2, default 120: norms accepted before the first is judged, from the first
                                          that is not zero; in exchanges. After 5 rejections in a row, or all replicas'
                                          twice, it begins anew: the level changed */
  double ewma_threshold;               /* > 0, default 3: rejected above mean + threshold x deviation, which is taken to be at
                                          least 1 % of the mean; more where few norms or a large alpha leave both uncertain
                                          (so that 3 rejects 0.14 % of normal noise), and where recent norms scatter by more
                                          than their deviation */
  double outer_beta1, outer_beta2, outer_eps; /* of adamw, the first two of lion: [0, 1), default 0.9;
                                                 [0, 1), 0.999; >= 1e-37, 1e-8 */
  entrain_outer_step_fn outer_step;    /* with ENTRAIN_OUTER_CALLBACK, else NULL */
  void* outer_user;                    /* its first argument; the caller's */
  int32_t cpu_offload;                 /* 1: with device memory, anchors and outer state are in
                                          page-locked memory of the host, which the device reads and
                                          writes over the bus, a layer at a time. On host memory
                                          without effect */
  int32_t is_debug;                    /* 1: a line in the log, whatever its level, of each layer and exchange: norm, z-score
                                          and limit, verdict, weight, clip factor; by the first rank of each replica */
  int32_t compat;                      /* 1: the arithmetic of the published code, to compare with it: rejected replicas
                                          count in the divisor; step weights count steps since the beginning; detectors
                                          begin at 0 and ingest what they reject; a shard whose combined Delta sums to less than 1e-6 is rolled back. Not for training */
  int32_t overlap_steps;               /* 0 (default): layers wait for their exchange. With EDiT 1 to H: the exchange runs behind
                                          that many further steps, on the parameters as they were when it began; then
                                          theta = a + what this replica has done since. With A-EDiT 1: merged at the first
                                          step when it has come; nobody waits for anybody. 4 P / M bytes more. Not in
                                          plain averaging */
  int32_t consensus_method;            /* of gta: ENTRAIN_CONSENSUS_* (collectives.h); default NONE */
  int32_t int8_mask;                   /* accepted with a consensus_method: signs are never stored here, so it changes nothing */
  int32_t sparsification_method;       /* of gta: ENTRAIN_SPARSIFY_*, of each shard of a layer; default NONE */
  double density;                      /* in (0, 1) with it; default 1. Magnitude must leave an element of every shard */
  uint64_t seed;                       /* of random sparsification and stochastic rounding; default 0 */
  int32_t wire_format;                 /* ENTRAIN_WIRE_*: how pseudo-gradients travel; default F32. Not in plain averaging */
  int32_t wire_block;                  /* values a scale in int8, int4 and int2; 0 (default): 256 */
  int32_t wire_rounding;               /* ENTRAIN_ROUND_*; default NEAREST */
  int32_t error_feedback;              /* 1: what was not sent is added to the layer's next pseudo-gradient; 0 (default) */
  int32_t overlap_merge;               /* ENTRAIN_MERGE_*; with overlap_steps; default ADD */
  double overlap_mix;                  /* alpha in [0, 1) of ENTRAIN_MERGE_MIX; default 0.5 */
  int32_t staleness_penalty;           /* 1: what arrives is divided by 1 + how far the layer's anchor has moved since, in outer
                                          steps of its mean length; with overlap_steps and outer sgd. Or 0 (default) */
  int32_t fragments;                   /* P >= 1, default 1: parts of the model that are exchanged each at steps of its own:
                                          fragment p at W_s + (p + 1) H / P + k H, k >= 0. Each has a layer that trains. EDiT
                                          only; a requested exchange is of all layers */
  double outer_momentum_clip;          /* > 0: largest norm of a module's b, after mu b + g; outer sgd, not nesterov; 0: off */
  const int32_t* fragment_of_layer;    /* by layer, 0 to P - 1; NULL (default): by fragment_pattern. Copied, like the next two */
  const int64_t* fragment_intervals;   /* P numbers >= 1 of steps, in place of H; NULL (default): H for all */
  const int64_t* fragment_offsets;     /* P numbers >= 0: the first step after W_s at which a fragment is exchanged, but never
                                          W_s itself; NULL (default): evenly over the interval */
  int32_t fragment_pattern;            /* ENTRAIN_FRAGMENT_*; default SEQUENTIAL */
  int32_t sparsify_chunk;              /* magnitude: elements of each chunk of a shard, of which `density` is kept, and at least
                                          one; a multiple of 64; 0 (default): the whole shard. The part of the shard that a rank of
                                          the sync group reduces begins a chunk */
  double error_decay;                  /* beta in (0, 1], default 1: with error_feedback, what was not sent is multiplied by beta
                                          before the layer's next pseudo-gradient is added (SparseLoCo, arXiv 2508.15706) */
} entrain_edit_config_t;
ENTRAIN_API void entrain_edit_config_init_sized(entrain_edit_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_config_init(entrain_edit_config_t* config) {
  entrain_edit_config_init_sized(config, sizeof(*config));
}

/* The fields of entrain_edit_config_t that are one number each, for programs that make flags, forms or bindings of them. Those of
 * entrain_acco_config_t are described likewise: entrain_acco_option. */
enum { /* entrain_edit_option_t.type: the type of the field */
  ENTRAIN_OPTION_SWITCH = 0, /* int32_t, 0 or 1 */
  ENTRAIN_OPTION_CHOICE = 1, /* int32_t, the place of a name in `choices`, from 0 */
  ENTRAIN_OPTION_I32 = 2,
  ENTRAIN_OPTION_I64 = 3,
  ENTRAIN_OPTION_U64 = 4,
  ENTRAIN_OPTION_F64 = 5
};
typedef struct entrain_edit_option_t {
  size_t size;
  const char* name;       /* of the field. All texts are constants of the library */
  const char* choices;    /* of CHOICE: the names, separated by commas; else NULL */
  const char* help;       /* one line */
  size_t offset;          /* of the field in entrain_edit_config_t, in bytes; from entrain_acco_option: in entrain_acco_config_t */
  double default_value;   /* as entrain_edit_config_init, or entrain_acco_config_init, sets it */
  double least, most;     /* limits of the value; infinity: none */
  int32_t type;           /* ENTRAIN_OPTION_* */
  int32_t open;           /* which limits are themselves excluded: 1 least, 2 most, or-ed */
} entrain_edit_option_t;
ENTRAIN_API void entrain_edit_option_init_sized(entrain_edit_option_t* option, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_option_init(entrain_edit_option_t* option) {
  entrain_edit_option_init_sized(option, sizeof(*option));
}
/* The number of these options; they are numbered from 0. Needs no object; any thread. */
ENTRAIN_API int32_t entrain_edit_option_count(void);
/* Writes option `index` to *option. INVALID_ARGUMENT if there is no such option. Needs no object; any thread. */
ENTRAIN_API entrain_status_t entrain_edit_option(int32_t index, entrain_edit_option_t* option);
/* *matters: 1 if, with the other values of `config`, a value of option `index` other than its default can have an effect; 0 if
 * entrain_edit_create would refuse one because it has none. Rules that involve the arrays of `config` are not consulted, and
 * config->shard may be NULL. INVALID_ARGUMENT for an option or a value out of range. Needs no object; any thread. */
ENTRAIN_API entrain_status_t entrain_edit_option_matters(const entrain_edit_config_t* config, int32_t index,
                                                         int32_t* matters);

/* Collective. Options are checked here; combinations without effect (clip or norm weights without outer optimizer or
 * reducer, a temperature without norm weights, outer_* values other than the defaults without outer optimizer) are
 * refused with a sentence that says what to set. */
ENTRAIN_API entrain_status_t entrain_edit_create(entrain_mesh_t* mesh, const entrain_edit_config_t* config,
                                                 entrain_edit_t** edit);
/* Ends an exchange under way, on all ranks. An outer step that runs is waited for, but for 1 s at most: one that does not
 * return, for a lock that the caller of destroy holds, is left to a thread of the library's, with a warning in the log. Until
 * it returns, outer_user must stay valid; the arrays that the step was given are the library's, and stay so. */
ENTRAIN_API void entrain_edit_destroy(entrain_edit_t* edit);
/* On device memory the stream of exchanges, where a step of the caller's own enqueues what it does;
 * else NULL. Lent until the object is destroyed. */
ENTRAIN_API entrain_status_t entrain_edit_stream(const entrain_edit_t* edit, void** stream);

/* The calls of a step, in their order, for each rank of the mesh. "Exchange only" is EDiT beside somebody else's sharding
 * (FSDP, ZeRO, DDP, or none): of the whole table it needs only the lines marked x. The library then neither gathers nor
 * reduces: the caller says what it binds (entrain_shard_bind_layers, grads NULL), and that its gradients are reduced by
 * ending the step: averaged over shard and context group when entrain_edit_gradient_scope says LOCAL, over the sync group
 * too when it says GLOBAL. Nobody checks that; when replicas were to have averaged and did not, their anchors differ, which
 * the first exchange after warm-up reports. Both ways give the same bits for the same gradients.
 *
 *   | call of one step               | collective over      | between            | forgotten                              |
 * x | edit_begin_forward             | all, with training 1 | end_step and the   | end_step is FAILED_PRECONDITION        |
 *   |                                |                      | first layer's use  |                                        |
 *   | shard_begin_pass               | shard group          | passes             | layers are prefetched the wrong way    |
 * x | edit_wait_layer, each layer    | nobody; others' wait | begin_forward and  | end_step is FAILED_PRECONDITION,       |
 *   |                                | in it ends           | the layer's use    | naming the layer; others time out      |
 *   | shard_gather, shard_wait (do   | shard group          | begin_forward and  | no parameters                          |
 *   | what wait_layer does)          |                      | the layer's use    |                                        |
 *   | shard_release                  | nobody               | use and the next   | the next exchange is                   |
 *   |                                |                      | begin_forward      | FAILED_PRECONDITION, naming the layer  |
 *   | shard_gradients,               | shard and context    | backward passes    | end_step is FAILED_PRECONDITION,       |
 *   | shard_reduce_gradients         | group; GLOBAL: and   |                    | naming layers, if any other layer was  |
 *   |                                | sync group           |                    | handed out in this step                |
 *   | shard_finish_gradients         | nobody               | the last reduction | likewise                               |
 *   |                                |                      | and the optimizer  |                                        |
 * x | the caller's optimizer         |                      | and end_step       |                                        |
 * x | edit_end_step                  | nobody               | the optimizer and  | the step counts for nothing: exchanges |
 *   |                                |                      | begin_forward      | come late, on this rank alone          |
 *
 * Parameters that are bound may be written by the caller from a layer's wait to the next begin_forward that exchanges it (or,
 * with overlap_steps, at any time but inside calls), and read at any time but between begin_forward and the layer's wait. */

/* On device memory the host waits in begin_forward with use_async for the rendezvous, and for a
 * merge that is due; in leave, save and load; in layer_report and layer_score for the exchange.
 * Anchors, outer state and what an exchange needs are allocated by create, and stay until
 * destroy. entrain_edit_info tells of exchanges that are over, which the host may not know of at
 * once. */

/* Before each forward pass. When training is 1, first_microbatch is 1 and the trigger says so, starts the exchange, first
 * layer first, and sets *syncing to 1; returns without waiting for it (with use_async: waits for the other replicas, see
 * above). Exchanges at steps W_s + k H; the one at W_s only creates the anchors (no traffic). Never twice at the same
 * step. Switches the shard's gradients from global to local when warm-up ends. With overlap_steps the layers do not wait, and a
 * later call merges what has come: with EDiT it waits for it at its step. */
ENTRAIN_API entrain_status_t entrain_edit_begin_forward(entrain_edit_t* edit, int32_t training,
                                                        int32_t first_microbatch, int32_t* syncing);
/* The same as a started call, for where it may wait: use_async, and overlap_steps. `syncing` is lent until the work is over, and
 * written if it ends well. */
ENTRAIN_API entrain_status_t entrain_edit_begin_forward_start(entrain_edit_t* edit, int32_t training,
                                                              int32_t first_microbatch, int32_t* syncing,
                                                              entrain_work_t** work);
/* Before the layer is gathered: waits until its exchange is done; afterwards its live parameters are the anchor's, on
 * all replicas the same bits. Returns at once when nothing is under way for it. entrain_shard_wait does the same for
 * layers that it gathers ahead. */
ENTRAIN_API entrain_status_t entrain_edit_wait_layer(entrain_edit_t* edit, int32_t layer);
/* Lets the layer be exchanged, as entrain_edit_wait_layer does before it waits. *work is over when that would not block (on device
 * memory, where it never does, when the exchange is over), with the status that it would return. */
ENTRAIN_API entrain_status_t entrain_edit_layer_work(entrain_edit_t* edit, int32_t layer, entrain_work_t** work);
/* After the inner optimizer's step: counts it. FAILED_PRECONDITION naming both numbers unless begin_forward was called
 * with training 1 exactly gradient_accumulation_steps times for this step (a first_microbatch of 1 begins the count
 * anew), and while nobody has waited for a layer under exchange; and, naming layers, where entrain_shard_gradients was called
 * in this step, for whatever layer, unless the gradients of every layer that trains have been reduced since they were last
 * handed out, and entrain_shard_finish_gradients was called after that. A layer that had no part in the step is reduced
 * all the same, as zeros. */
ENTRAIN_API entrain_status_t entrain_edit_end_step(entrain_edit_t* edit);
/* *scope: ENTRAIN_GRADIENTS_*, over whom the gradients are to be averaged of the step that the last begin_forward with
 * training 1 began: what the library's reduction does by itself, and what a caller does who reduces gradients itself.
 * Local; at any time. */
ENTRAIN_API entrain_status_t entrain_edit_gradient_scope(const entrain_edit_t* edit, int32_t* scope);
/* The next begin_forward with training 1 exchanges whatever the trigger says (not in warm-up; not twice at one step); with
 * overlap_steps it waits for what is under way, and the layers for the exchange: then theta = a everywhere.
 * Collective: for the end of training and for evaluation of the consensus. */
ENTRAIN_API entrain_status_t entrain_edit_request_sync(entrain_edit_t* edit);

/* What this rank has done since it last said so: tokens it has trained on (>= 0), and a metric, such as the loss, with its
 * weight (>= 0, finite; 0: no metric). Ranks of a replica are added up: where several work on the same tokens, one of
 * them says so. A replica whose ranks all gave 0 tokens, since each of its steps was skipped, has trained on none and has
 * no share by use_step_weight; only if no rank called this, or no replica gave any token, do steps count. Travels with the next rendezvous, so that metrics need no traffic of their own, which between
 * rendezvous would make the replicas wait for each other. Local. */
ENTRAIN_API entrain_status_t entrain_edit_record(entrain_edit_t* edit, int64_t tokens, double metric, double weight);

enum { /* entrain_edit_wish */
  ENTRAIN_WISH_CHECKPOINT = 1,
  ENTRAIN_WISH_STOP = 2
};
/* Shows wishes (ENTRAIN_WISH_*, or-ed) at the next rendezvous; all ranks then see in entrain_edit_info_t.wishes that
 * somebody has them, at the same rendezvous, and can act together. Local. */
ENTRAIN_API entrain_status_t entrain_edit_wish(entrain_edit_t* edit, int32_t wishes);
/* This replica has made its last step, others may go on: takes part in their rendezvous, with weight zero once its own
 * steps have been exchanged, and returns when all replicas have left. The live parameters are then the anchors, the same
 * everywhere. Collective over the replica; blocks, at most tau plus the time limit a rendezvous. No training after. */
ENTRAIN_API entrain_status_t entrain_edit_leave(entrain_edit_t* edit);
/* The same as a started call. */
ENTRAIN_API entrain_status_t entrain_edit_leave_start(entrain_edit_t* edit, entrain_work_t** work);

typedef struct entrain_edit_replica_t {
  size_t size;
  int64_t steps;        /* g */
  int64_t steps_since;  /* since the exchange before */
  int64_t tokens_since; /* likewise, as recorded */
  int32_t wishes;       /* ENTRAIN_WISH_* */
  int32_t leaving;      /* 1: it trains no more */
} entrain_edit_replica_t;
ENTRAIN_API void entrain_edit_replica_init_sized(entrain_edit_replica_t* replica, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_replica_init(entrain_edit_replica_t* replica) {
  entrain_edit_replica_init_sized(replica, sizeof(*replica));
}
/* What replica `replica` (0 to N - 1) said of itself at the last rendezvous. FAILED_PRECONDITION before the first. */
ENTRAIN_API entrain_status_t entrain_edit_replica(const entrain_edit_t* edit, int32_t replica,
                                                  entrain_edit_replica_t* out);

typedef struct entrain_edit_info_t {
  size_t size;
  int64_t steps;             /* g: optimizer steps counted */
  int64_t syncs;             /* exchanges done; creating the anchors is none */
  int64_t last_sync_step;    /* g at the last exchange or anchor creation; -1: none yet */
  uint64_t anchor_checksum;  /* of this rank's anchors after the last finished exchange; 0: no anchors. Equal on all
                                ranks of a sync group */
  uint64_t exposed_ns;       /* time that begin_forward and wait_layer kept the caller */
  uint64_t sync_ns;          /* time spent in exchanges, hidden or not */
  uint64_t bytes_sent_shard; /* payload this rank sent for exchanges, within its replica ... */
  uint64_t bytes_sent_sync;  /* ... and across replicas */
  int32_t in_warmup;
  int32_t wishes;            /* ENTRAIN_WISH_* of any replica at the last rendezvous */
  int64_t rendezvous;        /* how often the replicas have met, with or without an exchange */
  double metric;             /* mean over all replicas of what was recorded before the last one; NaN: nothing was */
  int64_t rejections;        /* layers of this replica that were rejected, over all exchanges */
  int64_t rollbacks;         /* layers for which everybody was: back to the anchor, which stayed where it was */
} entrain_edit_info_t;
ENTRAIN_API void entrain_edit_info_init_sized(entrain_edit_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_edit_info_init(entrain_edit_info_t* info) {
  entrain_edit_info_init_sized(info, sizeof(*info));
}
/* The state as of the last finished exchange. */
ENTRAIN_API entrain_status_t entrain_edit_info(const entrain_edit_t* edit, entrain_edit_info_t* info);

/* Copies this rank's anchors, to where the parameters are: slab_count elements, laid out as the slab,
 * converted to `dtype` (f32, f64, bf16 or f16;
 * others: UNIMPLEMENTED); where a layer is frozen, its live parameters. FAILED_PRECONDITION before they exist or while an exchange is under
 * way. */
ENTRAIN_API entrain_status_t entrain_edit_anchor(const entrain_edit_t* edit, void* anchor, entrain_dtype_t dtype);

/* What the last exchange decided for a layer (not a frozen or empty one): norms and weights by replica (N elements each),
 * and the one factor that clipped what came of them. Each may be NULL. */
ENTRAIN_API entrain_status_t entrain_edit_layer_report(const entrain_edit_t* edit, int32_t layer, double* norms,
                                                       double* weights, double* clip_factor);
/* How this replica's detector (skip_anomaly) saw the layer's norm at the last exchange: the z-score, and the limit above
 * which it is an outlier; 0 and 0 while it warms up, infinity for a norm that is not finite. Each may be NULL. */
ENTRAIN_API entrain_status_t entrain_edit_layer_score(const entrain_edit_t* edit, int32_t layer, double* z, double* limit);

/* ---- Checkpoints of EDiT -------------------------------------------------------------------------------------- */

enum { /* entrain_checkpoint_config_t.kind */
  ENTRAIN_CHECKPOINT_PORTABLE = 0, /* steps, anchors (where there are none: parameters), outer state, and replica 0's
                                      detectors: any number of replicas and of ranks in each can go on from it, with a
                                      new inner optimizer */
  ENTRAIN_CHECKPOINT_EXACT = 1     /* also what each rank has of its own: live parameters, its counts, its arrays. On the
                                      same mesh the run goes on with the same bits. Can be loaded as portable too */
};
enum {                     /* whose an array is; the caller's arrays are one of the first two */
  ENTRAIN_STATE_ALL = 0,   /* the same on all ranks: one is kept; in both kinds */
  ENTRAIN_STATE_RANK = 1,  /* each rank's own; only in the exact kind */
  ENTRAIN_STATE_REPLICA = 2, /* the same on all ranks of a replica; the portable kind has replica 0's, for all */
  ENTRAIN_STATE_LAYER = 3  /* a layer, spread over the ranks of a replica, and the same in all replicas */
};
/* Makes `count` elements at `data` part of the state: saved from there, loaded to there. For the inner optimizer, data
 * cursors, random numbers. All ranks name the same arrays; `name`: 1 to 121 letters, digits and ". _ - /", each once.
 * Lent until the EDiT object is destroyed. Host memory; where the object's own arrays are on a
 * device, that device's as well: the driver is asked when it is saved or loaded (INVALID_ARGUMENT
 * for another device's). The bytes in a checkpoint are the same. Local. */
ENTRAIN_API entrain_status_t entrain_edit_add_state(entrain_edit_t* edit, const char* name, void* data, size_t count,
                                                    entrain_dtype_t dtype, int32_t holder);

typedef struct entrain_checkpoint_config {
  size_t size;
  const char* save_dir;    /* directory; NULL: "local_sgd_ckpt". Saving creates it, but not what it lies in */
  const char* ckpt_name;   /* the checkpoint is save_dir/ckpt_name.ckpt; NULL: "local_sgd_ckpt". Letters, digits, ". _ -" */
  int32_t kind;            /* ENTRAIN_CHECKPOINT_*; default portable. What is saved, or what of it is loaded */
  int32_t full_state_dict; /* saving: 1 (default): one file, written by rank 0, layers whole; 0: each rank that holds
                              something writes a file of its own, which ckpt_name.ckpt refers to. Loading finds out */
  int32_t rank0_only;      /* loading: 1 (default): rank 0 reads and sends, nobody else needs the files; 0: each rank reads
                              what it needs. Saving: no effect, since no rank gathers a copy of the whole */
  int32_t cpu_offload;     /* accepted, without effect: what is gathered is in host memory */
  int64_t timeout_ns;      /* of the whole call; 0: the communicators' default */
} entrain_checkpoint_config_t;
ENTRAIN_API void entrain_checkpoint_config_init_sized(entrain_checkpoint_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_checkpoint_config_init(entrain_checkpoint_config_t* config) {
  entrain_checkpoint_config_init_sized(config, sizeof(*config));
}

/* Saves the state; changes nothing of it, and makes no exchange. Collective; blocks; a NULL config is all defaults. Legal
 * between an exchange (or the making of the anchors) and the first reduction of gradients after it: after a begin_forward
 * that exchanges, when all layers have been waited for; for the exact kind with use_async also after a rendezvous
 * without an exchange. With overlap_steps the exact kind of EDiT waits for what runs behind and saves it too, to be merged
 * at its step; the portable kind, and A-EDiT, need an exchange that layers waited for (entrain_edit_request_sync). Else
 * FAILED_PRECONDITION. ENTRAIN_WISH_CHECKPOINT is how one rank asks all for it; a replica in entrain_edit_leave
 * (entrain_edit_replica_t.leaving) cannot take part: save before or after.
 * All ranks succeed, or all have the error of one of them, which names rank and path. The file, or all of them together,
 * takes effect in one step when everything is on the disk; until then, and on an error, a checkpoint of that name is
 * what it was. Files that killed processes left in save_dir while they saved are removed: by a save those from before it
 * began, by a load those from before the checkpoint that it loaded. */
ENTRAIN_API entrain_status_t entrain_edit_save(entrain_edit_t* edit, const entrain_checkpoint_config_t* config);
/* Goes on from a checkpoint: at its step, right after its exchange, with begin_forward (which does not exchange again) as
 * the next call. Collective; blocks. Nothing may be under way and no layer gathered. Everything is read and every byte
 * checked before anything changes; a file that is damaged, cut off, of a newer format or not a checkpoint is refused
 * (INVALID_ARGUMENT), and so is one of another model, other options, or for the exact kind another mesh
 * (FAILED_PRECONDITION), on all ranks alike, and the run is as it was. Loading as portable drops, without an error, what belongs
 * to single replicas or ranks and has no place in this run: detectors where skip_anomaly is 0 (the log, level info, names them). */
ENTRAIN_API entrain_status_t entrain_edit_load(entrain_edit_t* edit, const entrain_checkpoint_config_t* config);
/* Both as started calls. A save that is ended by destroy leaves a checkpoint of that name as it was. */
ENTRAIN_API entrain_status_t entrain_edit_save_start(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_edit_load_start(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);

/* A checkpoint in the hands of functions of the caller's, in place of save_dir/ckpt_name.ckpt: an object store, memory, another
 * library's format. The bytes are those of the file. Each function returns 0; any other number fails the call on all
 * ranks: FAILED_PRECONDITION "rank 0: ...: write_at returned 5 at byte 128". Called by the thread, and on the ranks, that
 * the call's description names, one at a time; the memory is lent for the call. In them calls that need the engine are
 * FAILED_PRECONDITION naming the function, as in other callbacks; the other ranks wait meanwhile, so that the functions' time
 * counts against timeout_ns. A checkpoint holds what a program trusts: what is read is checked like a file's bytes. */
typedef int32_t (*entrain_checkpoint_write_fn)(void* user, int64_t offset, const void* data, size_t bytes);
typedef int32_t (*entrain_checkpoint_finish_fn)(void* user);
typedef int32_t (*entrain_checkpoint_read_fn)(void* user, int64_t offset, void* data, size_t bytes);
typedef struct entrain_checkpoint_functions {
  size_t size;
  void* user;                            /* first argument of all; the caller's */
  entrain_checkpoint_write_fn write_at;  /* saving: every byte once, first those from byte 128 on in ascending order without a gap,
                                            then bytes 0 to 127 in one call. Calls follow each other without end if bytes
                                            are few: buffer them if one costs much */
  entrain_checkpoint_finish_fn finish;   /* saving: everything was written, and all ranks have brought what they have. The
                                            checkpoint counts when this returns 0. Not called if the save fails before */
  entrain_checkpoint_read_fn read_at;    /* loading: all of the bytes [offset, offset + bytes) */
  int64_t bytes;                         /* loading: length of the checkpoint, >= 0 */
} entrain_checkpoint_functions_t;
ENTRAIN_API void entrain_checkpoint_functions_init_sized(entrain_checkpoint_functions_t* functions, size_t bytes);
static ENTRAIN_INLINE void entrain_checkpoint_functions_init(entrain_checkpoint_functions_t* functions) {
  entrain_checkpoint_functions_init_sized(functions, sizeof(*functions));
}
/* entrain_edit_save and entrain_edit_load through functions, in the calling thread: of rank 0, and in load_from with
 * rank0_only 0 of every rank, each of which reads what it needs of the same bytes. `functions` of the others may be NULL or
 * lack what is not called: INVALID_ARGUMENT, on all ranks, names what lacks on a rank that needs it. config.save_dir and
 * ckpt_name must be NULL, and to save full_state_dict must be 1 (INVALID_ARGUMENT); a checkpoint of several files cannot be
 * loaded so (FAILED_PRECONDITION). Either all ranks make these calls or none. Otherwise all is as there. */
ENTRAIN_API entrain_status_t entrain_edit_save_to(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                  const entrain_checkpoint_functions_t* functions);
ENTRAIN_API entrain_status_t entrain_edit_load_from(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                    const entrain_checkpoint_functions_t* functions);
/* Both as started calls: a thread of the library's calls the functions. */
ENTRAIN_API entrain_status_t entrain_edit_save_to_start(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                                        const entrain_checkpoint_functions_t* functions,
                                                        entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_edit_load_from_start(entrain_edit_t* edit,
                                                          const entrain_checkpoint_config_t* config,
                                                          const entrain_checkpoint_functions_t* functions,
                                                          entrain_work_t** work);

/* ---- The state, array by array --------------------------------------------------------------------------------
 *
 * These functions read and write what a checkpoint holds, for torch.distributed.checkpoint and other formats. Each rank
 * sees the arrays that it has a part of: anchors ("anchor", by layer), outer state ("outer/0", ...), detectors
 * ("detector/LAYER/mean", ...), counts ("steps", ...), in the exact kind live parameters ("live/LAYER") and so on; of ACCO
 * masters ("master" of layer 0) and moments ("optim/0", ...); the caller's own as "caller/NAME". Names, kinds and meanings
 * are those of the checkpoint's manifest and stay with its format's version.
 *
 *     entrain_edit_open_state(edit, ENTRAIN_CHECKPOINT_PORTABLE, &state);
 *     for (index = 0; index < count; ++index) {              read:  entrain_state_get, into the caller's format
 *       entrain_state_info(state, index, &info);             write: entrain_state_set, from there; all of it,
 *     }                                                             and then entrain_state_commit, on all ranks
 *     entrain_state_destroy(state);
 *
 * Functions of one state, and of its object meanwhile: one thread at a time. */

/* Opens the state as it is now, or for setting. `kind`: ENTRAIN_CHECKPOINT_*. Not collective; waits for what runs behind
 * further steps. FAILED_PRECONDITION while an exchange is under way or gradients have been reduced. A run that has not
 * exchanged yet can be opened, in order to be set. The arrays are those that this run's options ask for. The state takes
 * no memory for them until they are set. */
ENTRAIN_API entrain_status_t entrain_edit_open_state(entrain_edit_t* edit, int32_t kind, entrain_state_t** state);
/* The same as a started call. `state` is lent until the work is over, and written if it ends well. */
ENTRAIN_API entrain_status_t entrain_edit_open_state_start(entrain_edit_t* edit, int32_t kind, entrain_state_t** state,
                                                           entrain_work_t** work);
/* Frees it; what was set and not committed has no effect. It may be destroyed before and after its object, but used before
 * alone (FAILED_PRECONDITION). A commit under way goes on; destroying the object ends it. */
ENTRAIN_API void entrain_state_destroy(entrain_state_t* state);

/* An array that this rank has alike with others or alone, or a piece of a layer. The pieces of a layer (several on a rank
 * where layers are made of segments) are entries of their own and follow each other. The pieces of all ranks of a replica make
 * the whole, without a gap and without padding; so a rank may have a piece of no elements. `name`, `part`, `layer` and `rank`
 * together are unique over all ranks, but for copies. */
typedef struct entrain_state_info_t {
  size_t size;
  const char* name;      /* lent until the state is destroyed */
  size_t whole_count;    /* elements of the whole layer; else the same as count */
  size_t first;          /* where this rank's piece begins in it; else 0 */
  size_t count;          /* elements that get and set move */
  entrain_dtype_t dtype;
  int32_t holder;        /* ENTRAIN_STATE_* */
  int32_t layer;         /* -1: of no layer */
  int32_t part;          /* of a layer: which part of the model, the tensor coordinate + tensor length x the pipeline
                            coordinate; else -1 */
  int32_t rank;          /* REPLICA: its first rank, or 0 in the portable kind; RANK: this rank; else -1. Ranks are replica x
                            ranks of a replica + rank among these */
  int32_t saves;         /* 1: of the ranks that have it alike, a checkpoint takes it from this one. In the portable kind what is
                            a REPLICA's counts only from there */
} entrain_state_info_t;
ENTRAIN_API void entrain_state_info_init_sized(entrain_state_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_state_info_init(entrain_state_info_t* info) {
  entrain_state_info_init_sized(info, sizeof(*info));
}
/* How many entries there are on this rank. */
ENTRAIN_API entrain_status_t entrain_state_count(const entrain_state_t* state, size_t* count);
ENTRAIN_API entrain_status_t entrain_state_info(const entrain_state_t* state, size_t index, entrain_state_info_t* info);
/* *index: the entry of that name and layer (-1: of no layer), of several pieces the first. INVALID_ARGUMENT names both if there
 * is none. */
ENTRAIN_API entrain_status_t entrain_state_find(const entrain_state_t* state, const char* name, int32_t layer,
                                                size_t* index);
/* Copies an entry to `data`, in host memory: its count elements of its dtype, both given to be compared (INVALID_ARGUMENT).
 * Local. FAILED_PRECONDITION where a checkpoint could not be saved (entrain_edit_save; of ACCO, micro-batches have been
 * added), and when the run has gone on since the state was opened. On device memory waits for the stream. */
ENTRAIN_API entrain_status_t entrain_state_get(const entrain_state_t* state, size_t index, void* data, size_t count,
                                               entrain_dtype_t dtype);
/* Keeps a copy of `data` (host memory) as what the entry is to become; the run does not change. Local; again: the last counts. */
ENTRAIN_API entrain_status_t entrain_state_set(entrain_state_t* state, size_t index, const void* data, size_t count,
                                               entrain_dtype_t dtype);
/* Goes on from what was set, as entrain_edit_load and entrain_acco_load do from a checkpoint of that kind. Collective over the
 * object's ranks; blocks, at most timeout_ns (0: the communicators' default). All or nothing, on all ranks: FAILED_PRECONDITION
 * names the rank and the entries if one that has elements was not set, and refuses what a load refuses;
 * INVALID_ARGUMENT names an array that ranks have alike and that was set to values that differ. What was set is still set
 * then. Once: a second commit is FAILED_PRECONDITION. */
ENTRAIN_API entrain_status_t entrain_state_commit(entrain_state_t* state, int64_t timeout_ns);
/* The same as a started call of the object. */
ENTRAIN_API entrain_status_t entrain_state_commit_start(entrain_state_t* state, int64_t timeout_ns,
                                                        entrain_work_t** work);

/* ---- ACCO: gradients cross the network behind the computation ------------------------------------------------------
 *
 * A channel takes gradients and gives parameters a round later (ACCO, arXiv 2406.02613). The optimizer's state and the f32
 * masters are sharded over the ranks (ZeRO-1). The caller adds the gradients of micro-batches, sums and not means, to the
 * channel's accumulator, at the parameters that are installed; when the round under way is over (poll), install takes its
 * parameters and sends off what has been added:
 *
 *     for (;;) {
 *       ... forward and backward of a micro-batch; gradients += ...
 *       entrain_acco_add(acco, 1, tokens);
 *       entrain_acco_poll(acco, &ready);
 *       if (ready) { entrain_acco_install(acco, &finished); if (finished) break; }
 *     }
 *
 * Ranks do as many micro-batches as fit; each weighs the same, wherever it was made. A rank may add while others are
 * slower: only install waits for them. Functions of one channel: one thread at a time. Errors of the network end the
 * channel on all ranks, and every later call has the first.
 *
 * On device memory (config.memory) calls are ordered with config.stream: the device does what a
 * call asks for after what is on the stream, and what is enqueued there afterwards sees it done.
 * "Added" means that the additions are enqueued. The host waits for the device and other ranks
 *
 *     in install    until the round before the one under way is over, and all ranks have handed
 *                   over what the one under way sums: that is what its counts need. With clip_norm,
 *                   and with agd, whose steps count, also for the sum. Not for the parameters: the
 *                   stream does; but in the install that ends the run for all of its last round
 *     in create, save, load and destroy
 *
 * and nowhere else. After an error that comes when install has returned (a rank dies while
 * parameters are gathered) the stream goes on, with whatever is in params; the next install has
 * the error. A host that runs far ahead of its device adds more to a round than the device will have
 * time for: max_microbatches bounds it. */

enum { /* entrain_acco_config_t.method; L = padded parameters; each round sends 2 (W-1)/W L elements a rank */
  ENTRAIN_ACCO = 0,      /* half A of a batch at an estimate of the parameters, half B at the parameters; A alone makes the next
                            estimate (a preview of the optimizer, nothing of it kept), A and B the next parameters. Two rounds a commit */
  ENTRAIN_ACCO_DPU = 1,  /* delayed parameter update: each round commits, with the gradients of one round before */
  ENTRAIN_ACCO_WP = 2,   /* weight prediction: as DPU; but the next gradients are computed where the same step once more would
                            lead (a reconstruction: there is no published code) */
  ENTRAIN_ACCO_ZERO1 = 3 /* synchronous: install waits for the round that it starts */
};
enum { /* units of the schedule and of the limit: what has been committed, of all ranks together */
  ENTRAIN_UNIT_COMMITS = 0,
  ENTRAIN_UNIT_GRADIENTS = 1, /* micro-batches */
  ENTRAIN_UNIT_TOKENS = 2     /* as given to entrain_acco_add */
};

/* One step of an optimizer of the caller's on elements [first, first + count) of this rank's shard, in the channel's
 * thread, piece by piece. In it and in the schedule calls that need the
 * engine are FAILED_PRECONDITION naming it; queries and optimizers are allowed. `grads`: the mean gradient, clipped; `master`: the parameters; both f32, or f64 if
 * params_dtype is. preview 0: a commit: `master` becomes the new parameters, `out` is NULL. 1: `out` becomes what a commit would make
 * of `master`; master and the optimizer's own state must stay as they are.
 * `step` counts commits from 1. On device memory all three are addresses of the device, and what
 * the step does is enqueued on entrain_acco_stream. Returns 0. Any other number ends the channel on all ranks: ABORTED,
 * "the ACCO step of commit 7 returned 5", on other ranks with the rank. No further piece is stepped, and `params` stay as the last install
 * left them; `master` is what the step has left of it. */
typedef int32_t (*entrain_acco_step_fn)(void* user, int32_t preview, int64_t step, double lr, size_t first, size_t count,
                                        const void* grads, void* master, void* out);
/* The learning rate when so much has been committed (schedule_unit); the same on all ranks. In the channel's thread. One
 * that is negative or not finite ends the channel on all ranks: ABORTED with the rate. */
typedef double (*entrain_acco_schedule_fn)(void* user, int64_t progress);

/* Elements [first, first + count) of the parameters with an optimizer and a factor of the learning rate, so that norms and
 * biases, say, go without decay. Elements of an array, so without a size: these four fields stay as they are. */
typedef struct entrain_acco_group {
  size_t first, count;          /* count >= 1 */
  const entrain_optim_t* optim; /* shared, as the config's; NULL: the config's */
  double lr_scale;              /* > 0: the schedule's rate is multiplied by it */
} entrain_acco_group_t;

typedef struct entrain_acco_config {
  size_t size;
  void* params;                  /* `count` elements of params_dtype; lent until the channel is destroyed. Install writes them;
                                    rank 0's are the starting ones of all */
  size_t count;                  /* Psi >= 1 */
  int32_t params_dtype;          /* ENTRAIN_F32 (default), ENTRAIN_BF16; ENTRAIN_F64 with a step of the caller's own */
  int32_t grads_dtype;           /* of the accumulator: params_dtype or ENTRAIN_F32; -1 (default): params_dtype */
  int32_t wire_dtype;            /* of gradients on their way: ENTRAIN_F32 or ENTRAIN_BF16 (F64 with F64); -1 (default): params_dtype */
  int32_t method;                /* ENTRAIN_ACCO*; default ENTRAIN_ACCO */
  const entrain_optim_t* optim;  /* shared: may be destroyed before the channel, which keeps its state arrays, and says
                                    where it steps: the memory and stream it was made for are not asked; or */
  entrain_acco_step_fn step;     /* of the caller's own; one of them */
  void* user;                    /* its first argument */
  int64_t min_microbatches;      /* >= 1 of this rank in a round; default 1 */
  int64_t max_microbatches;      /* >= min, then install must follow, and waits; 0 (default): no limit */
  const int32_t* scripted_counts; /* for tests: exactly so many in each round, so that a run is repeated bit for bit; or NULL. Copied */
  size_t scripted_rounds;        /* how many of them; the run cannot be longer */
  int64_t warmup_rounds;         /* synchronous rounds at the start; default 0 */
  double clip_norm;              /* > 0: largest norm of a round's mean gradient (one more scalar a round); 0 (default): off */
  double lr;                     /* default 1e-3 */
  double min_lr;                 /* where the cosine ends; default 0 */
  int64_t schedule_warmup;       /* linear from 0 to lr up to here; default 0 */
  int64_t schedule_total;        /* then half a cosine down to min_lr, here; 0 (default): constant */
  int32_t schedule_unit;         /* ENTRAIN_UNIT_*: of both, and of what schedule is called with; default COMMITS */
  int32_t limit_unit;            /* ENTRAIN_UNIT_*: of limit; default COMMITS */
  entrain_acco_schedule_fn schedule; /* instead of lr, min_lr and both numbers; or NULL */
  void* schedule_user;           /* its first argument */
  int64_t limit;                 /* the run ends at the first commit that reaches it; 0 (default): at entrain_acco_stop */
  int64_t timeout_ns;            /* of each collective, DEVICE: with its wait for the stream; 0: the
                                    communicator's default */
  int32_t memory;                /* ENTRAIN_MEMORY_HOST (default) or DEVICE: where params are, the
                                    accumulator, all that the channel keeps, and what a step of the
                                    caller's own gets; the same on all ranks */
  int32_t reserved;              /* 0 */
  void* stream;                  /* a CUstream; NULL (default): the device's default. HOST: NULL.
                                    entrain_acco_set_stream changes it */
  const entrain_acco_group_t* groups; /* disjoint, ascending; what lies in none is stepped by optim with the rate as it is,
                                         and if optim is NULL every element lies in one. Not with a step of the caller's
                                         own. Copied. NULL (default): none */
  size_t group_count;            /* how many of them. Each state array is as long as the shard, and there are as many as the
                                    optimizer that has most needs */
} entrain_acco_config_t;
ENTRAIN_API void entrain_acco_config_init_sized(entrain_acco_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_acco_config_init(entrain_acco_config_t* config) {
  entrain_acco_config_init_sized(config, sizeof(*config));
}

/* The fields of entrain_acco_config_t that are one number each, as entrain_edit_option_count, entrain_edit_option and
 * entrain_edit_option_matters have those of EDiT. Not among them: params_dtype, grads_dtype, wire_dtype and memory, which say where and
 * what arrays are. The arrays and functions of `config`, and optim, are not consulted and may be NULL. */
ENTRAIN_API int32_t entrain_acco_option_count(void);
ENTRAIN_API entrain_status_t entrain_acco_option(int32_t index, entrain_edit_option_t* option);
ENTRAIN_API entrain_status_t entrain_acco_option_matters(const entrain_acco_config_t* config, int32_t index,
                                                         int32_t* matters);

/* Collective over `comm`; blocks. All ranks give the same but params, the step, counts of
 * micro-batches, timeout_ns and stream. Memory beside params, in bytes, with bf16: 4 Psi (f32
 * accumulator: 6 Psi) + (4 + 4 x optimizer's arrays) Psi / W; with f32: 8 Psi + the same; and for
 * pieces up to 64 KiB, on a device 16 MiB. On a device the collectives of a round are made once for
 * nothing, so that later ones find all memory that they need. */
ENTRAIN_API entrain_status_t entrain_acco_create(entrain_comm_t* comm, const entrain_acco_config_t* config,
                                                 entrain_acco_t** acco);
/* Ends a round under way, on all ranks: destroy after the end, or all together (on device memory:
 * when the streams of all are through with their last install). A step or a schedule that runs is
 * waited for as entrain_edit_destroy says, for 1 s at most. NULL: nothing. */
ENTRAIN_API void entrain_acco_destroy(entrain_acco_t* acco);
/* On device memory the stream of rounds, where a step of the caller's own enqueues what it does;
 * else NULL. Lent until the channel is destroyed. */
ENTRAIN_API entrain_status_t entrain_acco_stream(const entrain_acco_t* acco, void** stream);
/* DEVICE: from now on calls of the channel are ordered with this stream instead of the one that was given before (config.stream,
 * or here); NULL: the device's default stream. What is enqueued on `stream` afterwards waits for what is on the stream before
 * now. Local; cheap enough for every micro-batch; the stream must live until another is set or the channel is destroyed, and
 * for open states of the channel until they are. HOST: FAILED_PRECONDITION. A stream that is not one of the channel's device:
 * INVALID_ARGUMENT. */
ENTRAIN_API entrain_status_t entrain_acco_set_stream(entrain_acco_t* acco, void* stream);
/* The accumulator: `count` elements of grads_dtype, zero at first. The caller adds to it, and nothing else; install clears
 * it when it must be. Lent until the channel is destroyed. */
ENTRAIN_API entrain_status_t entrain_acco_gradients(entrain_acco_t* acco, void** gradients);
/* The gradients of so many (>= 1) micro-batches, of `tokens` tokens (>= 0), have been added. Local. */
ENTRAIN_API entrain_status_t entrain_acco_add(entrain_acco_t* acco, int64_t microbatches, int64_t tokens);
/* *ready: 1 when the round under way is over and min_microbatches have been added: install would not wait for other ranks; or
 * when max_microbatches have. Never blocks. */
ENTRAIN_API entrain_status_t entrain_acco_poll(entrain_acco_t* acco, int32_t* ready);
/* Waits until install would not wait, at most timeout_ns (0: does not wait; < 0: as long as the round's own deadlines allow),
 * then IN_PROGRESS, and it may be called again: for signals, watchdogs and progress. Fails where install would, with the
 * same error. Where install waits for the round that it starts (zero1, warm-up), wait starts it; then nothing may be added, saved
 * or loaded before install (FAILED_PRECONDITION). Otherwise it changes nothing. */
ENTRAIN_API entrain_status_t entrain_acco_wait(entrain_acco_t* acco, int64_t timeout_ns);
/* A work that is over when install would not wait, with the round's status. The conditions of entrain_acco_wait hold, and it starts
 * the same round. */
ENTRAIN_API entrain_status_t entrain_acco_work(entrain_acco_t* acco, entrain_work_t** work);
/* Waits for the round under way, installs its parameters, starts the next round with what has been added. *finished: 1: the
 * run is over, on all ranks after the same commit; the parameters are that commit's, and what was added since is dropped. */
ENTRAIN_API entrain_status_t entrain_acco_install(entrain_acco_t* acco, int32_t* finished);
/* Ends the run at the first commit that knows; any rank may ask. Local. A checkpoint of the end goes on where it is loaded, up to the
 * limit that is set there. */
ENTRAIN_API entrain_status_t entrain_acco_stop(entrain_acco_t* acco);

/* As of the last install: after as many of them, all ranks read the same, but for dropped and what is below `finished`. */
typedef struct entrain_acco_info_t {
  size_t size;
  int64_t rounds;          /* installed */
  int64_t commits;         /* of all ranks, as the two below */
  int64_t gradients;       /* micro-batches committed */
  int64_t tokens;
  int64_t dropped;         /* micro-batches of this rank that came too late for the last commit */
  int64_t microbatches;    /* of all ranks, in the last of these rounds; a commit's are those of both its halves */
  double lr;               /* of that round */
  double grad_norm;        /* of its mean gradient, with clip_norm; else NaN */
  double clip_factor;      /* 1: not clipped */
  int32_t committed;       /* 1: it was a commit */
  int32_t finished;
  uint64_t exposed_ns;     /* waited in install, since creation */
  uint64_t round_ns;       /* spent by these rounds, behind the caller */
  uint64_t bytes_sent;     /* payload */
  int64_t bytes_held;      /* memory, beside params */
} entrain_acco_info_t;
ENTRAIN_API void entrain_acco_info_init_sized(entrain_acco_info_t* info, size_t bytes);
static ENTRAIN_INLINE void entrain_acco_info_init(entrain_acco_info_t* info) {
  entrain_acco_info_init_sized(info, sizeof(*info));
}
ENTRAIN_API entrain_status_t entrain_acco_info(const entrain_acco_t* acco, entrain_acco_info_t* info);

/* Checkpoints, as EDiT's: see entrain_edit_add_state, entrain_edit_save and entrain_edit_load for arguments and errors. Saving is for between
 * install and the next add; waits for the round under way, and changes nothing. Exact: the run goes on with the same bits (with scripted
 * counts), by the same method. Portable: with any number of ranks and any method, from the last commit; f32 masters only, and of an
 * optimizer of the caller's own what it adds as state. Groups must be those of the checkpoint, with as many state arrays each
 * (FAILED_PRECONDITION naming the group); their rates and other numbers, like lr, may be others. */
ENTRAIN_API entrain_status_t entrain_acco_add_state(entrain_acco_t* acco, const char* name, void* data, size_t count,
                                                    entrain_dtype_t dtype, int32_t holder);
ENTRAIN_API entrain_status_t entrain_acco_save(entrain_acco_t* acco, const entrain_checkpoint_config_t* config);
ENTRAIN_API entrain_status_t entrain_acco_load(entrain_acco_t* acco, const entrain_checkpoint_config_t* config);
ENTRAIN_API entrain_status_t entrain_acco_save_start(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_acco_load_start(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                                     entrain_work_t** work);
/* As entrain_edit_save_to, entrain_edit_load_from and entrain_edit_open_state; the channel is one replica and one layer. The state
 * may be opened where a checkpoint may be saved, and before the first add. */
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
