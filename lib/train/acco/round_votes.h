// The votes of a gradient channel's round. In a vote, each rank contributes a few words, and all
// ranks gather the words of all ranks. From these words all ranks compute the same results, with
// the same bits.
//
//   words of a rank   [square of its part of the sum]  [checksums of its shard and of its copy]
//   in rounds         with clip_norm                   that commit, with on_loss finish
//
// Thread safety: the object does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/train/acco/channel_cut.h"

namespace entrain {

class RoundVotes {
 public:
  // `clips`: a vote contains the square. `compares`: a vote contains the checksums.
  RoundVotes(bool clips, bool compares) : clips_(clips), compares_(compares) {}

  bool any() const { return clips_ || compares_; }
  // Returns the name of the all-gather, for errors.
  const char* name() const { return clips_ ? "norm" : "votes"; }
  // Returns the words of this rank.
  std::vector<uint64_t> Words(double square, const ShardSums& sums) const;
  // Returns the norm of the mean gradient. `all` has the words of all ranks, in rank order. Must be
  // called only with `clips`.
  double Norm(absl::Span<const uint64_t> all, int64_t microbatches) const;
  // Returns kDataLoss if a copy differs from its shard after `commits` commits. Must be called only
  // with `compares`.
  absl::Status CheckCopies(absl::Span<const uint64_t> all, int64_t commits) const;

 private:
  size_t width() const { return (clips_ ? 1 : 0) + (compares_ ? 2 : 0); }

  const bool clips_, compares_;
};

}  // namespace entrain
