// The newcomer's side of joining a gradient channel. channel_admission.h has the members' side.
//
// Thread safety: one thread at a time; calls block.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/comm/communicator.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/acco/gradient_round.h"

namespace entrain {

class ChannelNewcomer {
 public:
  // All arguments must outlive this object. `own` is a communicator that contains only this
  // process.
  ChannelNewcomer(const ChannelOptions& options, GradientRound& round, Communicator& own)
      : options_(options), round_(round), own_(own), alike_(AlikeForNewcomers(options)) {}

  // Blocks until the members have admitted this process, but at most `wait_ns`; if that is 0, at
  // most the time limit of a call. If an attempt fails because of another rank, applies again.
  // Afterwards `round` has the state after the round that the members have just finished.
  absl::Status Join(int64_t wait_ns);
  // Returns the number of ranks, including this rank, when this rank was admitted.
  int ranks() const { return ranks_; }

 private:
  absl::Status Attempt(const std::shared_ptr<Communicator>& world, uint64_t group, Deadline until);
  absl::Status GoOnWithoutLost(int members);

  const ChannelOptions& options_;
  GradientRound& round_;
  Communicator& own_;
  const NamedGroups alike_;
  int ranks_ = 0;
};

}  // namespace entrain
