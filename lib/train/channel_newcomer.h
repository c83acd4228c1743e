// The newcomer's side of joining the ranks of a gradient channel. channel_admission has the
// members' side.
//
// Thread safety: one thread at a time; calls block.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/comm/communicator.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/gradient_round.h"

namespace entrain {

class ChannelNewcomer {
 public:
  // All arguments must outlive this object. `own` is the communicator of this process alone.
  ChannelNewcomer(const ChannelOptions& options, GradientRound& round, Communicator& own)
      : options_(options), round_(round), own_(own), alike_(AlikeForNewcomers(options)) {}

  // Blocks until the members have taken this process in, at most `wait_ns`; 0: the time limit of a
  // call. Afterwards the round object is in the state of the round that the members have just
  // finished. Applies again after an attempt that has failed because of another rank.
  absl::Status Join(int64_t wait_ns);
  // Returns the size that the communicator had when this rank was taken in, including this rank.
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
