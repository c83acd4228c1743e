#include "lib/train/edit/round_closing.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/rendezvous.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Closing::Kind;

// Three replicas of one rank.
const std::vector<ReplicaPlace> kThree = {{0, 0}, {1, 0}, {2, 0}};
const std::vector<Attended> kNew(3);

Attendance Came(int64_t waited_ns = 0, uint64_t flags = 0) {
  return {.arrivals = 1,
          .waited_ns = waited_ns,
          .flags = static_cast<int64_t>(flags),
          .has_anchors = 1};
}
const Attendance kAway = {.has_anchors = 1};

TEST(RoundClosing, ARoundOfAllIsClosedAtOnce) {
  const Closing closing =
      CloseRound({.quorum = 3, .deadline_ns = 100}, {Came(), Came(), Came()}, kThree, kNew);
  EXPECT_EQ(closing.kind, Kind::kClose);
  EXPECT_THAT(closing.replicas, ElementsAre(true, true, true));
  EXPECT_FALSE(closing.others_wait);
}

TEST(RoundClosing, AQuorumIsEnough) {
  const ClosingRule two = {.quorum = 2};
  EXPECT_EQ(CloseRound(two, {kAway, Came(), kAway}, kThree, kNew).kind, Kind::kWait);
  const Closing closing = CloseRound(two, {Came(), kAway, Came()}, kThree, kNew);
  EXPECT_EQ(closing.kind, Kind::kClose);
  EXPECT_THAT(closing.replicas, ElementsAre(true, false, true));
}

TEST(RoundClosing, ADeadlineIsCountedFromTheFirstThatHasCome) {
  const ClosingRule rule = {.deadline_ns = 100};
  EXPECT_EQ(CloseRound(rule, {Came(99), Came(3), kAway}, kThree, kNew).kind, Kind::kWait);
  EXPECT_EQ(CloseRound(rule, {kAway, Came(100), kAway}, kThree, kNew).kind, Kind::kClose);
}

TEST(RoundClosing, WithBothTheQuorumMustHaveComeAtTheDeadline) {
  const ClosingRule rule = {.quorum = 2, .deadline_ns = 100};
  EXPECT_EQ(CloseRound(rule, {Came(99), Came(99), kAway}, kThree, kNew).kind, Kind::kWait);
  EXPECT_EQ(CloseRound(rule, {Came(200), kAway, kAway}, kThree, kNew).kind, Kind::kWait);
  EXPECT_EQ(CloseRound(rule, {Came(200), Came(1), kAway}, kThree, kNew).kind, Kind::kClose);
}

TEST(RoundClosing, AReplicaThatInsistsWaitsUntilAllDo) {
  const ClosingRule one = {.quorum = 1};
  const Attendance insists = Came(9, kInsist), leaves = Came(9, kLeaving);
  EXPECT_EQ(CloseRound(one, {insists, insists, kAway}, kThree, kNew).kind, Kind::kWait);
  EXPECT_EQ(CloseRound(one, {insists, insists, insists}, kThree, kNew).kind, Kind::kClose);
  EXPECT_EQ(CloseRound(one, {insists, insists, leaves}, kThree, kNew).kind, Kind::kClose);
  // A replica that has come for an exchange without insisting goes on, and comes again.
  const Closing early = CloseRound(one, {insists, Came(), insists}, kThree, kNew);
  EXPECT_EQ(early.kind, Kind::kTakeUp);
  EXPECT_THAT(early.replicas, ElementsAre(false, true, false));
}

TEST(RoundClosing, ReplicasThatLeaveCloseNoRoundOfTheirOwn) {
  const ClosingRule one = {.quorum = 1};
  EXPECT_EQ(CloseRound(one, {Came(9, kLeaving), Came(9, kLeaving), kAway}, kThree, kNew).kind,
            Kind::kWait);
  EXPECT_THAT(CloseRound(one, {Came(9, kLeaving), Came(), kAway}, kThree, kNew).replicas,
              ElementsAre(true, true, false));
  const Attendance leaves = Came(0, kLeaving);
  EXPECT_EQ(CloseRound(one, {leaves, leaves, leaves}, kThree, kNew).kind, Kind::kClose);
}

TEST(RoundClosing, ARankWithoutAnchorsCannotBeLate) {
  const ClosingRule one = {.quorum = 1};
  EXPECT_EQ(CloseRound(one, {Came(), Came(), Attendance()}, kThree, kNew).kind, Kind::kWait);
}

TEST(RoundClosing, AReplicaHasComeWhenAllItsRanksHave) {
  const std::vector<ReplicaPlace> places = {{0, 0}, {0, 1}, {3, 0}, {3, 1}};
  const std::vector<Attended> replicas(2);
  const ClosingRule one = {.quorum = 1};
  EXPECT_EQ(CloseRound(one, {Came(), kAway, kAway, Came()}, places, replicas).kind, Kind::kWait);
  const Closing closing = CloseRound(one, {Came(), kAway, Came(), Came()}, places, replicas);
  EXPECT_THAT(closing.replicas, ElementsAre(false, true));
  EXPECT_TRUE(closing.others_wait) << "rank 0";
}

