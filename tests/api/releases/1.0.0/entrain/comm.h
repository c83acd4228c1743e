/* Runtimes and communicators: create, split, query, abort and destroy. Error records. */
#ifndef ENTRAIN_COMM_H_
#define ENTRAIN_COMM_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Versions and names. Any thread may call; these functions never fail. ---------------------------------------- */

#define ENTRAIN_VERSION_MAJOR 1
#define ENTRAIN_VERSION_MINOR 0
#define ENTRAIN_VERSION_PATCH 0

/* Returns the version of the loaded library: major * 10000 + minor * 100 + patch. */
ENTRAIN_API int32_t entrain_version(void);
/* Returns the name of a status, for example "ENTRAIN_PEER_LOST"; "ENTRAIN_?" if the value is not a status. */
ENTRAIN_API const char* entrain_status_name(entrain_status_t status);
/* Returns the name of a type, for example "f32"; NULL if the value is not a type. */
ENTRAIN_API const char* entrain_dtype_name(entrain_dtype_t dtype);
/* Returns the size of one element in bytes; 0 if the value is not a type. */
ENTRAIN_API size_t entrain_dtype_size(entrain_dtype_t dtype);
/* Returns the name of an operator, for example "sum"; NULL if the value is not an operator. */
ENTRAIN_API const char* entrain_op_name(entrain_op_t op);

/* ---- Errors -------------------------------------------------------------------------------------------------- */

enum { /* entrain_error_t.scope: the object that must be rebuilt after the error */
  ENTRAIN_SCOPE_NONE = 0,
  ENTRAIN_SCOPE_CALL = 1, /* only the call failed */
  ENTRAIN_SCOPE_COMM = 2  /* the communicator has ended */
};
enum { /* entrain_error_t.phase: the activity during which the error occurred */
  ENTRAIN_PHASE_NONE = 0,
  ENTRAIN_PHASE_BOOTSTRAP = 1, /* exchanging addresses through the store */
  ENTRAIN_PHASE_CONNECT = 2,   /* connecting to a peer */
  ENTRAIN_PHASE_CHECK = 3,     /* checking arguments, or comparing the calls of the ranks */
  ENTRAIN_PHASE_TRANSFER = 4,  /* waiting for a peer to send data or to accept it */
  ENTRAIN_PHASE_REDUCE = 5     /* combining received data */
};

typedef struct entrain_error {
  size_t size;
  entrain_status_t code;
  int32_t scope;
  int32_t phase;
  int32_t guilty_rank;       /* rank, in this communicator, of the process that caused the error; -1: unknown, or not a
                                member */
  entrain_peer_id_t peer_id; /* identity of that process, also if it is not a member; all zero: unknown */
  uint64_t generation;       /* generation of the communicator (entrain_comm_generation) */
  uint64_t sequence;         /* number of the call, from 1. Calls are counted separately for: the untagged collectives
                                of a communicator; each tag; the messages of each pair of ranks in each direction;
                                entrain_comm_agree together with entrain_comm_shrink. The number is the same on all
                                ranks of the call. 0: the error belongs to no call */
  int64_t tag;               /* user tag of the call; -1: untagged */
  int64_t elapsed_ns;        /* time since the call started */
  int64_t deadline_ns;       /* time limit of the call */
  int64_t bytes_done;        /* bytes received before the failure */
  int32_t sys_errno;         /* errno of the failing system call; 0: none */
  int32_t guilty_world_rank; /* rank of the guilty process in the communicator from which this one was split; -1:
                                unknown */
  char operation[32];        /* for example "all_reduce"; empty: no call */
  char peer_address[128];    /* for example "tcp 10.0.0.5:4711"; empty: unknown */
  char text[512];            /* one line that states all of the above in words */
} entrain_error_t;

ENTRAIN_API void entrain_error_init_sized(entrain_error_t* error, size_t bytes);
static ENTRAIN_INLINE void entrain_error_init(entrain_error_t* error) {
  entrain_error_init_sized(error, sizeof(*error));
}
/* Returns the text of this thread's last failed call, or "" if no call has failed. The text is valid until the next
 * failure on this thread. */
