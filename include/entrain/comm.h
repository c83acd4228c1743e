/* Runtimes and communicators: create, split, query, abort, destroy; what went wrong. */
#ifndef ENTRAIN_COMM_H_
#define ENTRAIN_COMM_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Versions and names. Any thread, never fail. -------------------------------------------------------------- */

#define ENTRAIN_VERSION_MAJOR 1
#define ENTRAIN_VERSION_MINOR 0
#define ENTRAIN_VERSION_PATCH 0

/* major * 10000 + minor * 100 + patch of the library that is loaded. */
ENTRAIN_API int32_t entrain_version(void);
/* "ENTRAIN_PEER_LOST"; "ENTRAIN_?" for values that are no status. */
ENTRAIN_API const char* entrain_status_name(entrain_status_t status);
/* "f32"; NULL for values that are no type. */
ENTRAIN_API const char* entrain_dtype_name(entrain_dtype_t dtype);
/* Bytes of one element; 0 for values that are no type. */
ENTRAIN_API size_t entrain_dtype_size(entrain_dtype_t dtype);
/* "sum"; NULL for values that are no operator. */
ENTRAIN_API const char* entrain_op_name(entrain_op_t op);

/* ---- What went wrong ------------------------------------------------------------------------------------------ */

enum { /* what must be rebuilt after an error: entrain_error_t.scope */
  ENTRAIN_SCOPE_NONE = 0,
  ENTRAIN_SCOPE_CALL = 1, /* nothing but the call */
  ENTRAIN_SCOPE_COMM = 2  /* the communicator */
};
enum { /* entrain_error_t.phase */
  ENTRAIN_PHASE_NONE = 0,
  ENTRAIN_PHASE_BOOTSTRAP = 1, /* exchanging addresses through the store */
  ENTRAIN_PHASE_CONNECT = 2,   /* reaching a peer */
  ENTRAIN_PHASE_CHECK = 3,     /* checking arguments or comparing calls */
  ENTRAIN_PHASE_TRANSFER = 4,  /* waiting for a peer's data, or for a peer to take ours */
  ENTRAIN_PHASE_REDUCE = 5     /* combining what arrived */
};

typedef struct entrain_error {
  size_t size;
  entrain_status_t code;
  int32_t scope;
  int32_t phase;
  int32_t guilty_rank;       /* in the communicator concerned; -1: none known, or no member of it */
  entrain_peer_id_t peer_id; /* the guilty rank's process, member or not; zero: none known */
  uint64_t generation;       /* of the communicator; 0 in this version */
  uint64_t sequence;         /* number of the call, from 1, among the communicator's untagged collectives, those of one
                                tag, or the messages to or from one peer: the same on all its ranks; 0: no call */
  int64_t tag;               /* the call's user tag; -1: untagged */
  int64_t elapsed_ns;        /* since the call started */
  int64_t deadline_ns;       /* the time the call was given */
  int64_t bytes_done;        /* received before it failed */
  int32_t sys_errno;         /* 0: none */
  int32_t guilty_world_rank; /* in the communicator from which the one concerned was split; -1: none known */
  char operation[32];        /* "all_reduce"; empty: no call */
  char peer_address[128];    /* "tcp 10.0.0.5:4711"; empty: none known */
  char text[512];            /* one line, everything above in words */
} entrain_error_t;

ENTRAIN_API void entrain_error_init_sized(entrain_error_t* error, size_t bytes);
static ENTRAIN_INLINE void entrain_error_init(entrain_error_t* error) {
  entrain_error_init_sized(error, sizeof(*error));
}
/* The text of this thread's last failed call; "" when none failed. Valid until the next failure on this thread. */
ENTRAIN_API const char* entrain_last_error(void);
/* The record of this thread's last failed call. */
ENTRAIN_API entrain_status_t entrain_last_error_record(entrain_error_t* error);

/* ---- Runtime -------------------------------------------------------------------------------------------------- */

enum { /* who makes progress: entrain_runtime_config_t.progress */
  ENTRAIN_PROGRESS_THREAD = 0, /* a thread of the library's; a waiting caller takes over its loop */
  ENTRAIN_PROGRESS_CALLER = 1  /* only callers inside entrain_work_wait, entrain_work_test, entrain_comm_drain and
                                  blocking calls: a program that computes with calls under way calls entrain_work_test
                                  now and then. Forgoes overlap; failures are noticed only while somebody calls */
};

