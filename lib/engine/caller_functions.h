// Owns the thread that runs the caller's done() functions. Also records which functions of the
// caller are running, because this rank makes no progress while it waits for one. An error can then
// name the function.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/callback_thread.h"
#include "lib/base/clock.h"

namespace entrain {

class CallerFunctions {
 public:
  // The clock must outlive this object.
  explicit CallerFunctions(const Clock& clock) : clock_(clock) {}

  // Returns the thread that runs the caller's done() functions. The first call creates it.
  absl::StatusOr<std::shared_ptr<CallbackThread>> Thread() ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that `who` has called the function `name`. An empty `name` records that the function
  // has returned. Each `who` has at most one function at a time.
  void Note(const void* who, absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Finds the oldest call of a function that has not returned. If the function has run for at least
  // `least_ns`, returns kDeadlineExceeded "it is in NAME, which has not returned for 3 s".
  // Otherwise returns OK.
  absl::Status Inside(int64_t least_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs a warning if a done() has been running for a second, once for each done(). All later
  // done() functions wait for it.
  void TellOfDone() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Function {
    const void* who;
    std::string name;
    int64_t since_ns;
  };

  const Clock& clock_;
  absl::Mutex mutex_;
  std::shared_ptr<CallbackThread> thread_ ABSL_GUARDED_BY(mutex_);
  std::vector<Function> functions_ ABSL_GUARDED_BY(mutex_);  // oldest first
  // since_ns of the last done() that was logged.
  int64_t told_of_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace entrain
