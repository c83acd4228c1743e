/* Entrain: collective communication for loosely synchronised training. This header includes the rest.
 *
 * Conventions, for every call of the library:
 *
 *  1 Handles are opaque. Whoever created one destroys it; destroying NULL does nothing. Destroying what others still
 *    depend on is fine: a part outlives its parent communicator, a work its communicator. The exceptions say "must
 *   outlive" (mesh, shard and EDiT objects: destroy them in the reverse order of their creation).
 *    A handle of another kind, or one that was destroyed, is INVALID_ARGUMENT as far as can be known: where nothing else
 *    lies in its memory by now. A destroy function then says so in the log and does nothing.
 *  2 Every call that can fail returns entrain_status_t. Outputs come last and are written only on success. The text of
 *    this thread's last failure is entrain_last_error(), the whole record entrain_last_error_record().
 *  3 A struct starts with `size` and has an init function: entrain_x_init(&x) writes the size that the caller was
 *    compiled with, and the defaults; after that every value is literal. What the library exports is
 *    entrain_x_init_sized(&x, sizeof(x)), which writes no byte behind that size (NULL: nothing), for other languages to
 *    call. A struct that was never initialised (size 0), or whose size cuts a field, is refused; a longer one than this
 *    library knows is accepted only if the unknown tail is zero; of a shorter one, the missing fields take their
 *    defaults. Structs are copied: they and what they point to (texts, arrays) may be freed when the call returns,
 *    unless a field says "lent". docs/versions.md says what later versions may change.
 *  4 Every call that blocks has a form that does not, or a time limit: a `work` parameter, an entrain_..._start or _work beside it
 *    (comm.h; train.h has a table), or a timeout. Destroy functions never wait for other ranks.
 *    work == NULL makes a call blocking. Otherwise the buffers are lent to the library until the work is done (test or
 *    wait says so), also when the handle was freed before.
 *    Calls move on by themselves where the runtime has a thread (the default); with ENTRAIN_PROGRESS_CALLER only inside
 *    entrain_work_test, entrain_work_wait and blocking calls, on whichever thread is in one: entrain_work_test on any
 *    unfinished work makes progress for all calls of its runtime.
 *  5 All ranks of a communicator start untagged calls in the same order. Calls that carry a user tag are matched by
 *    it and may be started in any order. Any thread may call; calls on one communicator are serialised inside, so two
 *    threads that make untagged calls on one communicator must agree on the order themselves.
 *  6 A timeout on a call bounds the operation: when it expires the communicator it ran on ends with TIMED_OUT, no
 *    other. A timeout on a wait bounds only the wait: it returns ENTRAIN_IN_PROGRESS and changes nothing.
 *    Times are nanoseconds of the monotonic clock. 0 as an operation's timeout: the communicator's default.
 *  7 What an error harms: INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED and RESOURCE_EXHAUSTED only the call:
 *    the rank has not made it, and may yet while the others wait; if it ends instead, they learn of the error.
 *    PEER_LOST, TIMED_OUT, MISMATCH and ABORTED harm the communicator: every later call on it returns the first such
 *    error. Recovery is a new one, never repair in place.
 *  8 Counts are elements, 64 bits wide. Buffers need the alignment of their element type. In place: pass the same
 *    pointer where the call says so; buffers that overlap in another way are refused. A count of 0 is legal.
 *  9 No exception, no signal handler, no errno crosses this boundary. After fork() the child
 *    cannot use the library: its calls return FAILED_PRECONDITION. It may live on without exec, as data loaders do: it
 *    closes its copies of the library's sockets, so that peers notice the parent's death whatever its children do.
 *
 * Settings, first match wins: the call, the config struct, ENTRAIN_* environment variables, the launcher's variables,
 * the default. */
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
