// How many micro-batches of this rank a round takes, and how many it has got.
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
  // Micro-batches of this round so far.
  int64_t added() const { return added_; }
  // The number of rounds that have been handed over.
  int64_t rounds() const { return rounds_; }
  void EndRound() {
    ++rounds_;
    added_ = 0;
  }
  // Forgets the micro-batches of this round, which are in no commit.
  void Drop() { added_ = 0; }

  void VisitState(StateVisitor& visitor) { visitor.Value("installs", Holder::kAll, &rounds_); }

 private:
  int64_t Least() const;
  int64_t Most() const;  // 0: no limit

  const int64_t least_, most_;
  const std::vector<int32_t> scripted_;  // by round: exactly so many; empty: none
  int64_t rounds_ = 0, added_ = 0;
};

}  // namespace entrain
