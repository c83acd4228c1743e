// Decides which layers EDiT exchanges at which step. Without fragments, all layers are exchanged
// every H steps. A fragment is a part of the model that has its own interval and offset. With
// fragments, the load of the network is more even (Streaming DiLoCo, arXiv 2501.18512, section
// 2.1).
//
// The caller's interval_schedule may replace H. Then the k-th exchange is at the sum of the first k
// intervals, so that the steps of exchanges follow from the schedule alone, also after a load and on
// a newcomer.
//
// The functions are pure. Ranks of a mesh with the same options and layers get the same results.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/agree.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class FragmentSchedule {
 public:
  // `options` must have been checked by CheckOptions and CheckFragments.
  FragmentSchedule(const EditOptions& options, const Slab& slab);

  // Returns the layers, in order, that are exchanged `steps` steps after warm-up. Often there are
  // none.
  std::vector<int> Due(int64_t steps) const;
  // Returns kAborted if the caller's interval_schedule has returned what is no interval. Due then
  // returns all layers at every step.
  absl::Status status() const;
  // Returns the same by fragments, ascending.
  std::vector<int> DueFragments(int64_t steps) const;
  int fragments() const { return static_cast<int>(fragments_.size()); }
  // Returns the layers of a fragment that train, in order.
  std::vector<int> LayersOf(int fragment) const;
  // Returns all layers that train, in order.
  const std::vector<int>& all() const { return all_; }
  // Returns the fragment of each layer, and the interval and offset of each fragment. Ranks compare
  // these values.
  std::vector<NamedValue> Named() const;

 private:
  struct Fragment {
    int64_t interval = 1, offset = 0;  // exchanged at steps offset + k * interval > 0, k >= 0

    bool Due(int64_t steps) const {
      return steps > 0 && steps >= offset && (steps - offset) % interval == 0;
    }
  };
  // For interval_schedule: returns whether an exchange is due `steps` steps after warm-up.
  bool DueByCaller(int64_t steps) const;

  const std::vector<int> all_;
  std::vector<int> fragment_of_;  // by layer
  std::vector<Fragment> fragments_;
  const IntervalScheduleFn caller_;  // null: by fragments_
  void* const user_;
  const int64_t least_;  // of an interval
  mutable absl::Mutex mutex_;
  // The last interval that was asked for: its number, and the steps at which it begins and ends.
  mutable int64_t number_ ABSL_GUARDED_BY(mutex_) = -1;
  mutable int64_t begin_ ABSL_GUARDED_BY(mutex_) = 0, end_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Must be called after CheckOptions. Checks that every fragment has a layer that trains, and that
// every layer that trains has a fragment.
absl::Status CheckFragments(const EditOptions& options, const Slab& slab);

}  // namespace entrain
