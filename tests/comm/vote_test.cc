#include "lib/comm/vote.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "transports/transport.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr CallId kCall{Tag::kUntagged, 41};

Descriptor AllReduceOf(int64_t count) {
  Descriptor descriptor;
  descriptor.kind = CallKind::kAllReduce;
  descriptor.count = count;
  return descriptor;
}

TEST(Vote, TheOneThatDiffersIsGuilty) {
  for (const int odd : {0, 1, 2}) {
    Vote vote(3);
    ASSERT_TRUE(vote.Begin(kCall, {100}));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(vote.Complete());
      vote.Cast(rank, AllReduceOf(rank == odd ? 5 : 6));
    }
    EXPECT_TRUE(vote.Complete());
    const Vote::Result result = vote.Count();
    EXPECT_EQ(result.guilty, odd);
    ASSERT_EQ(result.parties.size(), 2u);
    EXPECT_EQ(result.parties[0].called, AllReduceOf(6));
    EXPECT_THAT(result.parties[1].ranks, ElementsAre(odd));
    EXPECT_THAT(result.silent, IsEmpty());
  }
}

TEST(Vote, ATieBlamesNobody) {
  Vote vote(4);
  vote.Begin(kCall, {100});
  for (int rank = 0; rank < 4; ++rank) {
    vote.Cast(rank, AllReduceOf(rank / 2));
  }
  const Vote::Result result = vote.Count();
  EXPECT_EQ(result.guilty, -1);
  EXPECT_THAT(result.parties[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(result.parties[1].ranks, ElementsAre(2, 3));
}

TEST(Vote, OfSeveralThatDifferTheLowestIsNamed) {
  Vote vote(5);
  vote.Begin(kCall, {100});
  for (int rank = 0; rank < 5; ++rank) {
    vote.Cast(rank, AllReduceOf(rank == 3 ? 1 : rank == 1 ? 2 : 0));
  }
  EXPECT_EQ(vote.Count().guilty, 1);
}

TEST(Vote, RanksThatAreGoneOrForgotTheirCallAreCountedByWhatOthersHeard) {
  Vote vote(4);
  vote.Begin(kCall, {100});
  vote.Cast(0, AllReduceOf(6));
  vote.Cast(1, AllReduceOf(6));
  vote.Witness(2, AllReduceOf(5));
  EXPECT_FALSE(vote.Complete());
  vote.Cast(2, std::nullopt);
  vote.OnGone(3);
  EXPECT_TRUE(vote.Complete());
  const Vote::Result result = vote.Count();
  EXPECT_EQ(result.guilty, 2);
  EXPECT_THAT(result.silent, ElementsAre(3));
}

TEST(Vote, ARanksOwnWordCountsMore) {
  Vote vote(2);
  vote.Begin(kCall, {100});
  vote.Cast(0, AllReduceOf(6));
  vote.Witness(0, AllReduceOf(5));
  vote.Witness(1, AllReduceOf(5));
  vote.Cast(1, AllReduceOf(6));
  EXPECT_EQ(vote.Count().parties.size(), 1u);
}

TEST(Vote, TheEarliestCallIsVotedAboutAlsoAcrossTheEndOfNumbers) {
  Vote vote(2);
  EXPECT_TRUE(vote.Begin({Tag::kUntagged, 3}, {100}));
  vote.Cast(0, AllReduceOf(6));
  EXPECT_FALSE(vote.Begin({Tag::kUntagged, 3}, {200}));
  EXPECT_FALSE(vote.Begin({Tag::kUntagged, 4}, {200}));
  EXPECT_TRUE(vote.Begin({Tag::kUntagged, Tag::kCallMask}, {200}));
  EXPECT_TRUE(vote.IsAbout({Tag::kUntagged, Tag::kCallMask}));
  EXPECT_EQ(vote.until().at_ns, 200);
  EXPECT_THAT(vote.Count().silent, ElementsAre(0, 1)) << "ballots about another call";
  EXPECT_TRUE(vote.Begin({7, 900}, {300}));
  vote.Stop();
  EXPECT_FALSE(vote.on());
}

}  // namespace
}  // namespace entrain
