// Keeps the thread that runs the caller's done() functions. Records the caller's functions during
// which this rank makes no progress, so that an error can name such a function.
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

  // Returns the thread on which the caller's done() functions run. The first call creates it.
  absl::StatusOr<std::shared_ptr<CallbackThread>> Thread() ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes that `who` has entered the function `name`. If `name` is empty, notes that `who` has
  // returned from its function. `who` is in one function at a time.
  void Note(const void* who, absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns kDeadlineExceeded "it is in NAME, which has not returned for 3 s" for the function that
  // was entered first and has not returned. Returns OK if there is no such function, or if it has
  // run for less than `least_ns`.
  absl::Status Inside(int64_t least_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs once that a done() has run for a second, because it delays the next done() functions.
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
  std::vector<Function> functions_ ABSL_GUARDED_BY(mutex_);  // in order of entry
  // The start of the last done() that was logged.
  int64_t told_of_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace entrain
