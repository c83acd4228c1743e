// The state that a packed reduction (packed_call.h) keeps between calls. The state has two parts:
//   the number of calls. The random numbers depend on it, so they differ from call to call.
//   the remainders of error feedback, by tag and length: values that earlier calls did not send.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/call.h"
#include "lib/base/merging.h"

namespace entrain {

class MergeState {
 public:
  // Counts a call. Returns the number of calls before it: 0, 1, 2, ...
  uint64_t NextCall() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls body(owed) under the lock. `owed` points to the `count` remainders of calls with this tag
  // and length, initially 0. `body` may change the remainders. `body` must not use this MergeState.
  void Settle(int64_t tag, int64_t count, absl::FunctionRef<void(float*)> body)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Owed and calls() are for callers that save the state in another form. They must not be used
  // while a call of the reduction is under way. Owed returns the `count` remainders of calls with
  // this tag and length. calls() returns a pointer to the number of calls. The two pointers are
  // valid until Load or the destructor.
  float* Owed(int64_t tag, int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t* calls() ABSL_NO_THREAD_SAFETY_ANALYSIS { return &calls_; }

  // Returns the whole state as bytes. Equal states give equal bytes.
  std::string Save() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces the state by the state in `saved`, which must come from Save. If `saved` is malformed,
  // returns kInvalidArgument and changes nothing.
  absl::Status Load(absl::string_view saved) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Key = std::pair<int64_t, int64_t>;  // tag, length
  mutable absl::Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<Key, std::vector<float>> owed_ ABSL_GUARDED_BY(mutex_);
};

// Returns the task-arithmetic reduction with these settings. If its contributions are packed, the
// reduction gets a new MergeState. If the settings are invalid, returns CheckMerging's error.
absl::StatusOr<Reduction> MakeGta(Merging merging);

}  // namespace entrain
