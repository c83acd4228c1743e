// The parts of which a communicator is made.
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
  Context context = 0;  // reserved by the caller
  std::vector<Member> members;
  std::vector<Override> overrides;
  std::shared_ptr<const Tuning> tuning;
  Paths paths;  // known before the ranks have met
  int64_t timeout_ns = 0;
  // The name of the communicator at the root of all splits. Not split: the communicator's own name.
  std::string world;
  Determinism determinism = Determinism::kDefault;  // default of calls
  // How often the membership was changed: see entrain_comm_generation.
  uint64_t generation = 0;
  bool probed = false;  // the ranks have measured their links, see tuning.h
};

}  // namespace entrain
