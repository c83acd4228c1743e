// The values from which a communicator's core is made (CommCore::Make).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/comm/cost_model.h"
#include "lib/comm/overrides.h"
#include "lib/comm/peers.h"
#include "lib/comm/tuning.h"

namespace entrain {

struct CoreConfig {
  std::string name;
  int rank = 0;
  Context context = 0;  // the caller has reserved it
  std::vector<Member> members;
  std::vector<Override> overrides;
  std::shared_ptr<const Tuning> tuning;
  Paths paths;  // the values at first; CommCore::SetPaths may replace them
  int64_t timeout_ns = 0;
  // The name of the communicator from which splits and shrinks have made this one, directly or
  // through other communicators. A communicator that was created or grown has its own name here.
  std::string world;
  Determinism determinism = Determinism::kDefault;  // default for calls
  // The number of changes of the membership: see entrain_comm_generation.
  uint64_t generation = 0;
  bool probed = false;  // the ranks measure the speed of their links (probe.h)
};

}  // namespace entrain
