#include "lib/train/acco/round_state.h"

#include "lib/train/acco/channel_transfer.h"

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

void RoundState::Begin(RoundKind kind) {
  kind_ = kind;
  phase_ = RoundPhase::kBegun;
}

void RoundState::Clip(double norm, double factor) {
  outcome_.result.grad_norm = norm;
  outcome_.result.clip_factor = factor;
}

void RoundState::Commit() {
  if (Commits(kind_)) {
    progress_.Commit(outcome_.counts);
  }
}

void RoundState::Finish() {
  progress_.EndRound();
  RoundResult& now = outcome_.result;
  now.rounds = progress_.rounds();
  now.commits = progress_.commits();
  now.gradients = progress_.gradients();
  now.tokens = progress_.tokens();
  result_ = now;
  phase_ = RoundPhase::kFinished;
}

ChannelTotals RoundState::Totals() const {
  return {.rounds = result_.rounds,
          .commits = result_.commits,
          .gradients = result_.gradients,
          .tokens = result_.tokens,
          .microbatches = result_.microbatches,
          .ranks = result_.ranks,
          .lr = result_.lr,
          .grad_norm = result_.grad_norm,
          .clip_factor = result_.clip_factor};
}

void RoundState::GoOn(const ChannelTotals& totals) {
  progress_.GoOn(totals.rounds, totals.commits,
                 {.microbatches = totals.gradients, .tokens = totals.tokens});
  result_ = {.rounds = totals.rounds,
             .commits = totals.commits,
             .gradients = totals.gradients,
             .tokens = totals.tokens,
             .committed = true,
             .microbatches = totals.microbatches,
             .lr = totals.lr,
             .grad_norm = totals.grad_norm,
             .clip_factor = totals.clip_factor,
             .ranks = totals.ranks,
             .joins = totals.joins};
}

}  // namespace entrain
