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

enum { /* entrain_error_t.scope: the extent of the failure */
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

typedef struct entrain_error_t {
  size_t size;
  entrain_status_t code;
  int32_t scope;
  int32_t phase;
  int32_t guilty_rank;       /* rank, in this communicator, of the process that caused the error; -1: unknown, or not a
                                member */
  entrain_peer_id_t peer_id; /* identity of that process, also if it is not a member; all zero: unknown */
  uint64_t generation;       /* generation of the communicator (entrain_comm_stats_t) */
  uint64_t sequence;         /* number of the call, from 1; the same on all ranks of the call. There are separate
                                counters for the untagged collectives of a communicator, for each tag, and for the
                                messages of each pair of ranks in each direction. entrain_comm_agree and
                                entrain_comm_shrink share one more counter. 0: the error belongs to no call */
  int64_t tag;               /* user tag of the call; -1: untagged */
  int64_t elapsed_ns;        /* time since the call started */
  int64_t deadline_ns;       /* time limit of the call */
  int64_t bytes_done;        /* bytes received before the failure */
  int32_t sys_errno;         /* errno of the failing system call; 0: none */
  int32_t guilty_world_rank; /* rank of the guilty process in the communicator from which all others were split,
                                directly or through further splits; -1: unknown */
  char operation[32];        /* for example "all_reduce"; empty: no call */
  char peer_address[128];    /* for example "tcp 10.0.0.5:4711"; empty: unknown */
  char text[512];            /* one line that states all of the above in words */
} entrain_error_t;

static ENTRAIN_INLINE void entrain_error_init(entrain_error_t* error) {
  entrain_struct_init(ENTRAIN_STRUCT_ERROR, error, sizeof(*error));
}
/* Returns the text of this thread's last failed call, or "" if no call has failed. The text is valid until the next
 * failure on this thread. */
ENTRAIN_API const char* entrain_last_error(void);
/* Copies the record of this thread's last failed call to *error. Any thread. If this function fails, its own error
 * becomes the last error. Otherwise the last error does not change. */
ENTRAIN_API entrain_status_t entrain_last_error_record(entrain_error_t* error);

/* ---- Runtime -------------------------------------------------------------------------------------------------- */

enum { /* entrain_runtime_config_t.progress: the threads that make progress */
  ENTRAIN_PROGRESS_THREAD = 0, /* a thread of the library. A thread that waits in a call takes over the loop from it */
  ENTRAIN_PROGRESS_CALLER = 1  /* only the threads inside entrain_work_wait, entrain_work_test, entrain_comm_drain and
                                  blocking calls. A program that computes while calls are in flight must call
                                  entrain_work_test from time to time. Otherwise communication does not overlap the
                                  computation. The library notices failures only inside these calls */
};

/* Receives one line of the log. `level`: 0 error, 1 warning, 2 info, 3 debug. The library calls the function for one
 * line at a time, on a thread that does nothing else. The function may block. Other threads wait for it only in two
 * cases, at most one second each: at the exit of the process, and in the call that sets another log function. The
 * library queues at most 1000 lines, and drops further lines. One more line reports the number of dropped lines. Inside
 * the function, calls that need the engine (entrain.h) return FAILED_PRECONDITION ("entrain_barrier: called from the
 * log function, which must not use the engine"). Queries are allowed. */
typedef void (*entrain_log_fn)(int32_t level, const char* line, void* user);

typedef struct entrain_runtime_config_t {
  size_t size;
  const char* transports;       /* allowed transports, for example "shm,tcp"; NULL: ENTRAIN_TRANSPORTS, else all. Each
                                   pair of ranks uses the best allowed transport */
  const char* interface_filter; /* selects the address to bind and publish; NULL: ENTRAIN_INTERFACE, else the source
                                   address of the route to the store */
  const char* ports;            /* port range to listen on, "LOW-HIGH"; NULL: ENTRAIN_PORTS, else the kernel chooses */
  const char* key_file;         /* file with a pre-shared key of 16 bytes to 4 KiB. The key protects connections between
                                   ranks, and connections to the store that entrain_comm_create_from_env opens or
                                   serves. Between hosts these connections use TLS. NULL: ENTRAIN_KEY_FILE, else no
                                   key */
  const char* tls_cert;         /* PEM file with this process's certificate. TLS then uses certificates instead of the
                                   key. NULL: ENTRAIN_TLS_CERT, else none. Give all three TLS files or none of them */
  const char* tls_key;          /* PEM file with the certificate's private key; NULL: ENTRAIN_TLS_KEY */
  const char* tls_ca;           /* PEM file with the certificate authorities of the ranks; NULL: ENTRAIN_TLS_CA */
  const char* host_id;          /* identity of the host; NULL: ENTRAIN_HOST_ID, else boot id + network namespace + IPC
                                   namespace */
  int32_t progress;             /* ENTRAIN_PROGRESS_* */
  int32_t reserved;             /* must be 0 */
  entrain_log_fn log;           /* the whole process uses the function that was given last, even if that call failed;
                                   before that, standard error. NULL: changes nothing. log_user must live as long as the
                                   process uses the function */
  void* log_user;
} entrain_runtime_config_t;

static ENTRAIN_INLINE void entrain_runtime_config_init(entrain_runtime_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_RUNTIME_CONFIG, config, sizeof(*config));
}
/* Creates a runtime: the engine, listener, memory pools and identity of a process. `config` may be NULL (defaults).
 * Most programs never call this function. A communicator that is created without a runtime uses the default runtime of
 * the process. The library creates the default runtime at its first use. Ranks that are threads of one process need one
 * runtime each. Any thread; not a collective. Communicators keep their runtime alive. entrain_runtime_destroy returns
 * at once; the last communicator or handle that is destroyed frees the runtime. */
