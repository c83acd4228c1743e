/* Rendezvous stores: small shared maps through which ranks find each other. The library uses a store only to create,
 * grow and join communicators, and to find newcomers of a training run (ENTRAIN_ADMIT_EXCHANGE in train.h). Any thread
 * may call the functions of this header.
 *
 * Security of tcp and local stores: entrain_store_open and entrain_store_serve have no config struct. Both use the
 * pre-shared key in the file that ENTRAIN_KEY_FILE names. If this variable is not set, there is no key. Both also use
 * the TLS files that ENTRAIN_TLS_CERT, ENTRAIN_TLS_KEY and ENTRAIN_TLS_CA name. For the store that
 * entrain_comm_create_from_env opens or serves, this function uses the key and the TLS files of its runtime
 * (entrain_runtime_config_t). The connection to a tcp store on another host uses TLS. If there is neither a key nor a
 * certificate, the library refuses a tcp store on another host (FAILED_PRECONDITION). ENTRAIN_INSECURE=1 permits such a
 * store (SECURITY.md). A server and its clients need the same key. If only one side has a key, entrain_store_open
 * returns FAILED_PRECONDITION. If the keys differ, the first operation returns this error. */
#ifndef ENTRAIN_STORE_H_
#define ENTRAIN_STORE_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the store at `url`:
 *   "mem:NAME"                     within this process; equal names are the same store
 *   "local:NAME"                   for this user's processes on this host; one of them calls entrain_store_serve
 *   "file:DIRECTORY"               for processes of one machine. Creates the directory if it does not exist. The files
 *                                  stay after the run, so give each run its own directory
 *   "tcp://HOST:PORT[,HOST:PORT]"  a server. The server is entrain-run, or a process that called entrain_store_serve
 *   "etcd://HOST:PORT[,HOST:PORT][/PREFIX]"
 *                                  an etcd (v3) cluster with these members. The store depends on no process of the
 *                                  job, and works as long as a majority of the etcd members lives. All keys begin with
 *                                  PREFIX ("entrain" if there is none). Values stay in etcd when the job ends. Needs
 *                                  libcurl.so.4
 *   "env:"                         the store in which entrain_comm_create_from_env meets, for a process that joins others:
 *                                  ENTRAIN_STORE, or that of rank 0 at MASTER_ADDR and MASTER_PORT. No rank is needed
 * Tries to connect for `timeout_ns` (0: 30 s). Then returns PEER_LOST; the text names the addresses. *store belongs to
 * the caller. */
ENTRAIN_API entrain_status_t entrain_store_open(const char* url, int64_t timeout_ns, entrain_store_t** store);

/* Serves a store from this process until the handle is destroyed. The handle can also be used like an opened one. `url`
 * is "tcp://HOST:PORT" or "local:NAME". With port 0 the kernel chooses the port. A local store uses no port and leaves
 * no file. Returns FAILED_PRECONDITION if the port or the name is in use; the text names it. */
ENTRAIN_API entrain_status_t entrain_store_serve(const char* url, entrain_store_t** store);

/* Functions of the caller that implement a store on any map that all ranks share, for example c10d's Store, etcd or
 * MPI. Each function returns ENTRAIN_OK or an error. If a function returns an error, the library call that needs the
 * function fails. If the error is a negative ENTRAIN_* code, the call returns this code. Otherwise it returns
 * PEER_LOST, and its text has the number.
 *
 * Threads: the functions run on threads that are inside entrain_comm_create, entrain_comm_grow, entrain_comm_join or an
 * entrain_store_* function with this store. They never run on a thread of the library. Several threads may call them at
 * the same time. A function must not use its own store, but may use other stores. Inside a function, calls that need
 * the engine return FAILED_PRECONDITION ("entrain_barrier: called from the store function get, which must not use the
 * engine").
 *
 * The library gives `get` a `timeout_ns` for every wait, but cannot interrupt a function that does not return. So
 * entrain_comm_create keeps its deadline only if the functions return in time.
 *
 * The first function type sets a key to a value of `bytes` bytes. */
typedef int32_t (*entrain_store_set_fn)(void* user, const char* key, const void* value, size_t bytes);
/* Waits at most `timeout_ns` for the key (0: does not wait) and copies at most *bytes bytes of its value to `value`.
 * *bytes becomes the full length of the value. Returns ENTRAIN_TIMED_OUT if the key does not exist. The function may
 * ignore `timeout_ns` and return at once; the library then calls it again after 1 to 20 ms. */
typedef int32_t (*entrain_store_get_fn)(void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes);
/* Adds `delta` to a counter, which starts at 0, and writes the sum to *sum. Atomic among all processes. The library
 * does not use set or get on the key of a counter. */
typedef int32_t (*entrain_store_add_fn)(void* user, const char* key, int64_t delta, int64_t* sum);
/* Removes a key or a counter; succeeds if the key does not exist. When the library removes its own keys, it ignores an
 * error of this function and logs it at level debug. */
