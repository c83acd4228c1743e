/* Memory that other processes of the host can map. The use of such memory is optional, because every call accepts any
 * memory. If the sender's buffer was allocated or registered by these functions, ranks of the same host and user read
 * large messages in place. A reduction then combines the data without a copy. If the sender's buffer is in other
 * memory, the receiver copies each large message once (process_vm_readv). */
#ifndef ENTRAIN_MEMORY_H_
#define ENTRAIN_MEMORY_H_

#include "entrain/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* bits of `flags` of entrain_mem_alloc */
  ENTRAIN_MEM_HUGE_PAGES = 1 /* use pages of 2 MiB: reserved pages if the system has enough, otherwise transparent huge
                                pages. If the system refuses both, the allocation uses pages of the usual size and
                                succeeds */
};

/* Allocates `bytes` > 0 bytes of zeroed memory, aligned to a page (4096). All of the memory, or any part of it, may be
 * a buffer of calls on every communicator of the runtime of `comm`. Transports other than shm treat the memory as
 * ordinary memory. Not a collective; any thread. All pages exist when the function returns. Returns RESOURCE_EXHAUSTED
 * if memory or file descriptors run out. Returns INTERNAL, with the size in the text, if the system forbids the
 * allocation. Each allocation holds a file descriptor in this process, and for a moment one in each peer. A peer maps
 * the memory read-only when it receives the first message that lies in the memory. A peer that cannot map the memory
 * copies instead and logs a warning. */
ENTRAIN_API entrain_status_t entrain_mem_alloc(entrain_comm_t* comm, size_t bytes, uint32_t flags, void** memory);

/* Frees memory from entrain_mem_alloc; does nothing for NULL. `comm` is any communicator of the same runtime, even one
 * that has ended. Any thread; at any time, for example in a destructor. If an unfinished call has a buffer in the
 * memory, the library keeps the memory until that call is over. The caller must not use the memory any more. Returns
 * INVALID_ARGUMENT for an address that entrain_mem_alloc did not return, or that was freed already. Memory that the
 * caller never frees is released when the runtime ends, that is, with its last communicator and handle. */
ENTRAIN_API entrain_status_t entrain_mem_free(entrain_comm_t* comm, void* memory);

/* Registers [memory, memory + bytes), bytes > 0, for the calls of the runtime of `comm`. Calls then treat this range
 * like memory from entrain_mem_alloc. The range comes from another allocator, for example malloc or a framework. Not a
 * collective; any thread.
 *
 * The library copies the whole pages of the range to memory that peers can map, and maps that memory at the addresses
 * of the range. So addresses and contents do not change. *mapped becomes the number of bytes in these pages; `mapped`
 * may be NULL. If *mapped is 0, calls treat the range as any other memory. This is not an error. *mapped is 0 in these
 * cases: the range contains no whole page; a part of the range is not private memory of this process, but a mapped
 * file, shared memory or device memory; or the system forbids shared memory (memfd_create).
 * - No thread may write to the range while this call or entrain_mem_deregister runs: the write could be lost.
 * - Deregister the memory before you free it, and before you pin it for a device or network adapter. Otherwise other
 *   pages may be mapped at these addresses, and peers would still read the old pages.
 * - A forked child shares the pages with its parent, as it shares memory of entrain_mem_alloc. The range loses locks of
 *   its pages (mlock) and advice about huge pages (madvise).
 * - The call copies the range in pieces, and needs memory for one more piece of 32 MiB. Because of the copy, register
 *   only buffers that many calls use. A registration holds one file descriptor until it is deregistered.
 *
 * Returns FAILED_PRECONDITION, with the name of the call, if an unfinished call has a buffer in the range. Returns
 * INVALID_ARGUMENT if a part of the range is registered already or comes from entrain_mem_alloc. Returns
 * RESOURCE_EXHAUSTED if memory, file descriptors or mappings run out. After an error the memory is unchanged. */
ENTRAIN_API entrain_status_t entrain_mem_register(entrain_comm_t* comm, void* memory, size_t bytes, size_t* mapped);

/* Makes the registered range that begins at `memory` private memory again. Its contents stay. Does nothing for NULL.
 * `comm`: as for entrain_mem_free. Any thread. Returns FAILED_PRECONDITION, and changes nothing, if an unfinished call
 * has a buffer in the range. Returns RESOURCE_EXHAUSTED if some pages must stay shared; the range is deregistered in
 * this case too. If the runtime ends before this call, the pages stay shared, but no peer reads them any more. */
ENTRAIN_API entrain_status_t entrain_mem_deregister(entrain_comm_t* comm, void* memory);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_MEMORY_H_ */