ENTRAIN_API entrain_status_t entrain_runtime_create(const entrain_runtime_config_t* config,
                                                    entrain_runtime_t** runtime);
ENTRAIN_API void entrain_runtime_destroy(entrain_runtime_t* runtime);
/* Copies the identity of this runtime, as it appears in the error records of peers, to *id. Any thread. */
ENTRAIN_API entrain_status_t entrain_runtime_peer_id(const entrain_runtime_t* runtime, entrain_peer_id_t* id);

/* ---- Communicators -------------------------------------------------------------------------------------------- */

enum { /* entrain_comm_config_t.determinism and entrain_call_options_t.determinism: the inputs that determine the bits
          of a reduction's result. With every setting, all ranks get the same bits. */
  ENTRAIN_DETERMINISM_DEFAULT = 0,   /* in a call: the setting of its communicator. In a communicator:
                                        ENTRAIN_DETERMINISM, else ALGORITHM. Parts and duplicates inherit the setting */
  ENTRAIN_DETERMINISM_ALGORITHM = 1, /* the contributions and the algorithm. The choice of the algorithm depends on the
                                        count, ranks, hosts, transports and tuning. Equal calls give equal bits */
  ENTRAIN_DETERMINISM_RANK_ORDER = 2 /* the contributions alone, which are combined in rank order. So the bits do not
                                        depend on transports, hosts and requested algorithms. The library skips
                                        algorithms that combine in another order, so large buffers on many ranks may
                                        take longer */
};

typedef struct entrain_comm_config_t {
  size_t size;
  entrain_runtime_t* runtime; /* NULL: the default runtime of the process */
  entrain_store_t* store;     /* required by entrain_comm_create; the same store on all ranks */
  const char* name;           /* name of the communicator, 1 to 128 bytes. Communicators that are created at the same
                                 time from one store need different names. The same runtime may use a name again later;
                                 a new runtime of entrain_runtime_create needs another name or store. NULL: "world" */
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
  int64_t silence_ns;         /* >= 100 ms: the time for which a rank's library may answer nothing while another rank
                                 waits in a call with it. The library of a waiting rank asks, and the others answer
                                 whatever their programs do. A rank that is silent for this time is stopped, hangs or is
                                 cut off: the call fails on all ranks with TIMED_OUT, and the record names this rank.
                                 Time in which the waiting rank itself does not run does not count. Calls that are over
                                 within a quarter of this time cause no question. Ranks with ENTRAIN_PROGRESS_CALLER are
                                 not asked. Parts and duplicates inherit the setting; a process that joins has
                                 ENTRAIN_SILENCE. 0 (default): ENTRAIN_SILENCE, else no limit: a call waits for a
                                 stopped rank until its deadline. EDiT and ACCO have settings of their own (train.h) */
} entrain_comm_config_t;

