// The votes of a gradient channel's round: a few numbers that each rank gathers from all ranks, and
// what follows from them. All ranks compute the same results with the same bits.
//
//   words of a rank   [square of its part of the sum]  [checksum of its shard, checksum of its copy]
//   in rounds         with clip_norm                   that commit, with on_loss finish
//
// Thread safety: the object does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/train/channel_cut.h"

namespace entrain {

class RoundVotes {
 public:
  // `clips`: votes are about the norm. `compares`: votes are about the copies.
  RoundVotes(bool clips, bool compares) : clips_(clips), compares_(compares) {}

  bool any() const { return clips_ || compares_; }
  // Returns the name of the gather.
  const char* name() const { return clips_ ? "norm" : "votes"; }
  // Returns the words of this rank.
  std::vector<uint64_t> Words(double square, const ShardSums& sums) const;
  // Returns the norm of the mean gradient. `all` has the words by rank. Must be called only if
  // votes are about the norm.
  double Norm(absl::Span<const uint64_t> all, int64_t microbatches) const;
  // Returns kDataLoss if a copy differs from its shard after `commits` commits. Must be called only
  // if votes are about the copies.
  absl::Status CheckCopies(absl::Span<const uint64_t> all, int64_t commits) const;

 private:
  size_t width() const { return (clips_ ? 1 : 0) + (compares_ ? 2 : 0); }

  const bool clips_, compares_;
};

}  // namespace entrain
