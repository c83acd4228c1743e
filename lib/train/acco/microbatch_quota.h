// Counts the micro-batches that this rank adds to a round. Compares the count with the options
// min_microbatches, max_microbatches and scripted_counts.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/acco/gradient_channel_options.h"

namespace entrain {

class MicrobatchQuota {
 public:
  explicit MicrobatchQuota(const ChannelOptions& options)
      : least_(options.min_microbatches),
        most_(options.max_microbatches),
        scripted_(options.scripted) {}

  // Returns kFailedPrecondition if scripted_counts has no entry for this round.
  absl::Status CheckRound() const;
  // Returns kFailedPrecondition if the round needs more micro-batches.
  absl::Status CheckEnough() const;
  absl::Status Add(int64_t microbatches, int64_t tokens);

  bool enough() const { return added_ >= Least(); }
  bool full() const { return Most() > 0 && added_ >= Most(); }
  // Returns the number of micro-batches added to this round so far.
  int64_t added() const { return added_; }
  // Returns the number of rounds that this rank has started.
  int64_t rounds() const { return rounds_; }
  void EndRound() {
    ++rounds_;
    added_ = 0;
  }
  // For a newcomer: continues after the `rounds` rounds that the members have started.
  void GoOn(int64_t rounds) {
    rounds_ = rounds;
    added_ = 0;
  }
  // Forgets the micro-batches of this round. They are in no commit, because the run has ended.
  void Drop() { added_ = 0; }

  void VisitState(StateVisitor& visitor) { visitor.Value("installs", Holder::kAll, &rounds_); }

 private:
  int64_t Least() const;
  int64_t Most() const;  // 0: no limit

  const int64_t least_, most_;
  const std::vector<int32_t> scripted_;  // by round: exact number; empty: none
  int64_t rounds_ = 0, added_ = 0;
};

}  // namespace entrain