static ENTRAIN_INLINE void entrain_comm_config_init(entrain_comm_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_COMM_CONFIG, config, sizeof(*config));
}

/* Creates a communicator of world_size ranks, which find each other in the store. Collective over these ranks; any
 * thread. Blocks until all ranks have arrived and can reach each other, at most timeout_ns. *comm belongs to the
 * caller. Errors:
 * - TIMED_OUT if a rank does not arrive in time; the text names the missing ranks. If one rank reaches its deadline,
 *   the call fails with TIMED_OUT on all ranks.
 * - FAILED_PRECONDITION on all ranks if two processes have the same rank, if two ranks use one runtime, or if an
 *   earlier run or another runtime has used this name in this store.
 * - MISMATCH if two ranks differ in a setting that must be the same; the text names both ranks.
 * - PEER_LOST on the other ranks if the process of one rank ends (even by SIGKILL) while the others wait or connect.
 *   The text names the lost rank. The others receive the error within 2 s, or within 10 s if the host of the lost rank
 *   fails. With etcd and stores of functions within 2 s only if the next lower rank is on the same host, otherwise
 *   within 15 s.
 * - ABORTED on the other ranks if the call of one rank fails for a local reason, such as an unknown algorithm, an
 *   unreadable tuning file or a port range that is taken. The text names this rank and its error. The others are not
 *   told of an INVALID_ARGUMENT that this function finds before it uses the store: they wait until their deadline.
 * - RESOURCE_EXHAUSTED if this runtime has tried to create 65,535 communicators already. Parts, duplicates, every split
 *   (even with color -1) and failed attempts count too.
 *
 * Set the CPU affinity before the runtime creates its first communicator. At that time the library counts the cores of
 * each host on which the calling threads of all ranks may run. The CPU quotas of their cgroups limit this number. The
 * number determines how the ranks of a host wait, and which algorithms they choose. */
ENTRAIN_API entrain_status_t entrain_comm_create(const entrain_comm_config_t* config, entrain_comm_t** comm);

/* Creates a communicator as entrain_comm_create does, but takes rank, size and store from the environment. Reads
 * ENTRAIN_STORE and the variables of a launcher: torchrun, Open MPI, MPICH/PMI, Slurm or Kubernetes
 * (JOB_COMPLETION_INDEX of an Indexed Job, and WORLD_SIZE). entrain-run sets the variables of torchrun. `config` may be
 * NULL; its fields rank, world_size and store are ignored. If the variables of two launchers disagree, the call returns
 * FAILED_PRECONDITION and lists both.
 *
 * If ENTRAIN_STORE is not set, one of the ranks serves the store. The first rule that applies determines this rank:
 * - If MASTER_ADDR and MASTER_PORT are set, as by torchrun: rank 0, at MASTER_ADDR on the first free one of eight ports
 *   that follow from MASTER_PORT. These ports are in ENTRAIN_PORTS, or from 10000 to 28999. MASTER_PORT itself is left
 *   to torch. The other ranks find the store even if other jobs have some of the eight ports.
 * - If the launcher has started all ranks on one host: rank 0. Only processes of the same user can use the store.
 * - In a Slurm step: the first task on the first node of the step.
 * - Otherwise the call returns FAILED_PRECONDITION.
 *
 * ENTRAIN_RUN_ID names the job. Jobs with different ids do not meet, even if they share a store, a directory or a port
 * by mistake. All ranks and newcomers of a job need the same id.
 *
 * If entrain-run --elastic has restarted this process (ENTRAIN_RESTARTS is greater than 0), the call creates no
 * communicator. It joins the existing one, as entrain_comm_join does with this name and these settings. So it blocks
 * until the other ranks call entrain_comm_grow.
 *
 * If none of these variables is set, the process becomes a communicator of one rank. The store must answer within 30 s,
 * or within the timeout if that is shorter. Otherwise the call returns PEER_LOST; the text names the address of the
 * store. */