ENTRAIN_API const char* entrain_last_error(void);
/* Copies the record of this thread's last failed call to *error. Any thread. If this function itself fails, its error
 * becomes the last error; otherwise the last error does not change. */
ENTRAIN_API entrain_status_t entrain_last_error_record(entrain_error_t* error);

/* ---- Runtime -------------------------------------------------------------------------------------------------- */

enum { /* entrain_runtime_config_t.progress: the threads that make progress */
  ENTRAIN_PROGRESS_THREAD = 0, /* a thread of the library. A caller that waits takes over the loop of this thread */
  ENTRAIN_PROGRESS_CALLER = 1  /* only the threads inside entrain_work_wait, entrain_work_test, entrain_comm_drain and
                                  blocking calls. A program that computes while calls are in flight must call
                                  entrain_work_test from time to time. Otherwise communication does not overlap the
                                  computation. The library notices failures only inside these calls */
};

/* Receives one line of the log. `level`: 0 error, 1 warning, 2 info, 3 debug. The library calls the function one line
 * at a time, on a thread that does nothing else. The function may block: no other thread waits for it, except for one
 * second at exit, and for one second when another function is given. The library queues at most 1000 lines. It counts
 * the lines that it drops, and reports their number in a line of its own. Inside the function, calls that need the
 * engine return FAILED_PRECONDITION ("entrain_barrier: called from the log function, which must not use the engine").
 * Queries are allowed. */
typedef void (*entrain_log_fn)(int32_t level, const char* line, void* user);

typedef struct entrain_runtime_config {
  size_t size;
  const char* transports;       /* allowed transports, for example "shm,tcp"; NULL: ENTRAIN_TRANSPORTS, else all. Each
                                   pair of ranks uses the best one */
  const char* interface_filter; /* selects the address to bind and publish; NULL: ENTRAIN_INTERFACE, else the source
                                   address of the route to the store */
  const char* ports;            /* port range to listen on, "LOW-HIGH"; NULL: ENTRAIN_PORTS, else the kernel chooses */
  const char* key_file;         /* file with a pre-shared key of 16 bytes to 4 KiB. The key protects connections between
                                   ranks, and connections to the store that entrain_comm_create_from_env opens or
                                   serves. Between hosts these connections use TLS. NULL: ENTRAIN_KEY_FILE, else no
                                   key */
  const char* tls_cert;         /* PEM file with this process's certificate, for TLS by certificates in place of the key; NULL:
                                   ENTRAIN_TLS_CERT, else none. Give all three TLS files or none of them */
  const char* tls_key;          /* PEM file with the certificate's private key; NULL: ENTRAIN_TLS_KEY */
  const char* tls_ca;           /* PEM file with the authorities that sign the ranks' certificates; NULL: ENTRAIN_TLS_CA */
  const char* host_id;          /* identity of the host; NULL: ENTRAIN_HOST_ID, else boot id + network namespace + IPC
                                   namespace */
  int32_t progress;             /* ENTRAIN_PROGRESS_* */
  int32_t engines;              /* progress loops; 0: one. This version refuses more than one */
  entrain_log_fn log;           /* NULL: standard error. One function serves the whole process: the one given last */
  void* log_user;
} entrain_runtime_config_t;

