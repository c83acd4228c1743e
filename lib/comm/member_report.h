// The state of one rank of a communicator, as another rank knows it.
#pragma once

#include "absl/status/status.h"

#include "transports/transport.h"

namespace entrain {

struct MemberReport {
  enum class State : int32_t { kAlive = 0, kLost = 1, kLeft = 2 };
  PeerId id{};
  int parent_rank = -1;  // its rank in the communicator from which this one was made; -1: none
  State state = State::kAlive;
  absl::Status why;  // if kLost: the reason why the path to the rank was lost
};

}  // namespace entrain