ENTRAIN_API entrain_status_t entrain_comm_create_from_env(const entrain_comm_config_t* config, entrain_comm_t** comm);

/* Splits `comm`: the ranks that give the same color >= 0 form a part, ordered by key and then by rank. With color -1
 * the rank joins no part, and *part becomes NULL. An untagged collective over `comm`. Parts use the connections
 * of `comm`. But the end of one communicator does not end the others.
 *
 * With `work` (collectives.h) the function only starts the call, and `part` must be NULL. A call with `work` is also
 * allowed in done() of entrain_work_notify. The work is over when every rank has made the call, and fails if the
 * blocking call would fail. Then entrain_comm_split_finish gives the part. A blocking call on one rank matches a
 * started call on another rank. */
ENTRAIN_API entrain_status_t entrain_comm_split(entrain_comm_t* comm, int32_t color, int32_t key,
                                                entrain_comm_t** part, entrain_work_t** work);

/* Creates a communicator of the same ranks. Calls on `comm` and on the copy never wait for each other. Collective.
 * `work` is as in entrain_comm_split: if it is not NULL, `copy` must be NULL, and entrain_comm_split_finish gives the
 * copy. */
ENTRAIN_API entrain_status_t entrain_comm_duplicate(entrain_comm_t* comm, entrain_comm_t** copy, entrain_work_t** work);

/* Writes to *part the communicator that the work of a split or a duplicate has made. The caller destroys it. *part
 * becomes NULL if the color was -1. Never blocks, but returns IN_PROGRESS until the work is complete. Succeeds once for
 * each work. Later calls return FAILED_PRECONDITION. The caller still frees the work. If the caller frees the work
 * without this call, the library aborts the new communicator as soon as it exists. Calls on the new communicator then
 * return ABORTED on all ranks; the text names this rank. Returns ABORTED if neither the parent nor any other
 * communicator of the same runtime exists any more. */
ENTRAIN_API entrain_status_t entrain_comm_split_finish(entrain_work_t* work, entrain_comm_t** part);

/* ---- Growing: other processes join an existing communicator ----------------------------------------------------- */

typedef struct entrain_grow_config_t {
  size_t size;
  entrain_store_t* store; /* the store in which processes apply for membership; the same store on all ranks and
                             newcomers. NULL: the store that entrain_comm_create_from_env finds. The communicator then
                             keeps this store open */
  int32_t min_newcomers;  /* smallest number of newcomers. If fewer have applied, the call admits none. 0: no minimum */
  int32_t max_newcomers;  /* largest number of newcomers. Further newcomers wait for the next call. 0: no limit */
  int64_t wait_ns;        /* longest time to wait for min_newcomers; 0: does not wait */
  int64_t timeout_ns;     /* time limit of the call after this wait; 0: the communicator's default deadline */
} entrain_grow_config_t;

static ENTRAIN_INLINE void entrain_grow_config_init(entrain_grow_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_GROW_CONFIG, config, sizeof(*config));
}

typedef struct entrain_join_config_t {
  size_t size;
  entrain_runtime_t* runtime; /* as in entrain_comm_config_t */
  entrain_store_t* store;     /* the store that the ranks give to entrain_comm_grow. NULL: the store that
                                 entrain_comm_create_from_env finds; ENTRAIN_STORE suffices */
  const char* name;           /* name of the communicator, 1 to 128 bytes. NULL: "world" */
  const char* algorithms;     /* must be the same as on the ranks; see entrain_comm_config_t */
  int64_t timeout_ns;         /* default deadline of operations; 0: ENTRAIN_TIMEOUT, else 30 min */
  const char* tuning;         /* must be the same as on the ranks; see entrain_comm_config_t. The ranks, not this
                                 process, decide whether links are measured */
  int64_t wait_ns;            /* longest time to wait until the ranks admit this process; 0: timeout_ns */
  int32_t determinism;        /* ENTRAIN_DETERMINISM_*; must be the same as on the ranks */
  int32_t reserved;           /* must be 0 */
} entrain_join_config_t;

