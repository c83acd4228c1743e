// What a reduction that packs contributions remembers between calls: how many it has made, since its random numbers
// differ from call to call, and what error feedback still owes, by tag and length.
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
  // 0, 1, 2, ...
  uint64_t NextCall() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls body(owed) with the `count` numbers that calls of this tag owe, at first zeros, for it to replace.
  void Settle(int64_t tag, int64_t count, absl::FunctionRef<void(float*)> body)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // For whoever keeps it otherwise than as Save's bytes, while no call is under way: what calls of this tag owe, `count` numbers,
  // and how many calls there were. Lent until Load, or as long as this lives.
  float* Owed(int64_t tag, int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t* calls() ABSL_NO_THREAD_SAFETY_ANALYSIS { return &calls_; }

  // All of it, as bytes; the same bytes for the same state.
  std::string Save() const ABSL_LOCKS_EXCLUDED(mutex_);
  // INVALID_ARGUMENT for what Save did not write; then nothing has changed.
  absl::Status Load(absl::string_view saved) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Key = std::pair<int64_t, int64_t>;  // tag, length
  mutable absl::Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<Key, std::vector<float>> owed_ ABSL_GUARDED_BY(mutex_);
};

// The task-arithmetic reduction of these settings, with a state of its own where it needs one; CheckMerging's error.
absl::StatusOr<Reduction> MakeGta(Merging merging);

}  // namespace entrain
