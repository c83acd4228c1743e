// The values from which a communicator's core is made (CommCore::Make).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/comm/peers.h"
#include "lib/comm/plan/cost_model.h"
#include "lib/comm/plan/overrides.h"
#include "lib/comm/plan/tuning.h"

namespace entrain {

struct CoreConfig {
  std::string name;
  int rank = 0;
  Context context = 0;  // the caller must have reserved this number
  std::vector<Member> members;
  std::vector<Override> overrides;
  std::shared_ptr<const Tuning> tuning;
  Paths paths;  // the initial values; CommCore::SetPaths may replace them
  int64_t timeout_ns = 0;
  // The name of the created or grown communicator from which this one comes through splits and
  // shrinks. If this communicator was itself created or grown, its own name.
  std::string world;
  Determinism determinism = Determinism::kDefault;  // default for calls
  // The number of changes of the membership: see entrain_comm_stats_t.generation.
  uint64_t generation = 0;
  bool probed = false;     // the ranks measure the speed of their links (probe.h)
  int64_t silence_ns = 0;  // the initial value of Inquiry::SetSilence
};

}  // namespace entrain