static ENTRAIN_INLINE void entrain_join_config_init(entrain_join_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_JOIN_CONFIG, config, sizeof(*config));
}

/* Makes a new communicator of the ranks of `comm` and of newcomers. A newcomer is a process that calls
 * entrain_comm_join with the name of `comm`. An untagged collective over `comm`; blocks. `config` may be NULL. The
 * defaults admit all newcomers that have applied, and do not wait for more. Newcomers cost the ranks time only during
 * this call.
 *
 * The ranks of `comm` keep their numbers. Newcomers get the next numbers, in the order in which they applied. The new
 * communicator has the name and the settings of `comm`, and the next generation. *grown belongs to the caller. If the
 * call admits no newcomer, *grown becomes NULL, and the call succeeds. It admits none if none could be connected, or
 * fewer than min_newcomers. Newcomers that have applied then continue to wait.
 *
 * `comm` still works after this call, whatever the result, unless one of its ranks was lost or did not make the call in
 * time. If a newcomer dies or cannot be reached during the call, the ranks and the other newcomers make one more
 * attempt without this newcomer. If a newcomer dies later, after all ranks have connected to it, it is a lost rank of
 * the new communicator: calls on the new communicator return PEER_LOST. When all ranks have made the call, it takes at
 * most wait_ns plus the shortest timeout_ns of the ranks. To replace a lost rank, call entrain_comm_shrink first. All
 * ranks get the same result, except for the last two errors below. Errors (entrain_error_t.scope is CALL unless `comm`
 * has ended):
 * - MISMATCH if ranks differ in min_newcomers, max_newcomers or wait_ns. The text names both ranks and values.
 * - PEER_LOST if the store cannot be reached, or if a rank of `comm` was lost; the text names the rank.
 * - TIMED_OUT if a rank did not make the call in time, or if the time was too short for another attempt.
 * - The error of a rank that could not take part for a local reason. The text names the rank.
 * - ABORTED if a rank of `comm` was lost while the ranks compared the results of an attempt; `comm` ends a moment
 *   later.
 * - STALE_GENERATION if this rank did not answer for too long and the other ranks continue without it. Also if this
 *   rank does not know whether they continue, because a loss ended `comm` before their decision reached this rank. */
ENTRAIN_API entrain_status_t entrain_comm_grow(entrain_comm_t* comm, const entrain_grow_config_t* config,
                                               entrain_comm_t** grown);

/* Joins the communicator `config->name`: applies in the store and blocks until the ranks of this communicator admit
 * this process (entrain_comm_grow), at most wait_ns. `config` may be NULL. Any thread. *comm belongs to the caller. The
 * attempt may fail because of other processes: a rank has died, or too few newcomers have applied. Then the call
 * applies again. If the ranks and this process could not reach each other, it applies again after a pause of 0.5 to 8
 * s. Errors:
 * - TIMED_OUT after wait_ns. The text states the reason: no communicator of this name has ever called
 *   entrain_comm_grow, its ranks have not called it since this process applied, or they have admitted other newcomers.
 * - MISMATCH if algorithms, tuning or determinism differ from those of the ranks. The text names both values.
 * - FAILED_PRECONDITION if this runtime is a rank of the communicator already, or applies twice at the same time. Also
 *   if the ranks refused this process; the text then states their reason, for example that they admit only replicas of
 *   a training run (entrain_edit_join, entrain_acco_join).
 * - PEER_LOST if the store cannot be reached. */
ENTRAIN_API entrain_status_t entrain_comm_join(const entrain_join_config_t* config, entrain_comm_t** comm);

/* ---- Queries, ends ---------------------------------------------------------------------------------------------- */

