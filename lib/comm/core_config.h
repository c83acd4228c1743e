// What a communicator is made of.
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
  Paths paths;  // what is known before the ranks have met
  int64_t timeout_ns = 0;
  std::string
      world;  // the name of the communicator that this was split from in the end, or its own
  Determinism determinism = Determinism::kDefault;  // of calls that do not say
};

}  // namespace entrain
