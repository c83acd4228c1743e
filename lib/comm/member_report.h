// The knowledge of one rank of a communicator about another rank.
#pragma once

#include "absl/status/status.h"

#include "transports/transport.h"

namespace entrain {

struct MemberReport {
  enum class State : int32_t { kAlive = 0, kLost = 1, kLeft = 2 };
  PeerId id{};
  int parent_rank = -1;  // in the communicator that this one was made from; -1: none
  State state = State::kAlive;
  absl::Status why;  // of kLost: how the path to the rank ended
};

}  // namespace entrain
