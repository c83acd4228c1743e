// The votes of ranks, without ranks.
#include "lib/train/acco/round_votes.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// The words of ranks with these squares and checksums.
struct Ballot {
  double square;
  ShardSums sums;
};
std::vector<uint64_t> Gather(const RoundVotes& votes, const std::vector<Ballot>& ranks) {
  std::vector<uint64_t> all;
  for (const Ballot& rank : ranks) {
    const std::vector<uint64_t> words = votes.Words(rank.square, rank.sums);
    all.insert(all.end(), words.begin(), words.end());
  }
  return all;
}

TEST(RoundVotes, HaveOnlyTheWordsThatAreNeeded) {
  const RoundVotes none(false, false), norm(true, false), copies(false, true), both(true, true);
  EXPECT_FALSE(none.any());
  EXPECT_TRUE(norm.any());
  EXPECT_TRUE(copies.any());
  EXPECT_THAT(none.Words(4, {1, 2}), IsEmpty());
  EXPECT_THAT(norm.Words(4, {1, 2}), SizeIs(1));
  EXPECT_THAT(copies.Words(4, {1, 2}), testing::ElementsAre(1, 2));
  EXPECT_THAT(both.Words(4, {1, 2}), SizeIs(3));
  EXPECT_EQ(std::string(both.name()), "norm");
  EXPECT_EQ(std::string(copies.name()), "votes");
}

TEST(RoundVotes, TheNormIsOfTheMeanOverMicrobatches) {
  for (const bool compares : {false, true}) {
    const RoundVotes votes(true, compares);
    EXPECT_EQ(votes.Norm(Gather(votes, {{9, {1, 1}}, {16, {1, 1}}}), 2), 2.5);
    EXPECT_TRUE(std::isnan(votes.Norm(Gather(votes, {{9, {}}, {std::nan(""), {}}}), 2)));
  }
}

// Rank 0's shard is copied on rank 1, rank 2's on rank 0.
TEST(RoundVotes, FindACopyThatDiffers) {
  for (const bool clips : {false, true}) {
    const RoundVotes votes(clips, true);
    EXPECT_EQ(votes.CheckCopies(Gather(votes, {{0, {7, 9}}, {0, {8, 7}}, {0, {9, 8}}}), 4),
              absl::OkStatus());
    EXPECT_EQ(
        votes.CheckCopies(Gather(votes, {{0, {7, 1}}, {0, {8, 7}}, {0, {9, 8}}}), 4),
        absl::DataLossError("the copy of rank 2's shard on rank 0 differs from it after commit 4"));
    EXPECT_EQ(
        votes.CheckCopies(Gather(votes, {{0, {7, 9}}, {0, {8, 1}}, {0, {9, 1}}}), 4),
        absl::DataLossError("the copy of rank 0's shard on rank 1 differs from it after commit 4"));
  }
}

}  // namespace
}  // namespace entrain
