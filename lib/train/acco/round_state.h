// The state of a gradient channel's rounds on this rank. It consists of the kind, phase and outcome
// of the round under way, and the results of the last finished round. A round calls these
// functions:
//
//   Begin -> SetOutcome -> Clip (with clip_norm) -> Commit (has no effect in an estimate) -> Finish
//
// After a loss, a rank may receive the outcome from another rank. The receiver continues at
// SetOutcome (GradientRound::Recover).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <limits>

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/acco/commit_plan.h"
#include "lib/train/acco/delay_rule.h"
#include "lib/train/acco/gradient_channel_options.h"

namespace entrain {

// The counts of a round. An object has the counts of one rank, or their sums over all ranks.
struct RoundCounts {
  int64_t microbatches = 0, tokens = 0, stops = 0;
};

// The progress of a gradient channel's run: totals over all ranks and all commits, and whether the
// run ends. The counts of each round are summed over all ranks. So the progress is the same on all
// ranks.
//
// Thread safety: one thread at a time.
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

struct ChannelTotals;

// The results of a round. They are the same on all ranks.
struct RoundResult {
  int64_t rounds = 0, commits = 0, gradients = 0, tokens = 0;  // totals; the last two of commits
  bool committed = false;
  int64_t microbatches = 0;  // micro-batches of all ranks in this round
  double lr = 0;
  double grad_norm =
      std::numeric_limits<double>::quiet_NaN();  // norm of the mean gradient; NaN without clip_norm
  double clip_factor = 1;
  int64_t ranks = 0;  // number of ranks whose micro-batches are in this round
  int64_t joins = 0;  // newcomers in the whole run, up to this round
};

// The results of a round's counts and votes. After a loss, ranks send this struct as it is in
// memory.
struct RoundOutcome {
  RoundCounts counts;  // sums over all ranks
  RoundResult result;
};

class RoundState {
 public:
  explicit RoundState(const ChannelOptions& options)
      : progress_(options.limit_unit, options.limit) {}

  // ---- The round under way
  void Begin(RoundKind kind);
  void Reach(RoundPhase phase) { phase_ = phase; }
  void SetOutcome(const RoundOutcome& outcome) { outcome_ = outcome; }
  // Sets the norm of the mean gradient, and the factor by which the mean is clipped.
  void Clip(double norm, double factor);
  // Unless the round is an estimate, adds the counts of the outcome to the progress.
  void Commit();
  // Counts the round. The outcome becomes the results of the last round.
  void Finish();
  RoundKind kind() const { return kind_; }
  RoundPhase phase() const { return phase_; }
  const RoundOutcome& outcome() const { return outcome_; }
  // Returns the number of the round, counted from 1.
  int64_t number() const { return progress_.rounds() + (phase_ == RoundPhase::kFinished ? 0 : 1); }

  // ---- The run
  // Returns the results of the last finished round.
  const RoundResult& result() const { return result_; }
  // Returns true if the run ends with the round of result().
  bool EndsRun() const { return result_.committed && progress_.Done(); }
  const ChannelProgress& progress() const { return progress_; }
  ChannelProgress& progress() { return progress_; }
  // Replaces the results of the last round by loaded ones.
  void Restore(const RoundResult& result) { result_ = result; }
  // Returns the numbers in result() that newcomers need. The fields joins and cuts are 0.
  ChannelTotals Totals() const;
  // For a newcomer: continues after the commit that the members have just finished.
  void GoOn(const ChannelTotals& totals);

 private:
  ChannelProgress progress_;
  RoundKind kind_ = RoundKind::kCommit;
  RoundPhase phase_ = RoundPhase::kFinished;
  RoundOutcome outcome_;
  RoundResult result_;
};

}  // namespace entrain