/* Write the rank of this process, or the number of ranks. All queries of this section are local; any thread. */
ENTRAIN_API entrain_status_t entrain_comm_rank(const entrain_comm_t* comm, int32_t* rank);
ENTRAIN_API entrain_status_t entrain_comm_size(const entrain_comm_t* comm, int32_t* size);
/* Writes to *name the name of the transport that reaches `peer`; "self" for this rank. Static text. */
ENTRAIN_API entrain_status_t entrain_comm_transport(const entrain_comm_t* comm, int32_t peer, const char** name);
/* Writes to *name the algorithm that a call with these arguments uses, for a sum in host memory that is not in place.
 * `collective`: "all_reduce", "broadcast", and so on. Static text. */
ENTRAIN_API entrain_status_t entrain_comm_algorithm(const entrain_comm_t* comm, const char* collective, size_t count,
                                                    entrain_dtype_t dtype, const char** name);

/* Explains the choice of entrain_comm_algorithm in lines of text. The first line gives the chosen algorithm, the
 * reason, and the estimated time of every algorithm that could run the call. The second line gives the link figures
 * behind the estimates and the source of these figures. The method by which a transport sends a message may depend on
 * the size of the message. For each kind of path over such a transport, one more line lists the methods and their
 * message sizes. Writes at most `bytes` bytes to `text`; truncates the text if necessary, and ends it with a zero
 * byte. */
ENTRAIN_API entrain_status_t entrain_comm_explain(const entrain_comm_t* comm, const char* collective, size_t count,
                                                  entrain_dtype_t dtype, char* text, size_t bytes);

typedef struct entrain_comm_stats_t {
  size_t size;
  uint64_t calls;          /* calls started on this rank */
  uint64_t bytes_sent;     /* payload bytes that this rank sent, without control messages and headers */
  uint64_t bytes_received; /* payload bytes that this rank received */
  uint64_t generation;     /* number of membership changes: 0 after entrain_comm_create; entrain_comm_shrink and
                              entrain_comm_grow make a communicator whose number is one more than that of `comm`. A part
                              or a duplicate has the number of its parent. Equal on all ranks */
  uint64_t sequence;       /* number of the last untagged collective that this rank has started
                              (entrain_error_t.sequence); 0 if there is none. Ranks that have started the same calls
                              have the same number. The number is no count of the caller's calls: the creation of the
                              communicator counts too, and some calls count several times. So compare it only with the
                              numbers of other ranks */
} entrain_comm_stats_t;
static ENTRAIN_INLINE void entrain_comm_stats_init(entrain_comm_stats_t* stats) {
  entrain_struct_init(ENTRAIN_STRUCT_COMM_STATS, stats, sizeof(*stats));
}
/* Reads the counters since the communicator was created. A part has counters of its own. Local; any thread. */
ENTRAIN_API entrain_status_t entrain_comm_stats(const entrain_comm_t* comm, entrain_comm_stats_t* stats);

/* Sets the default deadline, timeout_ns > 0, of calls that this rank starts on the communicator later. Parts and
 * duplicates that are created later inherit the deadline. An object of train.h keeps the deadline with which it was
 * created. Local. */
ENTRAIN_API entrain_status_t entrain_comm_set_timeout(entrain_comm_t* comm, int64_t timeout_ns);

/* Writes to `ranks`, in ascending order, the late ranks of the call that ended the communicator with TIMED_OUT. A rank
 * is late if it had not started the call, or did not answer. On input *count is the capacity of `ranks`. On output
 * *count is the number of all late ranks. If this number exceeds the capacity, `ranks` has only the first late ranks.
 * The library keeps at most 128 of them. *count becomes 0 if the communicator has not ended, or has ended for another
 * reason. All ranks that have learned of the end get the same list. */
ENTRAIN_API entrain_status_t entrain_comm_late(const entrain_comm_t* comm, int32_t* ranks, int32_t* count);

/* Returns ENTRAIN_OK while the communicator works, and afterwards the code of the error that ended it. Also writes the
 * record of this error to *error; `error` may be NULL. */