/* A line of the log; `level`: 0 error, 1 warning, 2 info, 3 debug. May be called from any thread; must not call the
 * library. */
typedef void (*entrain_log_fn)(int32_t level, const char* line, void* user);

typedef struct entrain_runtime_config {
  size_t size;
  const char* transports;       /* "shm,tcp"; NULL: ENTRAIN_TRANSPORTS, else all, best first for each pair */
  const char* interface_filter; /* which address to bind and publish; NULL: ENTRAIN_INTERFACE, else the route to the store */
  const char* ports;            /* "LOW-HIGH" to listen on; NULL: ENTRAIN_PORTS, else the kernel chooses */
  const char* key_file;         /* pre-shared key, 16 bytes to 4 KiB, of connections between ranks and to the store that
                                   entrain_comm_create_from_env opens or serves; NULL: ENTRAIN_KEY_FILE, else none */
  const char* host_id;          /* NULL: ENTRAIN_HOST_ID, else boot id + network namespace + IPC namespace */
  int32_t progress;             /* ENTRAIN_PROGRESS_* */
  int32_t engines;              /* loops; 0: one. More than one is refused in this version */
  entrain_log_fn log;           /* NULL: standard error. Process-wide: the last one given wins */
  void* log_user;
} entrain_runtime_config_t;

