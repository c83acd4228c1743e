// The bare exchanges that floor-bench measures: the data movement of the measured calls and nothing
// else, written by hand. No library, one communicator, nothing checked. Targets to be held against,
// not peers.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "tools/perf/measured_case.h"

namespace entrain::perf {

// What ranks need in order to meet, made before they are forked.
class Floor {
 public:
  virtual ~Floor() = default;
  // In the rank's process. crowded: ranks share cores, so whoever waits gives its core away.
  virtual absl::StatusOr<std::unique_ptr<Subject>> Join(int rank, bool crowded) = 0;
};

absl::StatusOr<std::unique_ptr<Floor>> MakeShmFloor(int ranks);
absl::StatusOr<std::unique_ptr<Floor>> MakeTcpFloor(int ranks);

}  // namespace entrain::perf