ENTRAIN_API entrain_status_t entrain_comm_error(const entrain_comm_t* comm, entrain_error_t* error);

/* ---- Membership: see docs/elastic.md ---------------------------------------------------------------------------- */

enum { /* entrain_member_t.state */
  ENTRAIN_MEMBER_ALIVE = 0, /* the path to the member works, as far as this rank knows */
  ENTRAIN_MEMBER_LOST = 1,  /* the path to the member is lost: its process has ended, or cannot be reached */
  ENTRAIN_MEMBER_LEFT = 2   /* the member has destroyed the communicator */
};

typedef struct entrain_member_t {
  size_t size;
  entrain_peer_id_t peer_id; /* identity of the member's process */
  int32_t rank;              /* rank of the member in this communicator */
  int32_t parent_rank;       /* rank of the member in the communicator from which entrain_comm_shrink,
                                entrain_comm_split, entrain_comm_duplicate or entrain_comm_grow made this one; -1: there
                                is none, or the member is a newcomer */
  int32_t state;             /* ENTRAIN_MEMBER_* */
  entrain_status_t code;     /* the error of the path if the member is lost; otherwise ENTRAIN_OK */
  char text[256];            /* the text of this error, for example "shm pid 812 died"; otherwise empty */
} entrain_member_t;

static ENTRAIN_INLINE void entrain_member_init(entrain_member_t* member) {
  entrain_struct_init(ENTRAIN_STRUCT_MEMBER, member, sizeof(*member));
}
/* Writes to `members`, in rank order, what this rank knows about the state of each rank. The caller owns the array and
 * has initialised each element. On input *count is the capacity of the array; if it is 0, `members` may be NULL. On
 * output *count is the number of ranks; the function writes no more elements than the capacity. Local; any thread. May
 * be called after the communicator has ended, too. */
ENTRAIN_API entrain_status_t entrain_comm_members(const entrain_comm_t* comm, entrain_member_t* members,
                                                  int32_t* count);

/* Agrees on a flag. *flag becomes the bitwise AND of the flags of all ranks that took part. All these ranks get the
 * same value. A collective of the remaining ranks; it also works after the communicator has ended. Does not wait for a
 * rank whose process has ended, a rank that has destroyed the communicator, or a rank that does not answer. Blocks
 * until the ranks agree, at most for the communicator's default timeout. Any thread. On each rank only one
 * entrain_comm_agree or entrain_comm_shrink of a communicator may run at a time. All ranks must make these calls on a
 * communicator in the same order. Errors leave *flag unchanged:
 * - TIMED_OUT if ranks that live have not made the call; the text names them. The call may be repeated. It then
 *   continues the same agreement, with the flag of the first attempt.
 * - STALE_GENERATION if the other ranks have left this rank out, or if this rank reaches too few ranks to continue
 *   (ENTRAIN_PARTITION_MAJORITY below). Ends the communicator on this rank.
 * - MISMATCH, on all ranks, if one rank calls entrain_comm_shrink instead. The communicator does not end.
 * - ABORTED if another thread destroys the communicator during the call.
 * - UNIMPLEMENTED for more than 1,500 ranks. */
ENTRAIN_API entrain_status_t entrain_comm_agree(entrain_comm_t* comm, uint32_t* flag);

enum { /* entrain_shrink_config_t.partition: the ranks that continue if some ranks cannot reach each other */
  ENTRAIN_PARTITION_MAJORITY = 0, /* if the processes of all missing ranks have certainly ended: all other ranks,
                                     however few they are. If a missing rank may still live: a side with more than half
                                     of the communicator's ranks, or with exactly half of them if the lowest rank is
                                     among these. So at most one side continues */
  ENTRAIN_PARTITION_ANY = 1       /* each side. Two sides may then continue at the same time; the caller must make sure
                                     that this does no harm */
};

