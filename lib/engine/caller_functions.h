// Functions of the caller's that run on other threads than the driver: the thread of done(), and functions without
// which this rank does not go on.
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
  // The clock outlives it.
  explicit CallerFunctions(const Clock& clock) : clock_(clock) {}

  // The thread of done(). The first call makes it.
  absl::StatusOr<std::shared_ptr<CallbackThread>> Thread() ABSL_LOCKS_EXCLUDED(mutex_);
  // `who` has entered the function of this name, or, if the name is empty, has returned from its function. `who` is in
  // one function at a time.
  void Note(const void* who, absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the function that was entered first: kDeadlineExceeded "it is in NAME, which has not returned for 3 s". OK: it
  // has not run for `least_ns`, or there is none.
  absl::Status Inside(int64_t least_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs, once, a done() that has run for a second: it holds up those behind it.
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
  std::vector<Function> functions_ ABSL_GUARDED_BY(mutex_);  // in the order of their begin
  int64_t told_of_ns_ ABSL_GUARDED_BY(mutex_) =
      0;  // begin of the done() that the log has been told of
};

}  // namespace entrain
