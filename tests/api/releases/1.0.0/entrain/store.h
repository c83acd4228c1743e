/* Rendezvous stores: small shared maps through which ranks find each other. The library uses a store only while
 * communicators are created, grown or joined. Any thread may call the functions of this header.
 *
 * Security of tcp and local stores: entrain_store_open and entrain_store_serve have no config. Both use the pre-shared
 * key in the file that ENTRAIN_KEY_FILE names, or no key if the variable is not set, and the certificates of
 * ENTRAIN_TLS_CERT. entrain_comm_create_from_env uses the key and the certificates of its runtime
 * (entrain_runtime_config_t) for the store that it opens or serves. A tcp store on another host uses TLS. If there is
 * neither a key nor a certificate, the library refuses such a store (FAILED_PRECONDITION), except with
 * ENTRAIN_INSECURE=1 (SECURITY.md). A server and its clients need the same key. If only one side has a key,
 * entrain_store_open returns FAILED_PRECONDITION; if the keys differ, the first operation returns this error. */
#ifndef ENTRAIN_STORE_H_
#define ENTRAIN_STORE_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the store at `url`:
 *   "mem:NAME"                     within this process; equal names are the same store
 *   "local:NAME"                   for this user's processes on this host; one of them calls entrain_store_serve
 *   "file:DIRECTORY"               for processes of one machine; creates the directory if it does not exist, and
 *                                  keeps its contents: give each run its own directory
 *   "tcp://HOST:PORT[,HOST:PORT]"  a server, which is a process that called entrain_store_serve, or entrain-run
 *   "etcd://HOST:PORT[,HOST:PORT][/PREFIX]"
 *                                  an etcd (v3) cluster with these members. The store depends on no process of the
 *                                  job, and works as long as a majority of the members lives. All keys begin with
 *                                  PREFIX ("entrain" if there is none); values stay in etcd when the job ends. Needs
 *                                  libcurl.so.4
 * Retries the connection for `timeout_ns` (0: 30 s). Then returns PEER_LOST, which names the addresses that were tried.
 * *store belongs to the caller. */
ENTRAIN_API entrain_status_t entrain_store_open(const char* url, int64_t timeout_ns, entrain_store_t** store);

/* Serves a store from this process until the handle is destroyed. The handle can also be used like an opened one.
 * `url`: "tcp://HOST:PORT", where port 0 lets the kernel choose, or "local:NAME", which uses no port and leaves no
 * file. Returns FAILED_PRECONDITION, naming the port or name, if it is in use. */
ENTRAIN_API entrain_status_t entrain_store_serve(const char* url, entrain_store_t** store);

/* Functions of the caller that implement a store on any map that all ranks share, for example c10d's Store, etcd or
 * MPI. Each function returns ENTRAIN_OK or an error. After an error the library function that called it fails: with the
 * same code if the error is a negative ENTRAIN_* code, otherwise with PEER_LOST and the number in the text.
 *
 * Threads: the functions are called only by threads inside entrain_comm_create, entrain_comm_grow, entrain_comm_join or
 * an entrain_store_* function with this store, never by a thread of the library. Several such threads may call at the
 * same time. A function must not use its own store, but may use other stores. Inside a function, calls that need the
 * engine return FAILED_PRECONDITION ("entrain_barrier: called from the store function get, which must not use the
 * engine").
 *
 * The library gives `get` a `timeout_ns` for every wait, but it cannot interrupt a function. So entrain_comm_create can
 * keep its deadline only if the functions return in time.
 *
 * entrain_store_set_fn sets a key to a value of `bytes` bytes. */
typedef int32_t (*entrain_store_set_fn)(void* user, const char* key, const void* value, size_t bytes);
/* Waits at most `timeout_ns` for the key (0: does not wait) and copies at most *bytes bytes of its value to `value`.
 * *bytes becomes the full length of the value. Returns ENTRAIN_TIMED_OUT if the key does not exist. The function may
 * ignore the timeout and never wait; the library then asks again after 1 to 20 ms. */
typedef int32_t (*entrain_store_get_fn)(void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes);
/* Adds `delta` to a counter, which starts at 0, and writes the sum to *sum. Atomic among all processes. The library
 * does not use set or get on the key of a counter. */
typedef int32_t (*entrain_store_add_fn)(void* user, const char* key, int64_t delta, int64_t* sum);
/* Removes a key or a counter; succeeds if the key does not exist. When the library cleans up its own keys, it logs a
 * failure at level debug and ignores the failure. */
typedef int32_t (*entrain_store_remove_fn)(void* user, const char* key);
/* The library calls this function once, when it no longer needs the functions. The calling thread is the one that
 * destroys the handle. If threads are creating communicators from the handle at that time, it is the last of these
 * threads. */
