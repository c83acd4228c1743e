/* Entrain: collective communication for loosely synchronised training. This header includes all others but mpi.h.
 *
 * Conventions for all calls of the library:
 *
 *  1 Handles are opaque. The caller destroys every handle that it has created. Destroying NULL does nothing. Handles
 *    may be destroyed in any order: a part (a communicator that a split has made) remains valid without its parent, a
 *    work without its communicator, and an EDiT object without its shard and its mesh. Memory that is lent until an
 *    object is destroyed stays lent while any object that was created from that object exists. A call with a handle of
 *    another kind returns INVALID_ARGUMENT. A call with a destroyed handle returns INVALID_ARGUMENT too, as long as the
 *    memory of the handle is not reused. Destroy functions log a handle of another kind or a destroyed handle, and do
 *    nothing.
 *  2 A call that can fail returns entrain_status_t. Output parameters come last and are written only on success.
 *    entrain_last_error() returns the text of this thread's last failure, and entrain_last_error_record() its record.
 *  3 A struct begins with `size` and has an init function. entrain_x_init(&x) writes the defaults, and writes to `size`
 *    the size of the struct in the caller's header. After that the library takes every value literally: no value stands
 *    for "default" unless the field says so. Other languages call the exported function entrain_x_init_sized(&x,
 *    sizeof(x)). It writes no byte beyond the given size, and does nothing for NULL. The library refuses a struct that
 *    was never initialised (size 0) or whose size ends inside a field. If a struct is longer than the library knows,
 *    the unknown tail must be zero. If a struct is shorter, the missing fields take their defaults. The library copies
 *    structs and whatever they point to (texts, arrays), so the caller may free them when the call returns, unless a
 *    field says "lent". docs/versions.md states what later versions may change.
 *  4 Every call that blocks has a non-blocking form or a time limit. The non-blocking form is a `work` parameter, or a
 *    function entrain_..._start or entrain_..._work (see comm.h, and the table in train.h). The time limit is a timeout
 *    parameter. Destroy functions never wait for other ranks. If `work` is NULL, the call blocks. Otherwise the buffers
 *    are lent to the library until entrain_work_test or entrain_work_wait reports that the call is over. If the work is
 *    freed earlier, the buffers stay lent until the call is over. By default a thread of the runtime makes progress.
 *    With ENTRAIN_PROGRESS_CALLER, calls make progress only while some thread is inside entrain_work_test,
 *    entrain_work_wait or a blocking call; entrain_work_test on any unfinished work makes progress for all calls of its
 *    runtime.
 *  5 All ranks of a communicator start its untagged calls in the same order. Calls with a user tag are matched by the
 *    tag and may start in any order. Any thread may call. The library serialises the calls on one communicator, so two
 *    threads that make untagged calls on one communicator must agree on their order.
 *  6 Times are nanoseconds of the monotonic clock. The timeout of a call bounds the operation: when it expires, the
 *    communicator of the operation, and no other, ends with TIMED_OUT. A timeout of 0 means the communicator's default.
 *    The timeout of a wait bounds only the wait: when it expires, the wait returns ENTRAIN_IN_PROGRESS and changes
 *    nothing.
 *  7 INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED and RESOURCE_EXHAUSTED fail only the call. The rank has then
 *    not made the call, and may still make it while the other ranks wait. If the rank exits or destroys its
 *    communicator instead, the waiting ranks receive the error of its failed call. PEER_LOST, TIMED_OUT, MISMATCH and
 *    ABORTED end the communicator: every later call on it returns the first such error. To recover, make a communicator
 *    of the remaining ranks (entrain_comm_shrink), or create a new one; a communicator cannot be repaired.
 *    STALE_GENERATION says that the others have gone on without this rank.
 *  8 Counts are numbers of elements, 64 bits wide; 0 is legal. A buffer must be aligned for its element type. The
 *    comment of a call says which buffers make it an in-place call. The library refuses all other overlaps.
 *  9 The library throws no exception, does not return errors in errno, and installs a signal handler only if
 *    ENTRAIN_FLIGHT_SIGNAL asks for one. After fork() the child cannot use the library: its calls return
 *    FAILED_PRECONDITION. The child may continue without exec, as data loaders do. A fork handler of the library closes
 *    the library's sockets in the child, so that peers notice the death of the parent even if children survive.
 *
 * A setting is taken from the first of these sources that has it: the call, the config struct, ENTRAIN_* environment
 * variables, the launcher's variables, the default. */
#ifndef ENTRAIN_ENTRAIN_H_
#define ENTRAIN_ENTRAIN_H_

#include "entrain/types.h"
#include "entrain/store.h"
#include "entrain/comm.h"
#include "entrain/collectives.h"
#include "entrain/memory.h"
#include "entrain/optim.h"
#include "entrain/train.h"

#endif /* ENTRAIN_ENTRAIN_H_ */