// Replica 2 misses two rounds, then comes and takes up, then takes part.
TEST(RoundClosing, AReplicaThatWasLateTakesUpBeforeItTakesPart) {
  const ClosingRule two = {.quorum = 2};
  std::vector<Attended> replicas = kNew;
  std::vector<Attendance> all = {kAway, kAway, kAway};
  const auto decide = [&] {
    const Closing closing = CloseRound(two, all, kThree, replicas);
    Attend(closing, &replicas);
    return std::make_pair(closing.kind, closing.replicas);
  };
  for (const int64_t round : {1, 2}) {
    all[0].arrivals = all[1].arrivals = round;
    EXPECT_THAT(decide(), testing::Pair(Kind::kClose, ElementsAre(true, true, false)));
    EXPECT_EQ(replicas[2].missed, round);
  }
  all[2].arrivals = 1;
  all[0].arrivals = 3;  // its take-up is before any round
  EXPECT_THAT(decide(), testing::Pair(Kind::kTakeUp, ElementsAre(false, false, true)));
  EXPECT_EQ(replicas[2].missed, 0);
  EXPECT_THAT(decide(), testing::Pair(Kind::kWait, IsEmpty()));
  all[2].arrivals = 2;
  EXPECT_THAT(decide(), testing::Pair(Kind::kClose, ElementsAre(true, false, true)));
}

// ---- Rounds of fragments

const Attendance kTrains = {.has_anchors = 1};
const FragmentWait kNone;

// Two fragments of three replicas of one rank. `waits`: of replica 0, of replica 1, of replica 2.
Closing OfFragments(const ClosingRule& rule, const std::vector<FragmentWait>& waits,
                    const std::vector<Attendance>& all = {kTrains, kTrains, kTrains}) {
  return CloseFragment(rule, all, waits, kThree, kNew);
}

TEST(FragmentClosing, AFragmentThatAllOfferIsClosedAtOnce) {
  const ClosingRule rule = {.quorum = 1, .deadline_ns = 100, .fragments = 2};
  const FragmentWait offer = {.waited_ns = 1, .slack_ns = 50};
  const Closing closing = OfFragments(rule, {kNone, offer, kNone, offer, offer, offer});
  EXPECT_EQ(closing.kind, Kind::kClose);
  EXPECT_EQ(closing.fragment, 1);
  EXPECT_THAT(closing.replicas, ElementsAre(true, true, true));
  EXPECT_TRUE(closing.others_wait) << "the last replica also offers fragment 0";
}

TEST(FragmentClosing, AQuorumWaitsForTheDeadlineOrForTheSlack) {
  const ClosingRule rule = {.quorum = 2, .deadline_ns = 100, .fragments = 2};
  const auto closes = [&](FragmentWait first, FragmentWait second) {
    return OfFragments(rule, {first, kNone, second, kNone, kNone, kNone}).kind == Kind::kClose;
  };
  EXPECT_FALSE(closes({99, 1}, {5, 1}));
  EXPECT_TRUE(closes({100, 1}, {5, 1}));
  EXPECT_TRUE(closes({7, 0}, {5, 1})) << "the first needs the result";
  EXPECT_TRUE(closes({7, 9}, {5, -1}));
  EXPECT_FALSE(closes({200, -1}, kNone)) << "no quorum";
  EXPECT_TRUE(OfFragments(rule, {{200, -1}, kNone, kNone, kNone, kNone, kNone}).others_wait);
}

TEST(FragmentClosing, TheOneThatHasWaitedLongestComesFirst) {
  const ClosingRule rule = {.quorum = 1, .fragments = 2};
  const Closing closing = OfFragments(rule, {{3, 0}, {7, 0}, {5, 0}, kNone, {6, 0}, kNone});
  EXPECT_EQ(closing.fragment, 1);
  EXPECT_THAT(closing.replicas, ElementsAre(true, false, false));
  EXPECT_TRUE(closing.others_wait);
}

TEST(FragmentClosing, ReplicasThatLeaveAreNotWaitedFor) {
  const ClosingRule rule = {.quorum = 3, .deadline_ns = 100, .fragments = 2};
  const std::vector<FragmentWait> waits = {{1, 9}, kNone, {1, 9}, kNone, kNone, kNone};
  EXPECT_EQ(OfFragments(rule, waits).kind, Kind::kWait);
  const Closing closing = OfFragments(rule, waits, {kTrains, kTrains, Came(0, kLeaving)});
  EXPECT_EQ(closing.kind, Kind::kClose);
  EXPECT_THAT(closing.replicas, ElementsAre(true, true, false));
}

TEST(FragmentClosing, NoneIsClosedBeforeAllHaveAnchors) {
  const ClosingRule rule = {.quorum = 1, .fragments = 2};
  const std::vector<FragmentWait> waits = {{9, 0}, kNone, kNone, kNone, kNone, kNone};
  EXPECT_EQ(OfFragments(rule, waits, {kTrains, {}, kTrains}).kind, Kind::kWait);
}

TEST(FragmentClosing, AReplicaOffersWhenAllItsRanksDo) {
  const std::vector<ReplicaPlace> places = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  const std::vector<Attendance> all(4, kTrains);
  const ClosingRule rule = {.quorum = 1, .fragments = 1};
  EXPECT_EQ(CloseFragment(rule, all, std::vector<FragmentWait>{{9, 0}, kNone, kNone, {9, 0}},
                          places, std::vector<Attended>(2))
                .kind,
            Kind::kWait);
  const Closing closing =
      CloseFragment(rule, all, std::vector<FragmentWait>{{9, 0}, {2, 0}, kNone, {9, 0}}, places,
                    std::vector<Attended>(2));
  EXPECT_THAT(closing.replicas, ElementsAre(true, false));
}

TEST(FragmentClosing, RoundsOfCallersThenNeedAllReplicas) {
  const ClosingRule rule = {.quorum = 1, .fragments = 2};
  EXPECT_EQ(CloseRound(rule, {Came(9, kInsist), kAway, kAway}, kThree, kNew).kind, Kind::kWait);
  EXPECT_EQ(
      CloseRound(rule, {Came(9, kInsist), Came(0, kInsist), Came(0, kLeaving)}, kThree, kNew).kind,
      Kind::kClose);
}

}  // namespace
}  // namespace entrain
