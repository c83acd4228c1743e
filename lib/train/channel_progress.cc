#include "lib/train/channel_progress.h"

namespace entrain {

void ChannelProgress::Commit(const RoundCounts& all) {
  ++commits_;
  gradients_ += all.microbatches;
  tokens_ += all.tokens;
  stops_ += all.stops;
}

void ChannelProgress::GoOn(int64_t rounds, int64_t commits, const RoundCounts& totals) {
  rounds_ = rounds;
  commits_ = commits;
  gradients_ = totals.microbatches;
  tokens_ = totals.tokens;
  stops_ = totals.stops;
}

int64_t ChannelProgress::In(ProgressUnit unit) const {
  return unit == ProgressUnit::kCommits  ? commits_
         : unit == ProgressUnit::kTokens ? tokens_
                                         : gradients_;
}

void ChannelProgress::VisitState(StateVisitor& visitor) {
  visitor.Value("steps", Holder::kAll, &commits_);
  visitor.Value("rounds", Holder::kAll, &rounds_);
  visitor.Value("gradients", Holder::kAll, &gradients_);
  visitor.Value("tokens", Holder::kAll, &tokens_);
}

}  // namespace entrain