ENTRAIN_API void entrain_runtime_config_init_sized(entrain_runtime_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_runtime_config_init(entrain_runtime_config_t* config) {
  entrain_runtime_config_init_sized(config, sizeof(*config));
}
/* Creates a runtime: the progress loop, listener, pools and identity of a process. `config` may be NULL (defaults).
 * Most programs never call this function, because a communicator that is created without a runtime uses the process's
 * default runtime, which the first use creates. Ranks that are threads of one process need one runtime each. Any
 * thread; not a collective. Communicators keep their runtime alive. entrain_runtime_destroy returns at once; the last
 * communicator or handle that is destroyed frees the runtime. */
ENTRAIN_API entrain_status_t entrain_runtime_create(const entrain_runtime_config_t* config,
                                                    entrain_runtime_t** runtime);
ENTRAIN_API void entrain_runtime_destroy(entrain_runtime_t* runtime);
/* Copies the identity of this runtime, as it appears in the error records of peers, to *id. Any thread. */
ENTRAIN_API entrain_status_t entrain_runtime_peer_id(const entrain_runtime_t* runtime, entrain_peer_id_t* id);

/* ---- Communicators -------------------------------------------------------------------------------------------- */

enum { /* entrain_comm_config_t.determinism and entrain_call_options_t.determinism: the inputs that the bits of a
          reduction may depend on. Every setting gives all ranks the same bits. */
  ENTRAIN_DETERMINISM_DEFAULT = 0,   /* in a call: the setting of its communicator. In a communicator:
                                        ENTRAIN_DETERMINISM, else ALGORITHM. Parts and duplicates inherit the setting */
  ENTRAIN_DETERMINISM_ALGORITHM = 1, /* the contributions and the algorithm. The choice of the algorithm depends on
                                        size, ranks, hosts, paths and tuning. Equal calls give equal bits */
  ENTRAIN_DETERMINISM_RANK_ORDER = 2 /* the contributions alone, combined in rank order. The bits stay the same on other
                                        transports and hosts, and when other algorithms are requested. The library
                                        skips algorithms that combine in another order, so large buffers on many ranks
                                        may take longer */
};

typedef struct entrain_comm_config {
  size_t size;
  entrain_runtime_t* runtime; /* NULL: the default runtime of the process */
  entrain_store_t* store;     /* required by entrain_comm_create; the same store on all ranks */
  const char* name;           /* name of the communicator, 1 to 128 bytes. Communicators that are created from one store
                                 at the same time need different names. NULL: "world" */
  int32_t rank, world_size;   /* 0 <= rank < world_size */
  const char* algorithms;     /* for example "all_reduce:ring@1M-inf,broadcast:tree"; NULL: ENTRAIN_ALGORITHMS, else the
                                 library chooses by estimated time */
  int64_t timeout_ns;         /* default deadline of operations, and the deadline of creation; 0: ENTRAIN_TIMEOUT, else
                                 30 min */
  const char* tuning;         /* data for the choice of algorithms. A path: a file written by entrain-perf --tune.
                                 "probe": the ranks measure their links after they have connected. "": the library's
                                 built-in values. NULL: ENTRAIN_TUNING, else the built-in values */
  int32_t determinism;        /* ENTRAIN_DETERMINISM_*; the same on all ranks */
  int32_t reserved;           /* must be 0 */
} entrain_comm_config_t;

ENTRAIN_API void entrain_comm_config_init_sized(entrain_comm_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_comm_config_init(entrain_comm_config_t* config) {
  entrain_comm_config_init_sized(config, sizeof(*config));
}

/* Creates a communicator of world_size ranks that meet in the store. Collective over these ranks; any thread. Blocks
 * until all ranks have arrived and can reach each other, at most timeout_ns. *comm belongs to the caller. Errors:
 * - TIMED_OUT if a rank does not arrive in time; the text names the missing ranks. If one rank reaches its deadline,
 *   the call fails with TIMED_OUT on all ranks.
 * - FAILED_PRECONDITION on all ranks if two processes have the same rank.
 * - MISMATCH, naming both ranks, if two ranks differ in a setting that must agree.
 * - PEER_LOST on all other ranks, naming the lost rank, if its process ends (even by SIGKILL) while the others wait or
 *   connect. They receive the error within 2 s, or within 10 s if the host of the lost rank fails.
 * - ABORTED, naming the rank and its error, on the other ranks if the call of one rank fails for a local reason, such
 *   as a bad setting or no usable transport.
 * - RESOURCE_EXHAUSTED after 65,535 communicators in the life of a process, parts and duplicates included. The number
 *   of an ended communicator is not reused.
 *
 * Set the CPU affinity before the runtime creates its first communicator. At that time the library counts the cores
 * that the calling threads may use together, limited by the CPU quotas of their cgroups. This count determines how
 * ranks of one host wait, and which algorithms they choose. */
ENTRAIN_API entrain_status_t entrain_comm_create(const entrain_comm_config_t* config, entrain_comm_t** comm);

/* Creates a communicator as entrain_comm_create does, but takes rank, size and store from the environment. Reads
 * ENTRAIN_STORE and the variables of torchrun (which entrain-run sets too), Open MPI, MPICH/PMI, Slurm or Kubernetes
 * (JOB_COMPLETION_INDEX of an Indexed Job, and WORLD_SIZE). `config` may be NULL; its rank, world_size and store are
 * ignored. If the variables of two launchers disagree, the call returns FAILED_PRECONDITION and lists both.
 *
 * Without ENTRAIN_STORE, a rank serves the store. The first rule that applies determines the server:
 * - If MASTER_ADDR and MASTER_PORT are set, as by torchrun: rank 0, at MASTER_ADDR on port MASTER_PORT + 1.
 * - If the launcher has started all ranks on one host: rank 0, for the processes of this user on that host.
 * - In a Slurm step: the first task of its first node.
 * - Otherwise the call returns FAILED_PRECONDITION.
 *
 * In a process that entrain-run --elastic has restarted (ENTRAIN_RESTARTS is greater than 0), the call joins instead, as
 * entrain_comm_join does with this name and these settings: it blocks until the other ranks call entrain_comm_grow.
 *
 * If none of these variables is set, the process becomes a communicator of one rank. The store must answer within 30 s,
 * or within the timeout if that is shorter; otherwise the call returns PEER_LOST and names the address of the store. */
ENTRAIN_API entrain_status_t entrain_comm_create_from_env(const entrain_comm_config_t* config, entrain_comm_t** comm);

/* Splits `comm`: the ranks that give the same color >= 0 form a part, ordered by key and then by rank. With color -1
 * the rank joins no part, and *part becomes NULL. An untagged collective over `comm`; blocks. Parts share connections
 * with `comm` but fail independently of each other. */
ENTRAIN_API entrain_status_t entrain_comm_split(entrain_comm_t* comm, int32_t color, int32_t key,
                                                entrain_comm_t** part);

/* Creates a communicator of the same ranks. Calls on `comm` and on the copy never wait for each other. Collective;
 * blocks. */
ENTRAIN_API entrain_status_t entrain_comm_duplicate(entrain_comm_t* comm, entrain_comm_t** copy);

/* Start the two calls above; allowed also in done() of entrain_work_notify. *work (collectives.h) completes when every
 * rank has made the call, and fails where the blocking call would fail. A blocking call on one rank matches a started
 * call on another. After completion, entrain_comm_split_finish returns the new communicator. */
ENTRAIN_API entrain_status_t entrain_comm_split_start(entrain_comm_t* comm, int32_t color, int32_t key,
                                                      entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_comm_duplicate_start(entrain_comm_t* comm, entrain_work_t** work);
/* Writes to *part the communicator that the work has made. The caller destroys it. *part becomes NULL if the color was
 * -1. Never blocks: returns IN_PROGRESS until the work is complete. Succeeds once per work; later calls return
 * FAILED_PRECONDITION. The caller still frees the work. If a work is freed without this call, the library aborts the
 * new communicator as soon as it exists: calls on it return ABORTED on all ranks and name this rank. Returns ABORTED if
 * neither the parent nor any other communicator of the same runtime exists any more. */
ENTRAIN_API entrain_status_t entrain_comm_split_finish(entrain_work_t* work, entrain_comm_t** part);

/* ---- Growing: newcomers join a communicator that works -------------------------------------------------------------- */

typedef struct entrain_grow_config {
  size_t size;
  entrain_store_t* store; /* the store in which newcomers apply; the same on all ranks and newcomers. NULL: the store
                             that entrain_comm_create_from_env finds, which the communicator then keeps open */
  int32_t min_newcomers;  /* least number of newcomers; if fewer have applied, none is taken in; 0: no minimum */
  int32_t max_newcomers;  /* largest number of newcomers; further ones wait for the next call; 0: no limit */
  int64_t wait_ns;        /* longest time to wait for min_newcomers; 0: does not wait */
  int64_t timeout_ns;     /* time limit of the rest of the call; 0: the communicator's default deadline */
} entrain_grow_config_t;

ENTRAIN_API void entrain_grow_config_init_sized(entrain_grow_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_grow_config_init(entrain_grow_config_t* config) {
  entrain_grow_config_init_sized(config, sizeof(*config));
}

typedef struct entrain_join_config {
  size_t size;
  entrain_runtime_t* runtime; /* as in entrain_comm_config_t */
  entrain_store_t* store;     /* the store that the ranks give to entrain_comm_grow. NULL: the store that
                                 entrain_comm_create_from_env finds; ENTRAIN_STORE suffices */
  const char* name;           /* name of the communicator, 1 to 128 bytes. NULL: "world" */
  const char* algorithms;     /* must be the same as on the ranks; see entrain_comm_config_t */
  int64_t timeout_ns;         /* default deadline of operations; 0: ENTRAIN_TIMEOUT, else 30 min */
  const char* tuning;         /* must be the same as on the ranks; see entrain_comm_config_t. The ranks decide whether
                                 links are measured */
  int64_t wait_ns;            /* longest time to wait until the ranks take this process in; 0: timeout_ns */
  int32_t determinism;        /* ENTRAIN_DETERMINISM_*; must be the same as on the ranks */
  int32_t reserved;           /* must be 0 */
} entrain_join_config_t;

ENTRAIN_API void entrain_join_config_init_sized(entrain_join_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_join_config_init(entrain_join_config_t* config) {
  entrain_join_config_init_sized(config, sizeof(*config));
}

/* Makes a communicator of the ranks of `comm` and of newcomers, which are processes that call entrain_comm_join with the
 * name of `comm`. An untagged collective over `comm`; blocks. `config` may be NULL (defaults: takes in all newcomers
 * that have applied, and does not wait for more). Newcomers disturb the ranks only during this call.
 *
 * The ranks of `comm` keep their numbers; newcomers get the next numbers, in the order in which they applied. The new
 * communicator has the name and the settings of `comm`, and the next generation. *grown belongs to the caller. It
 * becomes NULL if no newcomer could be taken in, or fewer than min_newcomers. This is not an error; newcomers that have
 * applied keep waiting.
 *
 * `comm` works as before, after success, after NULL and after errors of this call. If a newcomer dies, or cannot be
 * reached, while it is taken in, the ranks and the other newcomers make one more attempt without it. (If it dies after
 * all ranks have connected to it, it is a lost rank of the new communicator, whose calls return PEER_LOST.) After all
 * ranks have made the call, it takes at most wait_ns plus the shortest timeout_ns of the ranks. All ranks get the same
 * result, except in the last two cases of the list. To replace a lost rank, call entrain_comm_shrink first. Errors
 * (entrain_error_t.scope is CALL unless `comm` has ended):
 * - MISMATCH if ranks differ in min_newcomers, max_newcomers or wait_ns. The text names both ranks and values.
 * - PEER_LOST if the store cannot be reached, or if a rank of `comm` was lost; the text names the rank.
 * - TIMED_OUT if a rank did not make the call in time, or if the time is too short for another attempt.
 * - The error of a rank that could not take part for a local reason, naming the rank.
 * - ABORTED if a rank of `comm` was lost while the ranks compared the results of an attempt; `comm` ends a moment
 *   later.
 * - STALE_GENERATION if the others have gone on without this rank, because it did not answer for too long. */
ENTRAIN_API entrain_status_t entrain_comm_grow(entrain_comm_t* comm, const entrain_grow_config_t* config,
                                               entrain_comm_t** grown);

/* Joins the communicator `config->name`: applies in the store and blocks until its ranks take this process in
 * (entrain_comm_grow), at most wait_ns. `config` may be NULL. Any thread. *comm belongs to the caller. If an
 * application fails because of other processes (a rank has died, or too few newcomers came), the call applies again.
 * Errors:
 * - TIMED_OUT after wait_ns. The text has the reason: no communicator of this name has called entrain_comm_grow, its
 *   ranks have not called it since this process applied, or they took in other newcomers.
 * - MISMATCH if algorithms, tuning or determinism differ from those of the ranks. The text names both values.
 * - FAILED_PRECONDITION if this runtime is a rank already or applies twice at the same time, or if the ranks could not take
 *   this process in; the text then has their reason.
 * - PEER_LOST if the store cannot be reached. */
ENTRAIN_API entrain_status_t entrain_comm_join(const entrain_join_config_t* config, entrain_comm_t** comm);

/* ---- Queries, ends -------------------------------------------------------------------------------------------------- */

/* Write the rank of this process, or the number of ranks. Local, as are the queries below; any thread. */
ENTRAIN_API entrain_status_t entrain_comm_rank(const entrain_comm_t* comm, int32_t* rank);
ENTRAIN_API entrain_status_t entrain_comm_size(const entrain_comm_t* comm, int32_t* size);
/* Writes the number of membership changes to *generation. It is 0 for a communicator from entrain_comm_create. A
 * communicator from entrain_comm_shrink or entrain_comm_grow has the number of its parent plus 1. A part or a duplicate
 * has the number of its parent. The number is equal on all ranks. */
ENTRAIN_API entrain_status_t entrain_comm_generation(const entrain_comm_t* comm, uint64_t* generation);
/* Writes to *name the name of the transport that reaches `peer`; "self" for this rank. Static text. */
ENTRAIN_API entrain_status_t entrain_comm_transport(const entrain_comm_t* comm, int32_t peer, const char** name);
/* Writes to *name the algorithm that a call with these arguments uses. `collective`: "all_reduce", "broadcast", and so
 * on. Static text. */
ENTRAIN_API entrain_status_t entrain_comm_algorithm(const entrain_comm_t* comm, const char* collective, size_t count,
                                                    entrain_dtype_t dtype, const char** name);

/* Explains the choice of entrain_comm_algorithm in lines of text. The first line gives the chosen algorithm, the
 * reason, and the estimated time of every algorithm that could run the call. The second line gives the link figures
 * behind the estimates and the source of these figures. Some transports send messages of different sizes by different
 * methods. For each kind of path over such a transport, one more line lists the methods with their message sizes.
 * Writes at most `bytes` bytes to `text`, truncated if necessary and terminated by zero. */
ENTRAIN_API entrain_status_t entrain_comm_explain(const entrain_comm_t* comm, const char* collective, size_t count,
                                                  entrain_dtype_t dtype, char* text, size_t bytes);

typedef struct entrain_comm_stats_t {
  size_t size;
  uint64_t calls;          /* calls started on this rank */
  uint64_t bytes_sent;     /* payload bytes that this rank gave to transports, without control messages and headers */
  uint64_t bytes_received; /* payload bytes that this rank received */
} entrain_comm_stats_t;
ENTRAIN_API void entrain_comm_stats_init_sized(entrain_comm_stats_t* stats, size_t bytes);
static ENTRAIN_INLINE void entrain_comm_stats_init(entrain_comm_stats_t* stats) {
  entrain_comm_stats_init_sized(stats, sizeof(*stats));
}
/* Reads the counters since the communicator was created. A part has counters of its own. */
ENTRAIN_API entrain_status_t entrain_comm_stats(const entrain_comm_t* comm, entrain_comm_stats_t* stats);

/* Sets the default deadline, timeout_ns > 0, of calls that this rank starts on the communicator afterwards. Parts and
 * copies that are created later inherit it. Objects of train.h keep the deadline that they were created with. Local. */
ENTRAIN_API entrain_status_t entrain_comm_set_timeout(entrain_comm_t* comm, int64_t timeout_ns);

/* Writes to *sequence the number of the last untagged collective that this rank has started, as in entrain_error_t; 0
 * if there is none. The number is equal on ranks that have started the same calls. Compare it only between ranks, not
 * with a count of calls: the creation of the communicator is counted, and some calls count more than once. */
ENTRAIN_API entrain_status_t entrain_comm_sequence(const entrain_comm_t* comm, uint64_t* sequence);

/* Writes to `ranks`, in ascending order, the ranks that were late for the call whose deadline ended the communicator:
 * the ranks that had not started the call, and the ranks that did not answer. On input *count is the capacity of
 * `ranks`. On output *count is the number of all late ranks, which may exceed the capacity; `ranks` then has only the
 * first of them. The library keeps at most 128 late ranks. *count becomes 0 if the communicator has not ended, or has
 * ended for another reason. All ranks that learned of the end read the same list. */
ENTRAIN_API entrain_status_t entrain_comm_late(const entrain_comm_t* comm, int32_t* ranks, int32_t* count);

/* Returns ENTRAIN_OK while the communicator works, otherwise the code that ended it. Also writes the record to *error;
 * `error` may be NULL. */
ENTRAIN_API entrain_status_t entrain_comm_error(const entrain_comm_t* comm, entrain_error_t* error);

/* ---- Membership: see docs/elastic.md ------------------------------------------------------------------------------- */

enum { /* entrain_member_t.state */
  ENTRAIN_MEMBER_ALIVE = 0, /* the path to the member works, as far as this rank knows */
  ENTRAIN_MEMBER_LOST = 1,  /* the path to the member is lost: its process has ended, or cannot be reached */
  ENTRAIN_MEMBER_LEFT = 2   /* the member has destroyed the communicator */
};

typedef struct entrain_member {
  size_t size;
  entrain_peer_id_t peer_id; /* identity of the member's process */
  int32_t rank;              /* rank of the member in this communicator */
  int32_t parent_rank;       /* rank of the member in the communicator from which entrain_comm_shrink,
                                entrain_comm_split or entrain_comm_duplicate made this one; -1: there is none */
  int32_t state;             /* ENTRAIN_MEMBER_* */
  entrain_status_t code;     /* error of the path if the member is lost; else ENTRAIN_OK */
  char text[256];            /* text of this error, for example "shm pid 812 died"; else empty */
} entrain_member_t;

ENTRAIN_API void entrain_member_init_sized(entrain_member_t* member, size_t bytes);
static ENTRAIN_INLINE void entrain_member_init(entrain_member_t* member) {
  entrain_member_init_sized(member, sizeof(*member));
}
/* Writes to `members`, in rank order, the state of each rank as far as this rank knows it. The caller owns the array
 * and has initialised each element. On input *count is the capacity of the array; if it is 0, `members` may be NULL. On
 * output *count is the number of ranks; the function writes no more elements than the capacity. Local; any thread; also
 * after the communicator has ended. */
ENTRAIN_API entrain_status_t entrain_comm_members(const entrain_comm_t* comm, entrain_member_t* members,
                                                  int32_t* count);

/* Agrees on a flag. *flag becomes the bitwise AND of the flags of all ranks that took part, and is equal on all of
 * them. A collective of the remaining ranks. It also works after the communicator has ended. It does not wait for a
 * rank whose process has ended, a rank that has destroyed the communicator, or a rank that does not answer. Blocks
 * until the ranks agree, at most for the communicator's default timeout. Any thread; on each rank one agree or shrink
 * of a communicator at a time. All ranks must make their calls of agree and shrink on a communicator in one order.
 * Errors leave *flag unchanged:
 * - TIMED_OUT, naming the ranks that live and did not make the call. The call may be repeated; it then continues the same
 *   agreement, with the flag of the first attempt.
 * - STALE_GENERATION if the others have gone on without this rank, or if this rank reaches too few ranks to go on
 *   (ENTRAIN_PARTITION_MAJORITY below). Ends the communicator on this rank.
 * - MISMATCH, on all ranks, if one rank calls entrain_comm_shrink. The communicator does not end.
 * - ABORTED if the communicator is destroyed meanwhile; UNIMPLEMENTED for more than 1,500 ranks. */
ENTRAIN_API entrain_status_t entrain_comm_agree(entrain_comm_t* comm, uint32_t* flag);

enum { /* entrain_shrink_config_t.partition: the ranks that go on if some do not reach each other */
  ENTRAIN_PARTITION_MAJORITY = 0, /* all ranks whose process has not ended, however few they are. But if a rank cannot
                                     be reached and may live, a side goes on only if it has more than half of the
                                     communicator's ranks, or exactly half of them and among these the lowest rank. So
                                     at most one side goes on */
  ENTRAIN_PARTITION_ANY = 1       /* each side. The caller must make sure that two sides at once do no harm */
};

typedef struct entrain_shrink_config {
  size_t size;
  int64_t timeout_ns;     /* time limit of the call; 0: the communicator's default */
  const int32_t* exclude; /* ranks to leave out although they live. A rank is left out if any caller lists it. NULL:
                             none */
  int32_t exclude_count;
  int32_t partition;      /* ENTRAIN_PARTITION_*; the same on all ranks */
  const char* name;       /* name of the new communicator, 1 to 128 bytes; NULL: the name of `comm` */
} entrain_shrink_config_t;

ENTRAIN_API void entrain_shrink_config_init_sized(entrain_shrink_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_shrink_config_init(entrain_shrink_config_t* config) {
  entrain_shrink_config_init_sized(config, sizeof(*config));
}
/* Makes a communicator of the remaining ranks of `comm`, in the order of their ranks, over the connections that exist.
 * Its generation is that of `comm` plus 1. `config` may be NULL (defaults). A collective of the remaining ranks, as
 * entrain_comm_agree is; call it when a call on `comm` has failed. `comm` stays as it is: the caller destroys it. *next
 * belongs to the caller. Every rank that lives, calls in time and is reached by all others is a member. If a rank dies
 * too late to be left out, the first call on the new communicator returns PEER_LOST. Then shrink the new communicator.
 * A rank is left out if another rank has received nothing from it for a quarter of timeout_ns (at least 0.5 s, at most
 * 5 s); with ENTRAIN_PROGRESS_CALLER a rank answers only inside calls. Errors: those of entrain_comm_agree, and
 * - INVALID_ARGUMENT, on this rank only, naming the argument and its value.
 * - RESOURCE_EXHAUSTED, on all ranks, if one of them has created 65,535 communicators.
 * A rank that is left out gets STALE_GENERATION from every call on `comm` from then on; the text names the ranks that went
 * on, if it is known. */
ENTRAIN_API entrain_status_t entrain_comm_shrink(entrain_comm_t* comm, const entrain_shrink_config_t* config,
                                                 entrain_comm_t** next);

/* Ends the communicator on all ranks. Returns at once. Any thread may call it, at any time and repeatedly. Within 250
 * ms, calls on the communicator return ABORTED with `reason` on all ranks. Parts and parents keep working. */
ENTRAIN_API entrain_status_t entrain_comm_abort(entrain_comm_t* comm, const char* reason);

/* Waits until all calls that this rank has started are complete. Returns IN_PROGRESS if timeout_ns passes first. */
ENTRAIN_API entrain_status_t entrain_comm_drain(entrain_comm_t* comm, int64_t timeout_ns);

/* Frees the handle. If calls are unfinished, the communicator is aborted on all ranks; otherwise peers are not
 * disturbed. Never waits for the network. A blocking call that another thread has in progress returns ABORTED. No call
 * may begin on a freed handle. */
ENTRAIN_API void entrain_comm_destroy(entrain_comm_t* comm);

/* ---- Flight recorder (docs/flight.md) ------------------------------------------------------------------------- */

/* Writes the last calls of all communicators of this process to a new file, in JSON: each call with its number, tag,
 * operation, state and times, and the ranks that a call under way waits for. `entrain-perf --flight FILES` merges the
 * files of the ranks and names the culprit. `path`: the file to create; NULL: a file in ENTRAIN_FLIGHT_DIR. Any thread
 * may call it, at any time, also while another thread hangs in a call: it waits for the engine for 200 ms at most.
 * FAILED_PRECONDITION: the file exists, or `path` is NULL and ENTRAIN_FLIGHT_DIR is not set. RESOURCE_EXHAUSTED: `path`
 * is NULL and this process has written 16 files there, or the disk is full. */
ENTRAIN_API entrain_status_t entrain_flight_dump(const char* path);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_COMM_H_ */
