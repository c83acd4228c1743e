// Sends the members' state to newcomers of a gradient channel: the totals, the parameters, and the
// newcomers' shards in a new partition for all ranks. Hashes verify all data. Members and newcomers
// call the same function. The members' own state does not change.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/train/acco/channel_cut.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/elastic/admission_meeting.h"

namespace entrain {

// The numbers that members send to newcomers. After a round they are the same on all ranks. Fields
// that are also in RoundResult have the same meaning.
struct ChannelTotals {
  int64_t rounds = 0, commits = 0, gradients = 0, tokens = 0;
  int64_t microbatches = 0, ranks = 0;
  double lr = 0, grad_norm = std::numeric_limits<double>::quiet_NaN(), clip_factor = 1;
  int64_t joins = 0;  // number of newcomers so far
  int64_t cuts = 0;   // how often the partition has changed
};
static_assert(sizeof(ChannelTotals) == 11 * sizeof(int64_t));

// Collective over enlarged.world. `before` has this rank's current shards; null on a newcomer.
// Members send `params` and `totals`, which newcomers receive. Returns the new partition with this
// rank's shards.
//
// If one rank has an error, all ranks return an error. A newcomer returns kDataLoss if it has
// received other parameters than the members have. The error is kAborted if the members' data
// differs, or if the shards have changed on their way.
absl::StatusOr<std::unique_ptr<ChannelCut>> ShareChannel(const EnlargedWorld& enlarged,
                                                         const ChannelOptions& options,
                                                         const ChannelCut* before, Bytes params,
                                                         ChannelTotals* totals);

}  // namespace entrain
