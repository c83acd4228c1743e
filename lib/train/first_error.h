// Stores the first error of an object. All later calls of the object return this error.
//
// Thread safety: any thread.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace entrain {

class FirstError {
 public:
  void Note(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_.Update(why);
  }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  // Returns the first error, or `status` if there is none.
  absl::Status Or(const absl::Status& status) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_.ok() ? status : status_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
