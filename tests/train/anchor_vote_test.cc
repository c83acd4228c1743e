#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/anchor_guard.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kA = 0xa, kB = 0xb, kC = 0xc;
using Hashes = std::vector<AnchorHash>;

TEST(AnchorVote, OnlyMemoryDecidesWhetherAnchorsDiffer) {
  EXPECT_TRUE(SameAnchor(Hashes{{kA, kA}, {kA, kB}}));
  EXPECT_FALSE(SameAnchor(Hashes{{kA, kA}, {kB, kA}}));
}

TEST(AnchorVote, TheLowestHolderOfTheMajorityGives) {
  const AnchorVote vote = Vote(Hashes{{kB, kB}, {kA, kA}, {kA, kA}});
  EXPECT_EQ(vote.right, kA);
  EXPECT_EQ(vote.from, 1);
  EXPECT_THAT(vote.wrong, ElementsAre(0));
}

TEST(AnchorVote, TwoReplicasAreEnoughWhereMemoryHasChanged) {
  const AnchorVote vote = Vote(Hashes{{kB, kA}, {kA, kA}});
  EXPECT_EQ(vote.from, 1);
  EXPECT_THAT(vote.wrong, ElementsAre(0));
}

TEST(AnchorVote, OneHolderIsEnoughForTheMajority) {
  const AnchorVote vote = Vote(Hashes{{kB, kA}, {kA, kA}, {kC, kA}});
  EXPECT_EQ(vote.from, 1);
  EXPECT_THAT(vote.wrong, ElementsAre(0, 2));
}

TEST(AnchorVote, HalfIsNoMajority) {
  for (const Hashes& hashes : {Hashes{{kA, kA}, {kB, kB}}, Hashes{{kA, kA}, {kB, kB}, {kC, kC}},
                               Hashes{{kA, kA}, {kA, kA}, {kB, kB}, {kB, kB}}}) {
    const AnchorVote vote = Vote(hashes);
    EXPECT_EQ(vote.from, -1);
    EXPECT_THAT(vote.wrong, IsEmpty());
  }
}

TEST(AnchorVote, AMajorityThatNobodyHasAnyMoreGivesNothing) {
  EXPECT_EQ(Vote(Hashes{{kB, kA}, {kC, kA}}).from, -1);
}

TEST(AnchorVote, TheTextNamesReplicasAndValues) {
  const std::vector<int> replicas = {0, 2, 5};
  EXPECT_EQ(DescribeAnchors(3, Hashes{{kA, kA}, {kB, kA}, {kA, kA}}, replicas),
            "layer 3: checksum 000000000000000a on replicas 0 and 5, 000000000000000b on replica 2 "
            "(changed in memory since its last exchange)");
}

}  // namespace
}  // namespace entrain
