/* Types shared by all headers: status codes, data types, reduction operators, memory kinds and opaque handles.
 *
 * The headers are C99 and include only <stddef.h> and <stdint.h>. Enumerations are passed and stored as int32_t. The
 * value of an enumerator never changes and is never used again for another one. The conventions for all calls are at
 * the top of entrain.h. */
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

/* Qualifies functions that a header defines, such as entrain_x_init. C89 compilers know only __inline__. */
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L)
#define ENTRAIN_INLINE inline
#else
#define ENTRAIN_INLINE __inline__
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a call. 0 means success. A positive value is not an error. An error is negative. Its hundreds digit
 * names the cause: -1xx the caller, -2xx this process, -3xx another process, -4xx a deadline, -5xx a deliberate end,
 * -9xx a defect of this library. */
typedef int32_t entrain_status_t;
enum {
  ENTRAIN_OK = 0,
  ENTRAIN_IN_PROGRESS = 1,           /* the work is not done yet; nothing has changed */
  ENTRAIN_INVALID_ARGUMENT = -101,   /* an argument is wrong; the communicator still works */
  ENTRAIN_FAILED_PRECONDITION = -102, /* the call came at the wrong time; the communicator still works */
  ENTRAIN_UNIMPLEMENTED = -103,      /* this build cannot do that; the communicator still works */
  ENTRAIN_RESOURCE_EXHAUSTED = -201, /* memory, descriptors or another local resource ran out */
  ENTRAIN_PEER_LOST = -301,          /* a peer or a server has died or cannot be reached. The loss of a peer ends every
                                        communicator that contains the peer */
  ENTRAIN_MISMATCH = -302,           /* ranks made different calls; ends the communicator */
  ENTRAIN_STALE_GENERATION = -303,   /* the other ranks have left this rank out and continue in a newer generation of
                                        the communicator (entrain_comm_shrink); ends the communicator on this rank */
  ENTRAIN_TIMED_OUT = -401,          /* a deadline passed; ends the communicator of the operation */
  ENTRAIN_ABORTED = -501,            /* a rank called abort; ends the communicator */
  ENTRAIN_INTERNAL = -901            /* a defect of this library */
};

/* Element types. entrain_dtype_size() returns the size of an element in bytes. A buffer must be aligned to the size of
 * its element. For pairs, half of that size is enough. The 8-bit floats follow the OCP specification. e4m3 has no
 * infinity. Its largest number is 448, and a value that would round to a larger number becomes NaN. e5m2 has
 * infinities, and its largest number is 57344. A pair is a value followed by the location where the value was found, as
 * in MPI_FLOAT_INT. Both fields have the same width, and there is no padding. For example, ENTRAIN_F32_I32 is
 * struct { float value; int32_t location; }. */
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

/* Reduction operators.
 * - Floats of 16 and 8 bits: each combination is computed in f32 and rounded once, to nearest even.
 * - avg: the sum divided by the number of ranks. For integers the sum does not wrap around, and the quotient is
 *   truncated toward zero.
 * - Sums and products of integers wrap around.
 * - min, max: the result is NaN if any contribution is NaN.
 * - Bit operators (band, bor, bxor): integers only.
 * - Logical operators (land, lor, lxor): all types except pairs. Every value except zero counts as true, NaN included.
 *   The result is 1 or 0. On a communicator of one rank, the result is the contribution, unchanged.
 * - minloc, maxloc: pairs only, and pairs allow no other operator. The result is the smallest (largest) value and its
 *   location. NaN counts as smaller (larger) than every number. If several contributions have the result's value, the
 *   result has the smallest of their locations. */
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
  ENTRAIN_REDUCTION = 100 /* use entrain_call_options_t.reduction */
};

/* The memory in which a buffer lies. */
typedef int32_t entrain_memory_t;
enum {
  ENTRAIN_MEMORY_HOST = 0,
  ENTRAIN_MEMORY_DEVICE = 1,     /* memory of a CUDA device. Without such a device, calls return UNIMPLEMENTED, and the
                                    text states the reason */
  ENTRAIN_MEMORY_HOST_PINNED = 2 /* host memory that CUDA has page-locked */
};

