// Ranks that called different things. The test plays the other ranks.
#include "lib/comm/failure/mismatch.h"

#include <optional>
#include <string>
#include <vector>

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

// ---- The exchange of ballots

class MismatchTest : public testing::Test {
 protected:
  static constexpr int kRanks = 4, kMe = 1;
  static constexpr int64_t kLimitNs = 1000;

  static Descriptor Calls(int64_t count) {
    Call call;
    call.kind = CallKind::kAllReduce;
    call.count = count;
    return call.descriptor();
  }
  static CallId Id(uint32_t number) { return {Tag::kUntagged, number}; }
  // Rank 0 has called something else than this rank.
  void Differs(uint32_t number) { mismatches.Found(Id(number), 0, Calls(5), {kLimitNs}); }
  // Does what the driver does soon after an event. `mine`: this rank's call, open or over.
  void Attend(uint32_t number, std::optional<Descriptor> mine, int64_t now_ns = 0) {
    const auto own = mine ? std::optional<OwnCall>({Id(number), number, *mine}) : std::nullopt;
    if (auto ballot = mismatches.TakeBallot(own, /*forgotten=*/false)) {
      ballots.push_back(*ballot);
    }
    if (const auto verdict = mismatches.TakeVerdict(now_ns)) {
      verdicts.push_back(*verdict);
    }
  }
  void BallotOf(int rank, uint32_t number, const Descriptor& called) {
    Hear(rank, Ballot(number, called));
  }
  void Hear(int rank, const std::string& text) {
    Reader reader(text);
    mismatches.OnBallot(rank, reader, {kLimitNs});
  }
  static std::string Ballot(uint32_t number, const Descriptor& called, int32_t witnessed = -1) {
    std::string text;
    const auto put = [&](const auto& value) {
      text.append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    put(uint32_t{Tag::kUntagged});
    put(number);
    put(uint8_t{1});
    put(called);
    put(witnessed);
    put(called);
    return text;
  }

  Mismatches mismatches{kMe, kRanks};
  std::vector<std::string> ballots;
  std::vector<Mismatches::Verdict> verdicts;
};

TEST_F(MismatchTest, TheBallotIsSentOnce) {
  mismatches.OnGone(3);
  Differs(0);
  EXPECT_TRUE(mismatches.voting());
  Attend(0, Calls(4));
  Attend(0, Calls(4));
  ASSERT_EQ(ballots.size(), 1u);
  EXPECT_TRUE(mismatches.gone(3)) << "it gets no ballot";
  EXPECT_FALSE(mismatches.gone(2));
  // Another rank counts what it says.
  Mismatches other(2, kRanks);
  Reader reader(ballots[0]);
  other.OnBallot(kMe, reader, {kLimitNs});
  const auto verdict = other.TakeVerdict(kLimitNs);
  ASSERT_TRUE(verdict.has_value());
  ASSERT_EQ(verdict->votes.parties.size(), 2u);
  EXPECT_EQ(verdict->votes.parties[0].called, Calls(5)) << "heard from rank 0";
  EXPECT_EQ(verdict->votes.parties[1].called, Calls(4));
}

TEST_F(MismatchTest, TheRankThatCalledSomethingElseIsGuilty) {
  Differs(2);
  BallotOf(0, 2, Calls(5));
  BallotOf(2, 2, Calls(4));
  Attend(2, Calls(4));
  EXPECT_TRUE(verdicts.empty()) << "a ballot is missing";
  BallotOf(3, 2, Calls(4));
  Attend(2, Calls(4));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].votes.guilty, 0);
  EXPECT_FALSE(mismatches.voting());
}

TEST_F(MismatchTest, ARankThatHasNotCalledYetVotesWhenItStarts) {
  BallotOf(0, 5, Calls(5));
  Attend(5, std::nullopt);
  EXPECT_TRUE(ballots.empty()) << "its own call is not known";
  Attend(5, Calls(4));
  EXPECT_EQ(ballots.size(), 1u);
}

TEST_F(MismatchTest, ARankThatHasForgottenItsCallSaysSo) {
  Differs(0);
  const auto ballot = mismatches.TakeBallot(std::nullopt, /*forgotten=*/true);
  ASSERT_TRUE(ballot.has_value());
  EXPECT_EQ(mismatches.TakeVerdict(kLimitNs)->votes.silent, (std::vector<int>{1, 2, 3}));
}

TEST_F(MismatchTest, BallotsAreAwaitedForALimitedTime) {
  Differs(0);
  Attend(0, Calls(4), kLimitNs - 1);
  EXPECT_TRUE(verdicts.empty());
  Attend(0, Calls(4), kLimitNs);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].votes.guilty, -1) << "one against one";
  EXPECT_EQ(verdicts[0].votes.silent, (std::vector<int>{2, 3}));
}

TEST_F(MismatchTest, TheTimeFollowsThePathsAndACallThatExpiresBefore) {
  EXPECT_EQ(Mismatches::Until(7, 3, Deadline::Never()).at_ns, 7 + Vote::kVoteNs + 6);
  EXPECT_EQ(Mismatches::Until(7, 3, {17}).at_ns, 17 + Vote::kLateNs);
}

TEST_F(MismatchTest, ARankThatGoesIsNotAwaited) {
  Differs(0);
  BallotOf(0, 0, Calls(5));
  BallotOf(2, 0, Calls(4));
  Attend(0, Calls(4));
  mismatches.OnGone(3);
  Attend(0, Calls(4));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].votes.guilty, 0);
}

TEST_F(MismatchTest, ADifferenceBetweenTwoCountsWhereAllCalledTheSame) {
  mismatches.FoundBetweenTwo(Id(0), absl::DataLossError("lengths differ"), {kLimitNs});
  for (const int r : {0, 2, 3}) {
    BallotOf(r, 0, Calls(4));
  }
  Attend(0, Calls(4));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].votes.parties.size(), 1u);
  EXPECT_EQ(verdicts[0].between_two.message(), "lengths differ");
}

TEST_F(MismatchTest, StopEndsTheVote) {
  Differs(0);
  mismatches.Stop();
  EXPECT_FALSE(mismatches.voting());
  Attend(0, Calls(4), kLimitNs);
  EXPECT_TRUE(ballots.empty());
  EXPECT_TRUE(verdicts.empty());
}

TEST_F(MismatchTest, AMalformedBallotIsIgnored) {
  for (const std::string& text :
       {std::string("x"), Ballot(0, Calls(5), kRanks), Ballot(0, Calls(5)) + "x"}) {
    Hear(0, text);
    EXPECT_FALSE(mismatches.voting());
  }
}

}  // namespace
}  // namespace entrain
