/* Shared vocabulary of the ABI: status codes, data types, reduction operators, memory kinds, opaque handles.
 *
 * C99, no dependencies beyond <stddef.h> and <stdint.h>. Enumerations cross the ABI as int32_t: their values are
 * fixed for ever and never reused. The conventions that hold for every call are at the top of entrain.h. */
#ifndef ENTRAIN_TYPES_H_
#define ENTRAIN_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "entrain supports POSIX systems only"
#endif
#if defined(__GNUC__) || defined(__clang__)
#define ENTRAIN_API __attribute__((visibility("default")))
#else
#define ENTRAIN_API
#endif

/* Of functions that a header defines: entrain_*_init. C89 has no other word for them. */
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L)
#define ENTRAIN_INLINE inline
#else
#define ENTRAIN_INLINE __inline__
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. Zero is success; positive values are not errors; negative values are errors, in ranges by
 * category: -1xx the caller, -2xx this process, -3xx another process, -4xx time, -5xx a deliberate end, -9xx a bug. */
typedef int32_t entrain_status_t;
enum {
  ENTRAIN_OK = 0,
  ENTRAIN_IN_PROGRESS = 1,           /* the work is not done yet; nothing has changed */
  ENTRAIN_INVALID_ARGUMENT = -101,   /* an argument is wrong; only this call is harmed */
  ENTRAIN_FAILED_PRECONDITION = -102, /* right arguments at the wrong time; only this call is harmed */
  ENTRAIN_UNIMPLEMENTED = -103,      /* this build cannot do that; only this call is harmed */
  ENTRAIN_RESOURCE_EXHAUSTED = -201, /* out of memory, descriptors or another local resource */
  ENTRAIN_PEER_LOST = -301,          /* a peer or a server is gone or cannot be reached; ends the communicators with it */
  ENTRAIN_MISMATCH = -302,           /* ranks called different things; ends the communicator */
  ENTRAIN_TIMED_OUT = -401,          /* a deadline passed; ends the communicator it ran on */
  ENTRAIN_ABORTED = -501,            /* somebody called abort; ends the communicator */
  ENTRAIN_INTERNAL = -901            /* a defect of this library */
};

/* Element types. Sizes: entrain_dtype_size(). Buffers are aligned to the size of an element; those of pairs to half of it.
 * 8-bit floats are those of the OCP specification: e4m3 has no infinity (largest 448; what rounds to more is NaN), e5m2
 * has (largest 57344). A pair is a value followed by the location where it was found, both of the same width and
 * without padding: struct { float value; int32_t location; } and so on, as MPI_FLOAT_INT is. */
typedef int32_t entrain_dtype_t;
enum {
  ENTRAIN_F32 = 0,
  ENTRAIN_F64 = 1,
  ENTRAIN_BF16 = 2,
  ENTRAIN_F16 = 3,
  ENTRAIN_F8_E4M3 = 4,
  ENTRAIN_F8_E5M2 = 5,
  ENTRAIN_I8 = 6,
  ENTRAIN_U8 = 7,
  ENTRAIN_I16 = 8,
  ENTRAIN_U16 = 9,
  ENTRAIN_I32 = 10,
  ENTRAIN_U32 = 11,
  ENTRAIN_I64 = 12,
  ENTRAIN_U64 = 13,
  ENTRAIN_F32_I32 = 14, /* { float, int32_t }: 8 bytes, aligned to 4 */
  ENTRAIN_F64_I64 = 15, /* { double, int64_t }: 16 bytes, aligned to 8 */
  ENTRAIN_I32_I32 = 16, /* { int32_t, int32_t }: 8 bytes, aligned to 4 */
  ENTRAIN_I64_I64 = 17  /* { int64_t, int64_t }: 16 bytes, aligned to 8 */
};

/* Reduction operators. Floats of 16 and 8 bits are combined in f32 and rounded to nearest even once per combination.
 * avg is the sum divided by the number of ranks (integers: truncated toward zero). Integer sums and products wrap.
 * min and max: a NaN in any contribution gives NaN. Bit operators take integers only. Logical operators take every type
 * but pairs: what is not zero is true, NaN too, and the result is 1 or 0 (a rank that is alone gets its contribution as it
 * is). minloc and maxloc take pairs, and only they do: the smallest (largest) value and its location; of equal values the
 * smaller location; a NaN wins over every number, and of several NaN the one with the smaller location. */
typedef int32_t entrain_op_t;
enum {
  ENTRAIN_SUM = 0,
  ENTRAIN_PROD = 1,
  ENTRAIN_MIN = 2,
  ENTRAIN_MAX = 3,
  ENTRAIN_AVG = 4,
  ENTRAIN_BAND = 5,
  ENTRAIN_BOR = 6,
  ENTRAIN_BXOR = 7,
  ENTRAIN_LAND = 8,
  ENTRAIN_LOR = 9,
  ENTRAIN_LXOR = 10,
  ENTRAIN_MINLOC = 11,
  ENTRAIN_MAXLOC = 12,
  ENTRAIN_REDUCTION = 100 /* the reduction is entrain_call_options_t.reduction */
};

/* Where a buffer lives. */
typedef int32_t entrain_memory_t;
enum {
  ENTRAIN_MEMORY_HOST = 0,
  ENTRAIN_MEMORY_DEVICE = 1,     /* of a CUDA device; UNIMPLEMENTED with the reason where there is none */
  ENTRAIN_MEMORY_HOST_PINNED = 2 /* the host's, page-locked by CUDA */
};

/* Opaque handles. Whoever created one destroys it; destroying NULL does nothing. */
typedef struct entrain_runtime entrain_runtime_t;     /* what a process has once: loop, listener, pools, identity */
typedef struct entrain_store entrain_store_t;         /* a rendezvous store */
typedef struct entrain_comm entrain_comm_t;           /* a communicator */
typedef struct entrain_work entrain_work_t;           /* one started call */
typedef struct entrain_reduction entrain_reduction_t; /* how contributions are combined */
typedef struct entrain_batch entrain_batch_t;         /* several calls started as one */
typedef struct entrain_mesh entrain_mesh_t;           /* shard groups × sync groups */
typedef struct entrain_shard entrain_shard_t;         /* a model cut into layers, each spread over a shard group */
typedef struct entrain_edit entrain_edit_t;           /* EDiT on a sharded model */
typedef struct entrain_acco entrain_acco_t;           /* gradients that cross the network behind the computation */
typedef struct entrain_state entrain_state_t;         /* the state of a training object, array by array */
typedef struct entrain_optim entrain_optim_t;         /* an optimizer over flat arrays */
typedef struct entrain_wsam entrain_wsam_t;           /* WSAM around an optimizer */

/* A peer's identity: stays the same for the life of its process, whatever its rank is in a communicator. */
typedef struct entrain_peer_id {
  uint8_t bytes[16];
} entrain_peer_id_t;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_TYPES_H_ */