/* Opaque handles. The caller destroys each handle that it has created. Destroying NULL does nothing. */
typedef struct entrain_runtime entrain_runtime_t;     /* engine, listener, memory pools and identity */
typedef struct entrain_store entrain_store_t;         /* a rendezvous store */
typedef struct entrain_comm entrain_comm_t;           /* a communicator */
typedef struct entrain_work entrain_work_t;           /* one started call */
typedef struct entrain_reduction entrain_reduction_t; /* a way to combine contributions */
typedef struct entrain_batch entrain_batch_t;         /* several calls started as one */
typedef struct entrain_mesh entrain_mesh_t;           /* ranks in shard groups and sync groups */
typedef struct entrain_shard entrain_shard_t;         /* a model in layers; each layer is sharded over a shard group */
typedef struct entrain_edit entrain_edit_t;           /* EDiT on a sharded model */
typedef struct entrain_acco entrain_acco_t;           /* ACCO: gradients are reduced during the computation */
typedef struct entrain_state entrain_state_t;         /* the state of a training object, array by array */
typedef struct entrain_optim entrain_optim_t;         /* an optimizer over flat arrays */

/* Identifies a process to its peers. The identity stays the same for the life of the process. It does not depend on the
 * rank of the process in a communicator. */
typedef struct entrain_peer_id_t {
  uint8_t bytes[16];
} entrain_peer_id_t;

enum { /* the structs that begin with a size. ENTRAIN_STRUCT_X is entrain_x_t */
  ENTRAIN_STRUCT_ERROR = 0,
  ENTRAIN_STRUCT_RUNTIME_CONFIG = 1,
  ENTRAIN_STRUCT_COMM_CONFIG = 2,
  ENTRAIN_STRUCT_GROW_CONFIG = 3,
  ENTRAIN_STRUCT_JOIN_CONFIG = 4,
  ENTRAIN_STRUCT_COMM_STATS = 5,
  ENTRAIN_STRUCT_MEMBER = 6,
  ENTRAIN_STRUCT_SHRINK_CONFIG = 7,
  ENTRAIN_STRUCT_STORE_FUNCTIONS = 8,
  ENTRAIN_STRUCT_CALL_OPTIONS = 9,
  ENTRAIN_STRUCT_GTA_CONFIG = 10,
  ENTRAIN_STRUCT_WORK_INFO = 11,
  ENTRAIN_STRUCT_OPTIM_CONFIG = 12,
  ENTRAIN_STRUCT_OPTIM_INFO = 13,
  ENTRAIN_STRUCT_MESH_CONFIG = 14,
  ENTRAIN_STRUCT_SHARD_CONFIG = 15,
  ENTRAIN_STRUCT_SHARD_LAYER = 16,
  ENTRAIN_STRUCT_SHARD_STATS = 17,
  ENTRAIN_STRUCT_OPTION = 18,
  ENTRAIN_STRUCT_EDIT_CONFIG = 19,
  ENTRAIN_STRUCT_EDIT_REPLICA = 20,
  ENTRAIN_STRUCT_EDIT_INFO = 21,
  ENTRAIN_STRUCT_CHECKPOINT_CONFIG = 22,
  ENTRAIN_STRUCT_CHECKPOINT_FUNCTIONS = 23,
  ENTRAIN_STRUCT_STATE_INFO = 24,
  ENTRAIN_STRUCT_ACCO_CONFIG = 25,
  ENTRAIN_STRUCT_ACCO_INFO = 26
};
/* Writes the defaults of the struct `which` (ENTRAIN_STRUCT_*) to `at`, and `bytes` as its `size`. Programs in C call
 * the inline entrain_x_init of the struct, which calls this function. Other languages call this function with the size
 * of their struct. The function writes no byte beyond `bytes`. If the struct has bytes that this library does not know,
 * they become zero. Does nothing for NULL, or if `bytes` is too small for the field `size`. If this library does not
 * know the whole struct, the function writes only zeros, so that each call refuses the struct as never initialised. */
ENTRAIN_API void entrain_struct_init(int32_t which, void* at, size_t bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_TYPES_H_ */
