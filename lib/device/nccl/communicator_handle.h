// One non-blocking communicator of NCCL, from joining to its end. NCCL's functions that end a
// communicator may block, so they run on a thread of their own.
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

// Thread safety: any thread may call Abort and Gone. All other functions must be called by one
// thread at a time.
class CommunicatorHandle : public std::enable_shared_from_this<CommunicatorHandle> {
 public:
  // Returns at once. Begun returns true when all ranks have joined.
  static absl::StatusOr<std::shared_ptr<CommunicatorHandle>> Join(const Functions& functions,
                                                                  const UniqueId& id, int rank,
                                                                  int size, Device& device);

  // Calls f(communicator) with the device current. Returns ABORTED after Abort.
  absl::Status With(absl::FunctionRef<absl::Status(Comm)> f);
  // Returns true if NCCL has begun the last operation. NCCL connects two ranks when they first
  // exchange data. So the result may stay false until the other ranks have made the call. Returns
  // an error if one has occurred in the meantime.
  absl::StatusOr<bool> Begun();

  // Returns at once. Operations under way end soon. Idempotent.
  void Abort();
  // Must be called after Abort. Returns true if the communicator has ended, or one second after
  // Abort. NCCL has then ended its work on streams, but may still free memory.
  bool Gone();
  // Must be the last call. Returns at once. If the communicator was not aborted, data already sent
  // is still delivered.
  void Close();

  // Blocks until all aborted or closed communicators of the process have ended. Returns false at
  // the deadline.
  static bool AwaitEnds(Deadline give_up);

 private:
  CommunicatorHandle(const Functions& functions, Device& device)
      : functions_(functions), device_(device) {}
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !in_call_; }
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return comm_ == nullptr; }
  // Runs `end` on a new thread. AwaitEnds waits for all these threads.
  void Start(void (CommunicatorHandle::*end)());
  void EndAborted();
  void EndClosed();
  bool Finalize(Comm comm);

  const Functions functions_;
  Device& device_;

  absl::Mutex mutex_;
  Comm comm_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: none yet, or ended
  bool in_call_ ABSL_GUARDED_BY(mutex_) = false, aborted_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t aborted_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // time of Abort
};

}  // namespace entrain::nccl
