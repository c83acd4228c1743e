// Which layers are exchanged at which step, in EDiT by steps: all of them every H steps, or parts of the model, fragments,
// at steps of their own (Streaming DiLoCo, arXiv 2501.18512, section 2.1), so that the network always has a little to do.
//
// Pure: the same on all ranks of a mesh that have the same options and layers.
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
  // Of options that have been checked (CheckFragments too).
  FragmentSchedule(const EditOptions& options, const Slab& slab);

  // The layers that are exchanged `steps` steps after warm-up, in order; often none.
  std::vector<int> Due(int64_t steps) const;
  // All layers that train, in order.
  const std::vector<int>& all() const { return all_; }
  // For comparing ranks: which layer goes with which fragment, and when.
  std::vector<NamedValue> Named() const;

 private:
  struct Fragment {
    int64_t interval = 1, offset = 0;  // exchanged at offset + k interval, k >= 0, but never at 0
  };
  const std::vector<int> all_;
  std::vector<int> fragment_of_;  // by layer
  std::vector<Fragment> fragments_;
};

// Also that every fragment has a layer that trains, and every layer a fragment.
absl::Status CheckFragments(const EditOptions& options, const Slab& slab);

}  // namespace entrain
