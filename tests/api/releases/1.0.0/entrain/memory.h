/* Memory that the other processes of the host can see. Optional: every call takes any memory. Large messages out of
 * memory from here are read by ranks of the same host and user where they lie, so that a reduction combines them without
 * a copy. Memory that somebody else has allocated cannot be made such memory: the kernel lets processes map what a
 * descriptor stands for, and has no descriptor for anonymous memory. Large messages out of it are copied once, by the
 * receiver (process_vm_readv), and nothing has to be registered for that. */
#ifndef ENTRAIN_MEMORY_H_
#define ENTRAIN_MEMORY_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* bits of entrain_mem_alloc's flags */
  ENTRAIN_MEM_HUGE_PAGES = 1 /* in pages of 2 MiB: reserved ones if the system has enough to give, else transparent ones;
                                where it refuses both, in usual pages: that is no failure */
};

/* `bytes` > 0 of zeroed memory, aligned to a page (4096), for calls on any communicator of the runtime that `comm`
 * belongs to, with any peers: where they are reached by a transport other than shm it is ordinary memory. Any part of it
 * may be a buffer. Not a collective; any thread. Every page exists when it returns: a shortage (memory, descriptors) is
 * RESOURCE_EXHAUSTED, and what the system forbids INTERNAL, naming the size. Each allocation holds a descriptor, here and,
 * for a moment, in each peer; peers map it, read only, when the first message out of it comes, and if they cannot, they
 * copy, with a warning in their log. */
ENTRAIN_API entrain_status_t entrain_mem_alloc(entrain_comm_t* comm, size_t bytes, uint32_t flags, void** memory);

/* Frees what entrain_mem_alloc gave (NULL: does nothing). `comm`: any communicator of the same runtime, also one that has
 * ended. FAILED_PRECONDITION naming the call while one that is not done has a buffer there: nothing is freed then, and a
 * deleter that cannot try again later has to wait for the work first. INVALID_ARGUMENT for addresses that
 * entrain_mem_alloc did not give, or that have been freed. What is never freed goes when the runtime goes, with its last
 * communicator and handle. Any thread. */
ENTRAIN_API entrain_status_t entrain_mem_free(entrain_comm_t* comm, void* memory);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_MEMORY_H_ */
