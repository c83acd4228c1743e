#include "lib/train/acco/round_votes.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace entrain {

std::vector<uint64_t> RoundVotes::Words(double square, const ShardSums& sums) const {
  std::vector<uint64_t> words;
  if (clips_) {
    words.push_back(std::bit_cast<uint64_t>(square));
  }
  if (compares_) {
    words.insert(words.end(), {sums.own, sums.copy});
  }
  return words;
}

double RoundVotes::Norm(absl::Span<const uint64_t> all, int64_t microbatches) const {
  double square = 0;
  for (size_t at = 0; at < all.size(); at += width()) {
    square += std::bit_cast<double>(all[at]);
  }
  return std::sqrt(square) * (1 / static_cast<double>(microbatches));
}

absl::Status RoundVotes::CheckCopies(absl::Span<const uint64_t> all, int64_t commits) const {
  const size_t ranks = all.size() / width();
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t right = (rank + 1) % ranks;
    const uint64_t own = all[(rank + 1) * width() - 2], copy = all[(right + 1) * width() - 1];
    if (copy != own) {
      return absl::DataLossError(absl::StrCat("the copy of rank ", rank, "'s shard on rank ", right,
                                              " differs from it after commit ", commits));
    }
  }
  return absl::OkStatus();
}

}  // namespace entrain