typedef void (*entrain_store_release_fn)(void* user);

typedef struct entrain_store_functions {
  size_t size;
  void* user;                       /* first argument of every function */
  entrain_store_set_fn set;         /* required */
  entrain_store_get_fn get;         /* required */
  entrain_store_add_fn add;         /* required */
  entrain_store_remove_fn remove;   /* NULL: keys stay, so each run needs a fresh map or prefix, and
                                       entrain_store_delete returns UNIMPLEMENTED */
  entrain_store_release_fn release; /* NULL: the library calls nothing */
  const char* host;                 /* host or address. The route to it determines the network interface of each rank,
                                       as the route to the server does with a tcp store; NULL: the default route.
                                       Copied */
} entrain_store_functions_t;

ENTRAIN_API void entrain_store_functions_init_sized(entrain_store_functions_t* functions, size_t bytes);
static ENTRAIN_INLINE void entrain_store_functions_init(entrain_store_functions_t* functions) {
  entrain_store_functions_init_sized(functions, sizeof(*functions));
}

/* Creates a store from the functions. Every rank of a communicator creates one over the same map. The keys of a
 * communicator NAME begin with "entrain/NAME#N/", where N counts the communicators of this name that this handle has
 * made. The keys of entrain_store_set, _get and _add are used unchanged. If `remove` is given, a communicator that has
 * been created leaves no keys. A communicator that could not be created leaves the keys that tell late ranks the
 * reason. entrain_comm_grow and entrain_comm_join use keys that begin with "entrain/NAME#grow/"; three counters among
 * them stay.
 *
 * If a rank's process ends while a communicator is created, the other ranks get PEER_LOST, which names the rank. Ranks
 * on the same host get the error within 2 s. Ranks on other hosts learn of the end only through the functions, and get
 * the error within 15 s. To create a communicator, each rank calls each function a few times; the last rank to arrive
 * calls `get` once for each rank.
 *
 * Returns INVALID_ARGUMENT if a required function is missing; `release` is then not called. */
ENTRAIN_API entrain_status_t entrain_store_create(const entrain_store_functions_t* functions,
                                                  entrain_store_t** store);

/* Returns the URL by which others open this store, with the actual port. For a store of functions the result is
 * "functions:N", which nobody can open; it only names the store in errors. Valid until the store is destroyed. Returns
 * "" if the handle is not a store. */
ENTRAIN_API const char* entrain_store_url(const entrain_store_t* store);

/* Sets the time limit, timeout_ns > 0, of later calls of entrain_store_set, _add and _delete; the initial limit is 30
 * s. These calls return TIMED_OUT when the time has passed; the store may still have executed the request. A store of
 * functions cannot be interrupted: the limit does not bound its functions. Local. */
ENTRAIN_API entrain_status_t entrain_store_set_timeout(entrain_store_t* store, int64_t timeout_ns);

/* Sets a key (at most 512 bytes) to a value (at most 1 MiB). A server keeps at most 64 MiB for each handle and 256 MiB
 * in total, keys included; beyond that the call returns RESOURCE_EXHAUSTED and names the limit. */
ENTRAIN_API entrain_status_t entrain_store_set(entrain_store_t* store, const char* key, const void* value,
                                               size_t bytes);

/* Waits at most `timeout_ns` for the key and copies at most *bytes bytes of its value to `value`. *bytes becomes the
 * full length of the value. Returns TIMED_OUT, naming the key, if the key does not appear in time. */
ENTRAIN_API entrain_status_t entrain_store_get(entrain_store_t* store, const char* key, int64_t timeout_ns,
                                               void* value, size_t* bytes);

/* Adds `delta` to a decimal counter (0 if it does not exist) and writes the sum to *sum. Atomic. */
ENTRAIN_API entrain_status_t entrain_store_add(entrain_store_t* store, const char* key, int64_t delta, int64_t* sum);

/* Removes the key of a value or counter. Returns ENTRAIN_OK even if the key does not exist. Calls that wait for the key
 * continue to wait, and a removed counter starts at 0 again. The space of the key no longer counts against the limits
 * of the server. Do not remove keys that begin with "entrain/": the library needs them while it creates a
 * communicator. */
ENTRAIN_API entrain_status_t entrain_store_delete(entrain_store_t* store, const char* key);

/* Frees the handle; legal at any time. A waiting call, or the creation of a communicator, keeps the store alive until
 * that call is over. */
ENTRAIN_API void entrain_store_destroy(entrain_store_t* store);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_STORE_H_ */
