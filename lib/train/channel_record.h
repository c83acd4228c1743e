// The numbers of a gradient channel that a checkpoint holds: the method, the groups, and the
// results of the last round if this round is over but Install has not taken it. The object keeps
// these numbers in arrays, which a visitor reads and writes.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/channel_progress.h"
#include "lib/train/delay_rule.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/round_state.h"
#include "lib/train/state_list.h"

namespace entrain {

class ChannelRecord {
 public:
  struct Rounds {
    bool in_flight = false;  // Install has not taken `made` yet
    RoundKind kind = RoundKind::kCommit;
    bool finished = false;
    RoundResult landed, made;
  };

  explicit ChannelRecord(const ChannelOptions& options);

  void Fill(const Rounds& rounds);
  // Returns the rounds that were loaded since the last Clear. `progress` must have been loaded
  // before. A portable checkpoint has no rounds.
  Rounds Read(CheckpointKind kind, const ChannelProgress& progress) const;
  void Clear() { flags_ = {}; }
  // Refuses a checkpoint of another method, because the half batches and rounds of one method mean
  // nothing to another. Also refuses a checkpoint of other groups. All ranks get the same answer.
  absl::Status CheckLoaded(const StateList& state) const;

  void VisitGroups(StateVisitor& visitor);
  void VisitRounds(StateVisitor& visitor);

 private:
  absl::Status CheckGroup(size_t index, const StateList& state) const;

  std::array<int64_t, 4> flags_ = {};  // in flight, a commit, an estimate, finished
  std::array<int64_t, 5> counts_ =
      {};  // landed: rounds, commits, gradients, tokens; made: micro-batches
  std::array<double, 3> values_ = {};  // made: lr, norm, clip factor
  int64_t method_;
  std::vector<std::array<int64_t, 3>> groups_;  // first, count, state arrays of each group
};

}  // namespace entrain
