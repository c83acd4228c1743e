// Decides which layers EDiT exchanges at which step. Either all layers are exchanged every H steps,
// or parts of the model, the fragments, at steps of their own (Streaming DiLoCo, arXiv 2501.18512,
// section 2.1), so that the network is used more evenly.
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

  // Returns, in order, the layers that are exchanged `steps` steps after warm-up; often none.
  std::vector<int> Due(int64_t steps) const;
  // Returns all layers that train, in order.
  const std::vector<int>& all() const { return all_; }
  // Returns the fragment of each layer and the steps of each fragment, to compare ranks.
  std::vector<NamedValue> Named() const;

 private:
  struct Fragment {
    int64_t interval = 1, offset = 0;  // exchanged at offset + k interval, k >= 0, but never at 0
  };
  const std::vector<int> all_;
  std::vector<int> fragment_of_;  // by layer
  std::vector<Fragment> fragments_;
};

// Checks also that every fragment has a layer that trains, and that every layer has a fragment.
absl::Status CheckFragments(const EditOptions& options, const Slab& slab);

}  // namespace entrain
