// The progress of a gradient channel's run: totals over all ranks and all commits, and whether the
// run ends. The counts of each round are summed over all ranks. So the progress is the same on all
// ranks.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/gradient_channel_options.h"

namespace entrain {

// The counts of a round. An object has the counts of one rank, or their sums over all ranks.
struct RoundCounts {
  int64_t microbatches = 0, tokens = 0, stops = 0;
};

class ChannelProgress {
 public:
  ChannelProgress(ProgressUnit limit_unit, int64_t limit)
      : limit_unit_(limit_unit), limit_(limit) {}

  // Adds the counts of a commit. `all` has the sums over all ranks.
  void Commit(const RoundCounts& all);
  void EndRound() { ++rounds_; }
  // For a newcomer: continues from the members' progress.
  void GoOn(int64_t rounds, int64_t commits, const RoundCounts& totals);

  int64_t In(ProgressUnit unit) const;
  // Returns true if a rank has requested the end of the run, or if the limit is reached.
  bool Done() const { return stops_ > 0 || (limit_ > 0 && In(limit_unit_) >= limit_); }
  int64_t rounds() const { return rounds_; }
  int64_t commits() const { return commits_; }
  int64_t gradients() const { return gradients_; }
  int64_t tokens() const { return tokens_; }
  void ForgetStops() { stops_ = 0; }

  void VisitState(StateVisitor& visitor);
  void VisitStops(StateVisitor& visitor) { visitor.Value("stops", Holder::kAll, &stops_); }

 private:
  const ProgressUnit limit_unit_;
  const int64_t limit_;
  int64_t commits_ = 0, rounds_ = 0, gradients_ = 0, tokens_ = 0, stops_ = 0;
};

}  // namespace entrain
