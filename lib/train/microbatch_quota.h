// Counts the micro-batches of this rank in a round, and knows the number that the round takes.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/gradient_channel_options.h"

namespace entrain {

class MicrobatchQuota {
 public:
  explicit MicrobatchQuota(const ChannelOptions& options)
      : least_(options.min_microbatches),
        most_(options.max_microbatches),
        scripted_(options.scripted) {}

  // Returns kFailedPrecondition if scripted_counts has no such round.
  absl::Status CheckRound() const;
  // Returns kFailedPrecondition if fewer micro-batches have been added than the round takes.
  absl::Status CheckEnough() const;
  absl::Status Add(int64_t microbatches, int64_t tokens);

  bool enough() const { return added_ >= Least(); }
  bool full() const { return Most() > 0 && added_ >= Most(); }
  // Returns the micro-batches added to this round so far.
  int64_t added() const { return added_; }
  // Returns the number of rounds handed over.
  int64_t rounds() const { return rounds_; }
  void EndRound() {
    ++rounds_;
    added_ = 0;
  }
  // Continues after the `rounds` rounds that the other ranks have handed over.
  void GoOn(int64_t rounds) {
    rounds_ = rounds;
    added_ = 0;
  }
  // Forgets the micro-batches of this round, which belong to no commit.
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
