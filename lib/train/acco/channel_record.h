// The numbers of a gradient channel that a checkpoint contains: the method, the parameter groups,
// and the results of rounds. The object keeps the numbers in arrays, which a visitor reads and
// writes.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/acco/delay_rule.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/acco/round_state.h"
#include "lib/train/state/state_list.h"

namespace entrain {

class ChannelRecord {
 public:
  struct Rounds {
    bool in_flight = false;  // the last round is over, but Install has not taken it
    RoundKind kind = RoundKind::kCommit;
    bool finished = false;
    RoundResult landed, made;
  };

  explicit ChannelRecord(const ChannelOptions& options);

  void Fill(const Rounds& rounds);
  // Returns the results that were loaded since the last Clear. `progress` must have been loaded
  // before. A portable checkpoint has no results of single rounds.
  Rounds Read(CheckpointKind kind, const ChannelProgress& progress) const;
  void Clear() { flags_ = {}; }
  // Returns kFailedPrecondition if the checkpoint has other parameter groups. Does the same if an
  // exact checkpoint is of another method, because half batches and rounds of one method mean
  // nothing to another. All ranks get the same result.
  absl::Status CheckLoaded(const StateList& state) const;

  void VisitGroups(StateVisitor& visitor);
  void VisitRounds(StateVisitor& visitor);

 private:
  absl::Status CheckGroup(size_t index, const StateList& state) const;

  std::array<int64_t, 4> flags_ = {};  // in flight, a commit, an estimate, finished
  std::array<int64_t, 5> counts_ =
      {};  // `landed`: rounds, commits, gradients, tokens; `made`: micro-batches
  std::array<double, 3> values_ = {};  // `made`: lr, norm, clip factor
  int64_t method_;
  std::vector<std::array<int64_t, 3>> groups_;  // per group: first, count, state arrays
};

}  // namespace entrain