ENTRAIN_API void entrain_runtime_config_init_sized(entrain_runtime_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_runtime_config_init(entrain_runtime_config_t* config) {
  entrain_runtime_config_init_sized(config, sizeof(*config));
}
/* What a process has once: loop, listener, pools, identity. Most programs never call this: a communicator created
 * without one uses the process's default runtime, made on first use. Ranks that are threads of one process need a
 * runtime each. Communicators keep their runtime alive; destroy returns at once, and the last user frees. */
ENTRAIN_API entrain_status_t entrain_runtime_create(const entrain_runtime_config_t* config,
                                                    entrain_runtime_t** runtime);
ENTRAIN_API void entrain_runtime_destroy(entrain_runtime_t* runtime);
/* This runtime's identity, as peers name it in error records. */
ENTRAIN_API entrain_status_t entrain_runtime_peer_id(const entrain_runtime_t* runtime, entrain_peer_id_t* id);

/* ---- Communicators -------------------------------------------------------------------------------------------- */

enum { /* what the bits of a reduction may depend on: entrain_comm_config_t and entrain_call_options_t.determinism.
          Every rank gets the same bits, always. */
  ENTRAIN_DETERMINISM_DEFAULT = 0,   /* of a call: as its communicator; of a communicator: ENTRAIN_DETERMINISM, else the
                                        next. Parts and duplicates inherit it */
  ENTRAIN_DETERMINISM_ALGORITHM = 1, /* the contributions and the algorithm that was taken, which depends on size,
                                        ranks, hosts, paths and tuning: equal calls give equal bits */
  ENTRAIN_DETERMINISM_RANK_ORDER = 2 /* the contributions in rank order and nothing else: also the same bits over other
                                        transports, on other hosts, with other algorithms asked for. Algorithms that
                                        combine otherwise are passed over: large buffers on many ranks may take longer */
};

typedef struct entrain_comm_config {
  size_t size;
  entrain_runtime_t* runtime; /* NULL: the process's default one */
  entrain_store_t* store;     /* required by entrain_comm_create; must be the same store on all ranks */
  const char* name;           /* communicators made from one store at the same time need different names; NULL: "world" */
  int32_t rank, world_size;   /* 0 <= rank < world_size */
  const char* algorithms;     /* "all_reduce:ring@1M-inf,broadcast:tree"; NULL: ENTRAIN_ALGORITHMS, else by cost */
  int64_t timeout_ns;         /* default deadline of operations, and of creation; 0: ENTRAIN_TIMEOUT, else 30 min */
  const char* tuning;         /* file of entrain-perf --tune, to choose algorithms by; "probe": links are measured when
                                 the ranks have met; "": the library's own values; NULL: ENTRAIN_TUNING, else the same */
  int32_t determinism;        /* ENTRAIN_DETERMINISM_*; the same on all ranks */
  int32_t reserved;           /* 0 */
} entrain_comm_config_t;

ENTRAIN_API void entrain_comm_config_init_sized(entrain_comm_config_t* config, size_t bytes);
static ENTRAIN_INLINE void entrain_comm_config_init(entrain_comm_config_t* config) {
  entrain_comm_config_init_sized(config, sizeof(*config));
}

/* Creates a communicator of world_size ranks that meet in the store. Blocks until all have come and can reach each
 * other, or until timeout_ns: then TIMED_OUT names the ranks that did not come. Two processes with one rank:
 * FAILED_PRECONDITION on all. Ranks whose settings that must agree differ: MISMATCH naming both. A rank that ends while the
 * others wait or connect, by kill -9 too: PEER_LOST naming it, on all within 2 s (a host that has gone: 10 s). A rank whose
 * own call fails for a reason of its own (a setting, no transport): ABORTED naming it and the reason on the others; one
 * whose time is up: TIMED_OUT on all. A process makes at most 65,535 communicators in its life, parts and copies counted,
 * since the number of one that has ended is not used again; then RESOURCE_EXHAUSTED. How ranks of a host wait, and
 * what algorithms they choose, depends on the cores that the calling threads may run on together, as far as the CPU quotas
 * of their cgroups reach, when the runtime makes its first communicator: pin before. */
ENTRAIN_API entrain_status_t entrain_comm_create(const entrain_comm_config_t* config, entrain_comm_t** comm);

/* The same with rank, size and store taken from the environment: ENTRAIN_STORE, and the variables of torchrun
 * (entrain-run sets the same), Open MPI, MPICH/PMI or Slurm. If two launchers disagree: FAILED_PRECONDITION listing
 * both. Without ENTRAIN_STORE a rank serves the store itself: rank 0 at MASTER_ADDR on MASTER_PORT + 1, where these are set,
 * as torchrun does; else, when the launcher started all ranks on one host, rank 0 for the processes of this user there;
 * else, in a Slurm step, the first task of its first node; else FAILED_PRECONDITION. With none of these variables set the
 * process is a world of one. The store must answer
 * within 30 s (or the timeout, when that is shorter), then PEER_LOST names its address. `config` may be NULL; its rank, world_size and
 * store are ignored. */
ENTRAIN_API entrain_status_t entrain_comm_create_from_env(const entrain_comm_config_t* config, entrain_comm_t** comm);

/* A collective over `comm` (untagged): ranks that give the same color >= 0 form a part, numbered by (key, rank). Color
 * -1: in no part, *part becomes NULL. Parts share connections and nothing else: one failing leaves the other alone. */
ENTRAIN_API entrain_status_t entrain_comm_split(entrain_comm_t* comm, int32_t color, int32_t key,
                                                entrain_comm_t** part);

/* A communicator of the same ranks, independent of this one: calls on the two never wait for each other. Collective. */
ENTRAIN_API entrain_status_t entrain_comm_duplicate(entrain_comm_t* comm, entrain_comm_t** copy);

/* The same two calls without waiting, also from done() of entrain_work_notify: *work (entrain_work_test and so on in
 * collectives.h) is over when every rank has made the call, and fails where the blocking call would. A blocking call on one
 * rank and a started one on another match. Then entrain_comm_split_finish gives the part. */
ENTRAIN_API entrain_status_t entrain_comm_split_start(entrain_comm_t* comm, int32_t color, int32_t key,
                                                      entrain_work_t** work);
ENTRAIN_API entrain_status_t entrain_comm_duplicate_start(entrain_comm_t* comm, entrain_work_t** work);
/* *part: the communicator that the work has made, the caller's to destroy; NULL: color -1. Never blocks: IN_PROGRESS while the
 * work is not over. Once: then FAILED_PRECONDITION; the work is still to be freed. A work that is freed before aborts its
 * part as soon as there is one: calls on it are ABORTED on all ranks, naming this one. Needs the runtime: the parent, or
 * another communicator of it, must still be there (else ABORTED). */
ENTRAIN_API entrain_status_t entrain_comm_split_finish(entrain_work_t* work, entrain_comm_t** part);

ENTRAIN_API entrain_status_t entrain_comm_rank(const entrain_comm_t* comm, int32_t* rank);
ENTRAIN_API entrain_status_t entrain_comm_size(const entrain_comm_t* comm, int32_t* size);
/* The name of the transport used to reach `peer` ("self" for oneself). Static text. */
ENTRAIN_API entrain_status_t entrain_comm_transport(const entrain_comm_t* comm, int32_t peer, const char** name);
/* The algorithm that a call of this shape takes. `collective`: "all_reduce", "broadcast", ... Static text. */
ENTRAIN_API entrain_status_t entrain_comm_algorithm(const entrain_comm_t* comm, const char* collective, size_t count,
                                                    entrain_dtype_t dtype, const char** name);

/* The same with reasons, as text of two lines: what was chosen, by what, and the estimated time of every algorithm that
 * could serve; the figures behind the estimates and where they come from. `text` of `bytes` bytes, cut to fit, ended by
 * a zero. */
ENTRAIN_API entrain_status_t entrain_comm_explain(const entrain_comm_t* comm, const char* collective, size_t count,
                                                  entrain_dtype_t dtype, char* text, size_t bytes);

typedef struct entrain_comm_stats_t {
  size_t size;
  uint64_t calls;          /* started on this rank */
  uint64_t bytes_sent;     /* payload handed to transports by this rank, control and headers excluded */
  uint64_t bytes_received;
} entrain_comm_stats_t;
ENTRAIN_API void entrain_comm_stats_init_sized(entrain_comm_stats_t* stats, size_t bytes);
static ENTRAIN_INLINE void entrain_comm_stats_init(entrain_comm_stats_t* stats) {
  entrain_comm_stats_init_sized(stats, sizeof(*stats));
}
/* Counted since creation; parts count for themselves. */
ENTRAIN_API entrain_status_t entrain_comm_stats(const entrain_comm_t* comm, entrain_comm_stats_t* stats);

/* Sets the default deadline of the calls that are started on the communicator from now on, `timeout_ns` > 0, on this rank.
 * Parts and copies that are made later inherit it; objects of train.h keep the one that they were created with. */
ENTRAIN_API entrain_status_t entrain_comm_set_timeout(entrain_comm_t* comm, int64_t timeout_ns);

/* *sequence: the number of the last untagged collective that this rank has started, as in entrain_error_t; 0: none. Equal on
 * ranks that have started the same calls. Making the communicator counts, and some calls count more than once: compare
 * numbers between ranks, and not with a count of calls. */
ENTRAIN_API entrain_status_t entrain_comm_sequence(const entrain_comm_t* comm, uint64_t* sequence);

/* The ranks that had not come to the call by whose deadline the communicator ended, in rank order: those that had not
 * started it, and those that did not answer. `ranks` has room for *count (at most 128 are kept); *count becomes how many
 * there are. 0: the communicator has not ended, or by something else. The same on every rank that learned of the end. */
ENTRAIN_API entrain_status_t entrain_comm_late(const entrain_comm_t* comm, int32_t* ranks, int32_t* count);

/* ENTRAIN_OK while the communicator works, otherwise the code that ended it; `error` (may be NULL) gets the record. */
ENTRAIN_API entrain_status_t entrain_comm_error(const entrain_comm_t* comm, entrain_error_t* error);

/* Ends the communicator on all ranks, from any thread, at any time, any number of times. Returns at once; every call on
 * it, here and elsewhere, returns ABORTED with `reason` within 250 ms. Parts and parents go on. */
ENTRAIN_API entrain_status_t entrain_comm_abort(entrain_comm_t* comm, const char* reason);

/* Waits until every call started here is done, or timeout_ns has passed (then IN_PROGRESS). */
ENTRAIN_API entrain_status_t entrain_comm_drain(entrain_comm_t* comm, int64_t timeout_ns);

/* Frees the handle. Unfinished calls are aborted, on all ranks; with none, peers are not disturbed. Never waits for
 * the network. A blocking call that another thread is inside of returns ABORTED; a call must not begin on a freed handle. */
ENTRAIN_API void entrain_comm_destroy(entrain_comm_t* comm);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_COMM_H_ */