typedef int32_t (*entrain_store_remove_fn)(void* user, const char* key);
/* The library calls this function once, when it no longer needs the functions. It is usually called by the thread that
 * destroys the handle. If other threads create communicators from the handle at that time, the last of these threads
 * calls it. */
typedef void (*entrain_store_release_fn)(void* user);

typedef struct entrain_store_functions_t {
  size_t size;
  void* user;                       /* first argument of every function */
  entrain_store_set_fn set;         /* required */
  entrain_store_get_fn get;         /* required */
  entrain_store_add_fn add;         /* required */
  entrain_store_remove_fn remove;   /* NULL: keys stay, so each run needs a new map or prefix. entrain_store_delete then
                                       returns UNIMPLEMENTED */
  entrain_store_release_fn release; /* NULL: the library calls nothing */
  const char* host;                 /* a host name or address. Each rank uses the network interface of its route to this
                                       host. (With a tcp store, this is the route to the server.) NULL: the default
                                       route. Copied */
} entrain_store_functions_t;

static ENTRAIN_INLINE void entrain_store_functions_init(entrain_store_functions_t* functions) {
  entrain_struct_init(ENTRAIN_STRUCT_STORE_FUNCTIONS, functions, sizeof(*functions));
}

/* Creates a store from the functions. Every rank of a communicator creates such a store over the same map. The keys of
 * a communicator NAME begin with "entrain/NAME#N/". N counts the attempts of this runtime to create a communicator of
 * this name from this handle. The keys of entrain_store_set, _get and _add are used unchanged. If `remove` is given,
 * the library removes the keys of a communicator when the communicator has been created. If the creation fails, the
 * keys that tell late ranks the reason stay. entrain_comm_grow and entrain_comm_join use keys that begin with
 * "entrain/NAME#grow/". Three of these keys, which are counters, stay.
 *
 * If a rank's process ends while a communicator is created, the other ranks get PEER_LOST; the text names the rank. The
 * next lower rank (after rank 0 the highest) watches this process. If it is on the same host, all ranks get the error
 * within 2 s, otherwise within 15 s. To create a communicator, each rank calls each function a few times; the last rank
 * to arrive calls `get` once for each rank.
 *
 * Returns INVALID_ARGUMENT if a required function is missing; `release` is then not called. */
ENTRAIN_API entrain_status_t entrain_store_create(const entrain_store_functions_t* functions,
                                                  entrain_store_t** store);

/* Returns the URL by which others open this store, with the actual port. For a store of functions the result is
 * "functions:N". This text names the store in errors; no process can open it. Valid until the store is destroyed.
 * Returns "" if the handle is not a store. */
ENTRAIN_API const char* entrain_store_url(const entrain_store_t* store);

/* Sets the time limit, timeout_ns > 0, of later calls of entrain_store_set, _add and _delete, and of entrain_store_get
 * with timeout_ns 0; the initial limit is 30 s. These calls return TIMED_OUT when the time has passed, although the
 * store may have executed the request. The limit does not bound the functions of entrain_store_create, because the
 * library cannot interrupt them. Local. */
ENTRAIN_API entrain_status_t entrain_store_set_timeout(entrain_store_t* store, int64_t timeout_ns);

/* Sets a key (at most 512 bytes) to a value (at most 1 MiB). A server keeps at most 64 MiB for each handle and 256 MiB
 * in total, keys included; a mem: store keeps at most 64 MiB. Beyond that the call returns RESOURCE_EXHAUSTED; the text
 * names the limit. */
ENTRAIN_API entrain_status_t entrain_store_set(entrain_store_t* store, const char* key, const void* value,
                                               size_t bytes);

/* Waits at most `timeout_ns` for the key and copies at most *bytes bytes of its value to `value`. *bytes becomes the
 * full length of the value. Returns TIMED_OUT if the key does not appear in time; the text names the key. With
 * timeout_ns 0 the call does not wait for the key: it asks once, within the limit of entrain_store_set_timeout. */
ENTRAIN_API entrain_status_t entrain_store_get(entrain_store_t* store, const char* key, int64_t timeout_ns,
                                               void* value, size_t* bytes);

/* Adds `delta` to a decimal counter (0 if it does not exist) and writes the sum to *sum. Atomic. */
ENTRAIN_API entrain_status_t entrain_store_add(entrain_store_t* store, const char* key, int64_t delta, int64_t* sum);

/* Removes the key of a value or counter. Returns ENTRAIN_OK even if the key does not exist. Calls that wait for the key
 * continue to wait, and a removed counter starts at 0 again. The space of the key no longer counts against the limits
 * of the server. Do not remove keys that begin with "entrain/": the library needs them while it creates a
 * communicator. */
ENTRAIN_API entrain_status_t entrain_store_delete(entrain_store_t* store, const char* key);

/* Frees the handle; legal at any time. A call that uses the store at that time keeps the store alive until the call is
 * over. */
ENTRAIN_API void entrain_store_destroy(entrain_store_t* store);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_STORE_H_ */
