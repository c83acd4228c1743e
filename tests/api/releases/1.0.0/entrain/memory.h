/* Memory that other processes of the host can map. Optional: every call accepts any memory. If the sender's memory was
 * allocated or registered here, ranks of the same host and user read large messages in place, so that a reduction
 * combines them without a copy. From other memory, the receiver copies large messages once (process_vm_readv). */
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

/* Allocates `bytes` > 0 bytes of zeroed memory, aligned to a page (4096). The memory, and any part of it, may be a
 * buffer of calls on any communicator of the runtime of `comm`, with any peer. For peers that are reached by a
 * transport other than shm, the memory is ordinary memory. Not a collective; any thread. All pages exist when the
 * function returns. Returns RESOURCE_EXHAUSTED if memory or descriptors run out, and INTERNAL, naming the size, if the
 * system forbids the allocation. Each allocation holds a descriptor in this process, and briefly one in each peer. A
 * peer maps the memory read-only when it receives the first message that lies in the memory. A peer that cannot map the
 * memory copies instead and logs a warning. */
ENTRAIN_API entrain_status_t entrain_mem_alloc(entrain_comm_t* comm, size_t bytes, uint32_t flags, void** memory);

/* Frees memory from entrain_mem_alloc; does nothing for NULL. `comm` is any communicator of the same runtime, even one
 * that has ended. Any thread; may be called from a deleter at any time. While an unfinished call has a buffer in the
 * memory, the library keeps the memory until that call is over, but the caller must not use it any more. Returns
 * INVALID_ARGUMENT for an address that does not come from entrain_mem_alloc, or was freed. Memory that is never freed
 * is released with the runtime, which ends with its last communicator and handle. */
ENTRAIN_API entrain_status_t entrain_mem_free(entrain_comm_t* comm, void* memory);

/* Registers [memory, memory + bytes), bytes > 0, for the calls of the runtime of `comm`, as if it came from
 * entrain_mem_alloc. The memory comes from another allocator, for example malloc or a framework. Not a collective; any
 * thread.
 *
 * Addresses and contents do not change: the library moves the whole pages of the range into memory that peers can map,
 * and maps that memory in their place. It can move only private memory without a file. *mapped becomes the number of
 * bytes moved; `mapped` may be NULL. If *mapped is 0, calls treat the range as any other memory. This is not an error.
 * *mapped is 0 if the range is a file, memory of a device or of another process, or less than a page, or if the system
 * forbids shared memory (memfd_create).
 * - No thread may write to the range while this call or entrain_mem_deregister runs: the write could be lost.
 * - Deregister the memory before you free it, and before you pin it for a device or network adapter. Otherwise another
 *   block may be mapped at these addresses, and peers would read the old contents.
 * - A forked child shares the pages with its parent, as with entrain_mem_alloc. Locks of the pages (mlock) and advice
 *   for huge pages are lost.
 * - The call copies the range, and needs memory for a copy of 32 MiB at a time. So register buffers that many calls
 *   use. A registration holds one descriptor until it is deregistered.
 *
 * Returns FAILED_PRECONDITION, naming the call, if an unfinished call has a buffer in the range; INVALID_ARGUMENT if a
 * part of the range is already allocated or registered here; RESOURCE_EXHAUSTED if memory, descriptors or mappings run
 * out. After an error the memory is unchanged. */
ENTRAIN_API entrain_status_t entrain_mem_register(entrain_comm_t* comm, void* memory, size_t bytes, size_t* mapped);

/* Makes the range that was registered at `memory` private memory again, with its contents; does nothing for NULL.
 * `comm`: as for entrain_mem_free. Any thread. Returns FAILED_PRECONDITION, and changes nothing, if an unfinished call
 * has a buffer in the range. Returns RESOURCE_EXHAUSTED if some pages must stay shared; the range is deregistered in
 * this case too. If the runtime ends first, the pages stay shared, but no peer reads them any more. */
ENTRAIN_API entrain_status_t entrain_mem_deregister(entrain_comm_t* comm, void* memory);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_MEMORY_H_ */
