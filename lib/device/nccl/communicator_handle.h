// One communicator of NCCL's, non-blocking, from joining to its end: NCCL may wait in any of its
// functions that end one, so these run on a thread of their own.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"
#include "lib/device/device.h"
#include "lib/device/nccl/nccl_functions.h"

namespace entrain::nccl {

// Thread safety: Abort and Gone by any thread; everything else by one at a time.
class CommunicatorHandle : public std::enable_shared_from_this<CommunicatorHandle> {
 public:
  // Returns at once; Begun says when all ranks have come.
  static absl::StatusOr<std::shared_ptr<CommunicatorHandle>> Join(const Functions& functions,
                                                                  const UniqueId& id, int rank,
                                                                  int size, Device& device);

  // f(communicator), with the device current. ABORTED after Abort.
  absl::Status With(absl::FunctionRef<absl::Status(Comm)> f);
  // Whether NCCL has begun what it was given: connections are made at their first use, so the others
  // may have to come for it. What has gone wrong meanwhile.
  absl::StatusOr<bool> Begun();

  // Returns at once. What is under way ends soon. Idempotent.
  void Abort();
  // After Abort: it has ended, or has had the time to end what is on streams and only frees memory.
  bool Gone();
  // The last call. Returns at once; what was sent still goes out, unless it was aborted.
  void Close();

  // Waits until all that were aborted or closed have ended; false: not by then.
  static bool AwaitEnds(Deadline give_up);

 private:
  CommunicatorHandle(const Functions& functions, Device& device)
      : functions_(functions), device_(device) {}
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !in_call_; }
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return comm_ == nullptr; }
  // On a thread of its own, which AwaitEnds waits for.
  void Start(void (CommunicatorHandle::*end)());
  void EndAborted();
  void EndClosed();
  bool Finalize(Comm comm);

  const Functions functions_;
  Device& device_;

  absl::Mutex mutex_;
  Comm comm_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: none yet, or none any more
  bool in_call_ ABSL_GUARDED_BY(mutex_) = false, aborted_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t aborted_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // when
};

}  // namespace entrain::nccl
