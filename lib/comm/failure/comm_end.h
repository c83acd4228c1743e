// The status with which a communicator has ended. If several statuses are set, the first counts.
//
// Thread safety: any thread.
#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace entrain {

class CommEnd {
 public:
  // Returns true if the communicator has ended. status() then returns an error. Acquire: pairs with
  // the release in Set.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Returns OK while the communicator has not ended.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  // Returns true if this rank has ended the communicator, at the wish of its user or for an error of
  // its own.
  bool here() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return here_;
  }
  // Ends the communicator with `why`, which must be an error. Keeps the first status.
  void Set(const absl::Status& why, bool here = false) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) {
      status_ = why;
      here_ = here;
    }
    ended_.store(true, std::memory_order_release);
  }
  // Replaces the status. `why` is the same error with details that became known after Set, or an
  // error with a higher priority (Ending::EndAsStale).
  void Complete(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_ = why;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool here_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> ended_{false};
};

}  // namespace entrain
