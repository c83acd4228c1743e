/* Entrain: collective communication for loosely synchronised training. This header includes all other headers except
 * mpi.h (communicators from MPI) and optim.h (optimizers over flat arrays).
 *
 * Conventions for all calls of the library:
 *
 *  1 Handles are opaque. The caller destroys every handle that it has created. Destroying NULL does nothing. Handles
 *    may be destroyed in any order. A part (a communicator that a split has made) stays valid after its parent is
 *    destroyed. A work stays valid after its communicator, and an EDiT object after its shard and its mesh. If memory
 *    is lent until an object is destroyed, it stays lent until all objects that were created from that object are
 *    destroyed, too. A call with a handle of another kind returns INVALID_ARGUMENT. A call with a destroyed handle does
 *    so too, unless the memory of the handle has been reused. A destroy function that gets such a handle writes an
 *    error to the log and does nothing else.
 *  2 A call that can fail returns entrain_status_t. Output parameters come last, before `work`, and are written only on
 *    success. entrain_last_error() returns the text of this thread's last failure, and entrain_last_error_record() its
 *    record.
 *  3 A struct entrain_x_t begins with the field `size` and has an init function. entrain_x_init(&x) writes the
 *    defaults, and sets `size` to the size of the struct in the caller's header. Later the library takes every value
 *    literally: no value means "default" unless the comment of the field says so. Other languages call
 *    entrain_struct_init (types.h). The library refuses a struct that was never initialised (size 0) or whose size ends
 *    inside a field. If a struct is longer than the library's own, the bytes that the library does not know must be
 *    zero. If a struct is shorter, the missing fields take their defaults. The library copies structs, and the texts
 *    and arrays that they point to. So the caller may free them when the call returns. The only exceptions are fields
 *    whose comments say "lent". docs/versions.md states what later versions may change.
 *  4 Every call that blocks for other ranks has a last argument `work`, or a function entrain_..._work, or a time
 *    limit. With `work` NULL the call blocks. Otherwise the call starts, and returns at once: *work belongs to the
 *    caller, who frees it. Buffers and output arguments are lent to the library until entrain_work_test or
 *    entrain_work_wait reports that the call is over. A call that was started cannot be withdrawn. If the work is freed
 *    earlier, the call continues, and its buffers and output arguments stay lent until it is over. A function
 *    entrain_..._work makes a work that only observes: it is over when the blocking call would return at once. The
 *    caller still makes that call (see the table in train.h). If a call has neither `work` nor such a function, a
 *    timeout parameter or the deadline of the communicator bounds it. Destroy functions wait for other ranks only where
 *    their comments say so, and then for seconds. The loop that makes progress for the calls of a runtime is its
 *    engine. By default a thread of the library runs this loop. With ENTRAIN_PROGRESS_CALLER, calls make progress only
 *    while some thread is inside entrain_work_test, entrain_work_wait or a blocking call. It is enough to test any
 *    unfinished work: entrain_work_test makes progress for all calls of the runtime.
 *  5 All ranks of a communicator start its untagged calls in the same order. Calls with a user tag are matched by the
 *    tag and may start in any order. Any thread may call, and the library needs no lock of the caller. But if several
 *    threads make untagged calls on one communicator, the program must give these calls the same order on all ranks.
 *  6 Times are nanoseconds of the monotonic clock. The timeout of a call bounds the operation. If this timeout expires,
 *    the communicator of the operation ends with TIMED_OUT; no other communicator ends. A timeout of 0 means the
 *    communicator's default. The timeout of a wait bounds the wait, not the operation. If this timeout expires, the
 *    wait returns ENTRAIN_IN_PROGRESS and changes nothing.
 *  7 INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED and RESOURCE_EXHAUSTED fail only the call. The rank has then
 *    not made the call, and may still make it while the other ranks wait. If the rank exits or destroys its
 *    communicator instead, the waiting ranks receive the error of its failed call (of collectives.h), at the latest at
 *    their deadline. But if a call that has begun lacks memory or descriptors, the communicator ends with
 *    RESOURCE_EXHAUSTED on all ranks (entrain_comm_error). PEER_LOST, TIMED_OUT, MISMATCH and ABORTED end the
 *    communicator: every later call that is started on it returns the first such error. An ended communicator cannot be
 *    repaired. To recover, make a communicator of the remaining ranks (entrain_comm_shrink), or create a new one.
 *    STALE_GENERATION ends the communicator on this rank, because the other ranks continue without this rank.
 *  8 A count is a number of elements. Counts are 64 bits wide, and 0 is legal. A buffer must be aligned for its element
 *    type. If a call can work in place, its comment says where the two buffers must lie. The library refuses all other
 *    overlaps of input and output. It does not compare the parts of a list.
 *  9 The library throws no exception, does not return errors in errno, and installs a signal handler only if
 *    ENTRAIN_FLIGHT_SIGNAL asks for one. After fork() the child cannot use the library: its calls return
 *    FAILED_PRECONDITION. Apart from that, the child may run without exec, for example as a data loader. A fork handler
 *    of the library closes the library's sockets in the child. So peers notice the death of the parent even if the
 *    child lives on.
 * 10 The library computes in a floating-point environment of its own, on its threads and inside calls: round to
 *    nearest, subnormal numbers keep their value, no exception traps. So all ranks get the same bits, whatever the
 *    environments of their threads. A call restores the environment of its thread, but may raise exception flags.
 *    Functions of the caller run in the library's environment.
 *
 * Several sources can give a setting. The library takes the first source of this list that gives it: the call, the
 * config struct, ENTRAIN_* environment variables, the launcher's variables, the default. */
#ifndef ENTRAIN_ENTRAIN_H_
#define ENTRAIN_ENTRAIN_H_

#include "entrain/types.h"
#include "entrain/store.h"
#include "entrain/comm.h"
#include "entrain/collectives.h"
#include "entrain/memory.h"
#include "entrain/train.h"

#endif /* ENTRAIN_ENTRAIN_H_ */
