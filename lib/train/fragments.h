// Decides which layers EDiT exchanges at which step. Without fragments all layers are exchanged
// every H steps. A fragment is a part of the model that is exchanged at steps of its own. With
// fragments the network is used more evenly (Streaming DiLoCo, arXiv 2501.18512, section 2.1).
//
// Pure functions: the results are equal on all ranks of a mesh that have the same options and
// layers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/agree.h"
#include "lib/train/edit_options.h"
#include "lib/train/slab.h"

namespace entrain {

class FragmentSchedule {
 public:
  // `options` must have been checked, also by CheckFragments.
  FragmentSchedule(const EditOptions& options, const Slab& slab);

  // Returns, in order, the layers that are exchanged `steps` steps after warm-up. Often there are
  // none.
  std::vector<int> Due(int64_t steps) const;
  // Returns all layers that train, in order.
  const std::vector<int>& all() const { return all_; }
  // Returns the fragment of each layer and the steps of each fragment, for a comparison between
  // ranks.
  std::vector<NamedValue> Named() const;

 private:
  struct Fragment {
    int64_t interval = 1, offset = 0;  // exchanged at offset + k interval, k >= 0, but never at 0
  };
  const std::vector<int> all_;
  std::vector<int> fragment_of_;  // by layer
  std::vector<Fragment> fragments_;
};

// Must be called after CheckOptions. Checks that every fragment has a layer that trains, and that
// every layer that trains has a fragment.
absl::Status CheckFragments(const EditOptions& options, const Slab& slab);

}  // namespace entrain