typedef struct entrain_shrink_config_t {
  size_t size;
  int64_t timeout_ns;     /* time limit of the call; 0: the communicator's default */
  const int32_t* exclude; /* ranks to leave out although they live. A rank is left out if at least one rank lists it.
                             NULL: none */
  int32_t exclude_count;
  int32_t partition;      /* ENTRAIN_PARTITION_*; the same on all ranks */
  const char* name;       /* name of the new communicator, 1 to 128 bytes; NULL: the name of `comm` */
} entrain_shrink_config_t;

static ENTRAIN_INLINE void entrain_shrink_config_init(entrain_shrink_config_t* config) {
  entrain_struct_init(ENTRAIN_STRUCT_SHRINK_CONFIG, config, sizeof(*config));
}
/* Makes a communicator of the remaining ranks of `comm`, in the order of their ranks. Uses the existing connections.
 * The generation of the new communicator is that of `comm` plus 1. `config` may be NULL (defaults). A collective of the
 * remaining ranks, as entrain_comm_agree is. Call this function when a call on `comm` has failed. `comm` does not
 * change; the caller destroys it. *next belongs to the caller. A rank becomes a member if it lives, makes the call in
 * time, and all other members can reach it. A rank is left out if another rank has received nothing from it for a
 * quarter of timeout_ns or for silence_ns of `comm`, whichever is shorter, but at least 0.5 s and at most 5 s. With
 * ENTRAIN_PROGRESS_CALLER a rank answers only inside calls. If a member dies when it can no longer be left out, the
 * first call on the new communicator returns PEER_LOST. Then shrink the new communicator. Errors: those of
 * entrain_comm_agree, and
 * - INVALID_ARGUMENT, on this rank only. The text names the argument and its value.
 * - RESOURCE_EXHAUSTED, on all ranks, if one of them has created 65,535 communicators.
 *
 * Every later call on `comm` by a rank that was left out returns STALE_GENERATION. If this rank knows which ranks
 * continue, the text names them. */
ENTRAIN_API entrain_status_t entrain_comm_shrink(entrain_comm_t* comm, const entrain_shrink_config_t* config,
                                                 entrain_comm_t** next);

/* Ends the communicator on all ranks. Returns at once. Any thread, at any time. May be called several times. Within 250
 * ms, calls on the communicator return ABORTED with `reason` on all ranks. The parent and the parts of the communicator
 * still work. */
ENTRAIN_API entrain_status_t entrain_comm_abort(entrain_comm_t* comm, const char* reason);

/* Waits until all calls that this rank has started are complete. Returns IN_PROGRESS if timeout_ns passes first. */
ENTRAIN_API entrain_status_t entrain_comm_drain(entrain_comm_t* comm, int64_t timeout_ns);

/* Frees the handle. The rank leaves the communicator when no batch and no object of train.h uses it any more. If it
 * then has unfinished calls, the communicator is aborted on all ranks. Otherwise the function does not disturb the
 * other ranks. Never waits for the network. If another thread is in a blocking call on the communicator, that call
 * returns ABORTED (entrain_comm_drain returns OK). Do not destroy the handle during entrain_comm_grow. No call may
 * begin on a freed handle. */
ENTRAIN_API void entrain_comm_destroy(entrain_comm_t* comm);

/* ---- Flight recorder (docs/flight.md) ------------------------------------------------------------------------- */

/* Writes the last calls of all communicators of this process to a new JSON file. The file has the number, tag,
 * operation, state and times of each call. For an unfinished call, it also has the ranks for which the call waits.
 * `entrain-perf --flight FILES` merges the files of the ranks and names the rank at fault. `path`: the file to create;
 * NULL: a file in ENTRAIN_FLIGHT_DIR. Any thread, at any time, even if another thread hangs in a call. This function
 * waits for the engine for at most 200 ms. Returns FAILED_PRECONDITION if the file exists, or if `path` is NULL and
 * ENTRAIN_FLIGHT_DIR is not set. Returns RESOURCE_EXHAUSTED if `path` is NULL and this process has written 16 files
 * there already, or if the disk is full. */
ENTRAIN_API entrain_status_t entrain_flight_dump(const char* path);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_COMM_H_ */
