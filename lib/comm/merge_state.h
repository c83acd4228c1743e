// The state that a reduction of packed contributions keeps between calls. It has the number of
// calls, because random numbers differ from call to call. It also has the remainder that error
// feedback owes, by tag and length.
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
  // Returns 0, 1, 2, ...
  uint64_t NextCall() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls body(owed), which may change the `count` numbers that calls of this tag owe. At first
  // they are zeros.
  void Settle(int64_t tag, int64_t count, absl::FunctionRef<void(float*)> body)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // For callers that keep the state in another form than Save's bytes. No call may be under way.
  // Owed returns the `count` numbers that calls of this tag owe, calls() the number of calls. Both
  // pointers are valid until Load or the destructor.
  float* Owed(int64_t tag, int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t* calls() ABSL_NO_THREAD_SAFETY_ANALYSIS { return &calls_; }

  // Returns the whole state as bytes. Equal states give equal bytes.
  std::string Save() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns INVALID_ARGUMENT, and changes nothing, for bytes that Save did not write.
  absl::Status Load(absl::string_view saved) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Key = std::pair<int64_t, int64_t>;  // tag, length
  mutable absl::Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<Key, std::vector<float>> owed_ ABSL_GUARDED_BY(mutex_);
};

// Returns the task-arithmetic reduction of these settings. It has a state of its own if it needs
// one. Returns CheckMerging's error for bad settings.
absl::StatusOr<Reduction> MakeGta(Merging merging);

}  // namespace entrain
