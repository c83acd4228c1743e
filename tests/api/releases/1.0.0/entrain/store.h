/* Rendezvous stores: a small shared map by which ranks find each other. Used while communicators are created, and not
 * afterwards. Any thread.
 *
 * The key of a tcp or local store: entrain_store_open and entrain_store_serve have no config, so both use the pre-shared key in
 * the file that ENTRAIN_KEY_FILE names, and none when it is unset. entrain_comm_create_from_env uses its runtime's key
 * (entrain_runtime_config_t.key_file, else ENTRAIN_KEY_FILE) for the store that it opens or serves. A server and its
 * clients need the same key: FAILED_PRECONDITION otherwise, from entrain_store_open when one side has none, from the first
 * operation when they differ. */
#ifndef ENTRAIN_STORE_H_
#define ENTRAIN_STORE_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the store at `url`:
 *   "mem:NAME"                     this process only; the same name is the same store
 *   "local:NAME"                   this user's processes on this host: entrain_store_serve in one of them
 *   "file:DIRECTORY"               processes of one machine; the directory is created if absent, and keeps
 *                                  its contents: give each run a directory of its own
 *   "tcp://HOST:PORT[,HOST:PORT]"  a server elsewhere: entrain_store_serve in some process, or entrain-run
 * Connecting is retried for `timeout_ns` (0: 30 s), then PEER_LOST names the addresses that were tried. */
ENTRAIN_API entrain_status_t entrain_store_open(const char* url, int64_t timeout_ns, entrain_store_t** store);

/* Serves a store from this process until the handle is destroyed; the handle can be used like an opened one.
 * `url`: "tcp://HOST:PORT", port 0 lets the kernel choose; or "local:NAME", which takes no port and leaves no file. A port
 * or a name in use is FAILED_PRECONDITION naming it. */
ENTRAIN_API entrain_status_t entrain_store_serve(const char* url, entrain_store_t** store);

/* A store that is made of the caller's functions, so that any map which the ranks share serves: c10d's Store, etcd, MPI.
 * Every function returns ENTRAIN_OK, or what is wrong: a negative ENTRAIN_* code stays what it is, and any other number
 * is PEER_LOST with the number in the text; the call of the library that needed the function fails with it.
 *
 * Threads: a function is called by a thread that is inside entrain_comm_create or an entrain_store_* function with this
 * store, and by no other; never by a thread of the library's own. Several such threads may call at the same time. A
 * function must not use the store that it is part of, nor a communicator, and may use other stores.
 *
 * The library bounds every wait by the `timeout_ns` that it gives to `get`; it cannot interrupt a function. A deadline of
 * entrain_comm_create is kept as far as the functions return in time. */
typedef int32_t (*entrain_store_set_fn)(void* user, const char* key, const void* value, size_t bytes);
/* Waits at most `timeout_ns` for the key (0: only looks) and copies at most *bytes bytes of its value to `value`; *bytes
 * becomes the value's whole length. ENTRAIN_TIMED_OUT: the key does not exist. A function that only looks whatever the
 * timeout is legal too: the library then asks again after 1 to 20 ms. */
typedef int32_t (*entrain_store_get_fn)(void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes);
/* Adds to a counter, which begins at 0, and writes the sum. Atomic among all processes. The library does not read or set
 * the key of a counter by other functions. */
typedef int32_t (*entrain_store_add_fn)(void* user, const char* key, int64_t delta, int64_t* sum);
/* Removes a key or a counter; success if there is none. Where the library tidies up after itself, a failure is logged at
 * level debug and ignored. */
typedef int32_t (*entrain_store_remove_fn)(void* user, const char* key);
/* Called once, when the library needs the functions no more: by the thread that destroys the handle, or by the last one
 * that creates a communicator from it. */
typedef void (*entrain_store_release_fn)(void* user);

typedef struct entrain_store_functions {
  size_t size;
  void* user;                       /* given to every function */
  entrain_store_set_fn set;         /* required */
  entrain_store_get_fn get;         /* required */
  entrain_store_add_fn add;         /* required */
  entrain_store_remove_fn remove;   /* NULL: keys stay, each run needs a fresh map or prefix, and entrain_store_delete is
                                       UNIMPLEMENTED */
  entrain_store_release_fn release; /* NULL: nothing is released */
  const char* host;                 /* a host or address towards which every rank's network interface is chosen, as the
                                       server's is of a tcp store; NULL: by the default route. Copied */
} entrain_store_functions_t;

ENTRAIN_API void entrain_store_functions_init_sized(entrain_store_functions_t* functions, size_t bytes);
static ENTRAIN_INLINE void entrain_store_functions_init(entrain_store_functions_t* functions) {
  entrain_store_functions_init_sized(functions, sizeof(*functions));
}

/* Makes the store. All ranks of a communicator make one each over the same map. The keys of a communicator NAME begin with
 * "entrain/NAME#N/", where N counts the communicators of this name that this handle has made; other keys are those that
 * entrain_store_set, _get and _add are given, as they are. With `remove`, a communicator that has been made leaves no key;
 * one that could not be made leaves those that tell late ranks why.
 *
 * A rank that ends while a communicator is made: PEER_LOST naming it, on the other ranks of its host within 2 s and
 * elsewhere within 15 s, because only the functions tell of it there. Creating calls each function a few times a rank; the
 * rank that comes last calls `get` once for every rank.
 *
 * INVALID_ARGUMENT for functions that are missing; then `release` is not called. */
ENTRAIN_API entrain_status_t entrain_store_create(const entrain_store_functions_t* functions,
                                                  entrain_store_t** store);

/* The URL by which others open this store, with the real port; of a store of functions "functions:N", which names it in
 * errors and opens nothing. Valid until the store is destroyed. */
ENTRAIN_API const char* entrain_store_url(const entrain_store_t* store);

/* Sets a key (at most 512 bytes) to a value (at most 1 MiB). A server keeps 64 MiB for each handle and 256 MiB in all, keys
 * included; RESOURCE_EXHAUSTED names the limit. */
ENTRAIN_API entrain_status_t entrain_store_set(entrain_store_t* store, const char* key, const void* value,
                                               size_t bytes);

/* Waits up to `timeout_ns` for the key and copies at most *bytes of its value to `value`; *bytes becomes the value's
 * whole length. TIMED_OUT names the key. */
ENTRAIN_API entrain_status_t entrain_store_get(entrain_store_t* store, const char* key, int64_t timeout_ns,
                                               void* value, size_t* bytes);

/* Adds to a decimal counter (absent: 0) and writes the sum. Atomic. */
ENTRAIN_API entrain_status_t entrain_store_add(entrain_store_t* store, const char* key, int64_t delta, int64_t* sum);

/* Removes a key, a value's or a counter's; ENTRAIN_OK also if there is none. Whoever waits for the key goes on waiting, and
 * a counter begins at 0 again. What the key took of the server's limits is free again. Keys that begin with "entrain/" are
 * the library's own: a communicator that is being made must find them. */
ENTRAIN_API entrain_status_t entrain_store_delete(entrain_store_t* store, const char* key);

/* Communicators made from the store keep it alive until they stand, and so do calls that wait; destroying the handle is
 * always legal. */
ENTRAIN_API void entrain_store_destroy(entrain_store_t* store);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_STORE_H_ */
