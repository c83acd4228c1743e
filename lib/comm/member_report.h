// The state of a rank of a communicator, from the view of another rank.
#pragma once

#include "absl/status/status.h"

#include "transports/transport.h"

namespace entrain {

struct MemberReport {
  enum class State : int32_t { kAlive = 0, kLost = 1, kLeft = 2 };
  PeerId id{};
  int parent_rank = -1;  // the member's rank in the parent communicator; -1: no parent
  State state = State::kAlive;
  absl::Status why;  // if kLost: the error of the lost path
};

}  // namespace entrain
