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

/* The URL by which others open this store, with the real port. Valid until the store is destroyed. */
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

/* Communicators made from the store keep it alive until they stand; destroying the handle is always legal. */
ENTRAIN_API void entrain_store_destroy(entrain_store_t* store);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_STORE_H_ */
