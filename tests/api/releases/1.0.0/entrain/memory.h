/* Memory that the other processes of the host can see. Optional: every call takes any memory. Large messages out of
 * memory that was allocated or registered here are read by ranks of the same host and user where they lie, so that a
 * reduction combines them without a copy. Large messages out of other memory are copied once, by the receiver
 * (process_vm_readv). */
#ifndef ENTRAIN_MEMORY_H_
#define ENTRAIN_MEMORY_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* bits of entrain_mem_alloc's flags */
       ENTRAIN_MEM_HUGE_PAGES =
           1 /* in pages of 2 MiB: reserved ones if the system has enough to give, else transparent ones;
                                where it refuses both, in usual pages: that is no failure */
};

/* `bytes` > 0 of zeroed memory, aligned to a page (4096), for calls on any communicator of the runtime that `comm`
 * belongs to, with any peers: where they are reached by a transport other than shm it is ordinary memory. Any part of it
 * may be a buffer. Not a collective; any thread. Every page exists when it returns: a shortage (memory, descriptors) is
 * RESOURCE_EXHAUSTED, and what the system forbids INTERNAL, naming the size. Each allocation holds a descriptor, here and,
 * for a moment, in each peer; peers map it, read only, when the first message out of it comes, and if they cannot, they
 * copy, with a warning in their log. */
ENTRAIN_API entrain_status_t entrain_mem_alloc(entrain_comm_t* comm, size_t bytes, uint32_t flags,
                                               void** memory);

/* Frees what entrain_mem_alloc gave (NULL: does nothing). `comm`: any communicator of the same runtime, also one that has
 * ended. FAILED_PRECONDITION naming the call while one that is not done has a buffer there: nothing is freed then, and a
 * deleter that cannot try again later has to wait for the work first. INVALID_ARGUMENT for addresses that
 * entrain_mem_alloc did not give, or that have been freed. What is never freed goes when the runtime goes, with its last
 * communicator and handle. Any thread. */
ENTRAIN_API entrain_status_t entrain_mem_free(entrain_comm_t* comm, void* memory);

/* Makes [memory, memory + bytes), bytes > 0, which somebody else has allocated (malloc, a framework's tensor), such memory
 * for the calls of the runtime that `comm` belongs to. Addresses and contents stay: the library moves the whole pages of
 * the range into memory that peers can map, and maps it in their place. Only private memory without a file can be moved.
 * *mapped (NULL: not asked for) is the number of bytes that were moved; 0 (a file, memory of a device or of another
 * process, less than a page) is no error, and calls treat the memory as any other. Not a collective; any thread.
 *  - No thread writes to the range while this call or entrain_mem_deregister runs: such a write could be lost.
 *  - The memory is deregistered before it is freed, or given to a device or a network adapter (pinned). Otherwise another
 *    block may come to lie at these addresses, and peers would read what was there before.
 *  - A child that is forked shares the pages with its parent, as it shares those of entrain_mem_alloc. A lock of the pages
 *    (mlock) and advice for huge pages are lost.
 * Time and, for a moment, memory: a copy of the range, 32 MiB at a time; worth it for buffers that many calls use. It
 * holds a descriptor until it is deregistered. FAILED_PRECONDITION names a call that is not done and has a buffer there;
 * INVALID_ARGUMENT: a part of the range is allocated or registered already; RESOURCE_EXHAUSTED: a shortage of memory,
 * descriptors or mappings. After an error the memory is as it was. */
ENTRAIN_API entrain_status_t entrain_mem_register(entrain_comm_t* comm, void* memory, size_t bytes,
                                                  size_t* mapped);

/* Makes the range that was registered from `memory` on (NULL: does nothing) private memory again, with its contents.
 * `comm`: as entrain_mem_free. FAILED_PRECONDITION: a call has a buffer there; nothing is done then.
 * RESOURCE_EXHAUSTED: it is registered no more, and some pages stay shared. When the runtime goes first, the pages stay
 * shared, which no peer reads then. Any thread. */
ENTRAIN_API entrain_status_t entrain_mem_deregister(entrain_comm_t* comm, void* memory);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_MEMORY_H_ */
