// Sends the members' state to newcomers of a gradient channel: the parameters, the numbers, and the
// newcomers' shards in a new cut for all ranks. All data is hashed. Members and newcomers call the
// same function. The members' own state stays as it is.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/train/admission_meeting.h"
#include "lib/train/channel_cut.h"
#include "lib/train/gradient_channel_options.h"

namespace entrain {

// The numbers that a channel sends to newcomers. After a round they are the same on all ranks. The
// fields about the round are as in RoundResult.
struct ChannelTotals {
  int64_t rounds = 0, commits = 0, gradients = 0, tokens = 0;
  int64_t microbatches = 0, ranks = 0;
  double lr = 0, grad_norm = std::numeric_limits<double>::quiet_NaN(), clip_factor = 1;
  int64_t joins = 0;  // number of newcomers so far
  int64_t cuts = 0;   // how often the shards have been cut anew
  int64_t saves = 0;
};
static_assert(sizeof(ChannelTotals) == 12 * sizeof(int64_t));

// Collective over enlarged.world. `before` has this rank's shards; it is null on a newcomer.
// Members send `params` and `totals`, and newcomers receive them. Returns this rank's shards in the
// new cut. If one rank has an error, all ranks return an error: kDataLoss on a newcomer that has
// received other parameters than the members have, and kAborted if the members differ, or if the
// shards have changed on their way.
absl::StatusOr<std::unique_ptr<ChannelCut>> ShareChannel(const EnlargedWorld& enlarged,
                                                         const ChannelOptions& options,
                                                         const ChannelCut* before, Bytes params,
                                                         ChannelTotals* totals);

}  // namespace entrain
