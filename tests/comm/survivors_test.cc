#include "lib/comm/failure/survivors.h"

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using End = Survivors::End;
using Error = Survivors::Error;
using Kind = Survivors::Kind;
using Wish = Survivors::Wish;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kSilence = 1000;

// Machines whose messages the test delivers. The time changes only if a test changes it.
class Ranks {
 public:
  explicit Ranks(int size) : dead_(static_cast<size_t>(size), false) {
    for (int r = 0; r < size; ++r) {
      machines_.push_back(std::make_unique<Survivors>(r, size));
    }
  }
  Survivors& operator[](int rank) { return *machines_[static_cast<size_t>(rank)]; }
  void Call(int rank, Wish wish = Wish()) {
    wish.context = static_cast<uint16_t>(10 + rank);
    (*this)[rank].Call(wish, now, kSilence);
    Collect();
  }
  void CallAll() {
    for (int r = 0; r < static_cast<int>(machines_.size()); ++r) {
      if (!dead_[static_cast<size_t>(r)]) {
        Call(r);
      }
    }
  }
  // The ranks do not reach each other, and know it.
  void Cut(int a, int b) {
    (*this)[a].OnCut(b, now);
    (*this)[b].OnCut(a, now);
    Collect();
  }
  // The rank ends. Messages that it has sent arrive, unless the test has dropped them.
  void Kill(int rank) {
    dead_[static_cast<size_t>(rank)] = true;
    for (int r = 0; r < static_cast<int>(machines_.size()); ++r) {
      if (!dead_[static_cast<size_t>(r)]) {
        (*this)[r].OnGone(rank, now);
      }
    }
    Collect();
  }
  // Delivers one message. Returns false if there is none.
  bool Deliver() {
    Collect();
    if (under_way.empty()) {
      return false;
    }
    const Under message = std::move(under_way.front());
    under_way.pop_front();
    if (!dead_[static_cast<size_t>(message.to)]) {
      (*this)[message.to].OnMessage(message.from, message.text, now);
    }
    Collect();
    return true;
  }
  void DeliverAll() {
    while (Deliver()) {
    }
  }
  void Collect() {
    for (int r = 0; r < static_cast<int>(machines_.size()); ++r) {
      for (auto& message : (*this)[r].TakeMessages()) {
        under_way.push_back({r, message.to, std::move(message.text)});
      }
    }
  }
  static int TypeOf(const std::string& text) { return text[4]; }

  struct Under {
    int from, to;
    std::string text;
  };
  std::deque<Under> under_way;
  int64_t now = 1000000;

 private:
  std::vector<std::unique_ptr<Survivors>> machines_;
  std::vector<bool> dead_;
};

constexpr int kProposal = 2, kDecision = 4;

std::vector<int> MembersOf(const Survivors& machine) {
  return machine.last() ? machine.last()->members.ranks() : std::vector<int>();
}

TEST(Survivors, AllDecideTheSame) {
  Ranks ranks(3);
  for (int r = 0; r < 3; ++r) {
    Wish wish;
    wish.kind = Kind::kShrink;
    wish.flag = ~(1u << r);
    ranks.Call(r, wish);
  }
  EXPECT_TRUE(ranks[0].pending());
  ranks.DeliverAll();
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(ranks[r].last().has_value());
    EXPECT_EQ(*ranks[r].last(), *ranks[0].last());
    EXPECT_FALSE(ranks[r].pending());
    EXPECT_EQ(ranks[r].number(), 2u);
  }
  EXPECT_THAT(MembersOf(ranks[0]), ElementsAre(0, 1, 2));
  EXPECT_THAT(ranks[0].last()->contexts, ElementsAre(10, 11, 12));
  EXPECT_EQ(ranks[0].last()->flag, ~7u);
}

TEST(Survivors, ARankThatHasNotCalledIsWaitedForAndNamed) {
  Ranks ranks(3);
  ranks.Call(0);
  ranks.Call(2);
  ranks.DeliverAll();
  EXPECT_TRUE(ranks[0].pending());
  EXPECT_THAT(ranks[0].knowledge().not_called(), ElementsAre(1));
  // The rank answers, so it is not silent.
  for (int i = 0; i < 20; ++i) {
    ranks.now += kSilence / 4;
    ranks[0].OnTick(ranks.now);
    ranks[2].OnTick(ranks.now);
    ranks.DeliverAll();
  }
  EXPECT_THAT(ranks[0].knowledge().cut().ranks(), IsEmpty());
  ranks.Call(1);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[2]), ElementsAre(0, 1, 2));
}

TEST(Survivors, TheDeadAreLeftOutHoweverFewAreLeft) {
  Ranks ranks(4);
  ranks.Kill(0);
  ranks.Kill(1);
  ranks.CallAll();
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[2]), ElementsAre(2, 3));
  ranks.Kill(2);
  ranks.Call(3);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[3]), ElementsAre(3));
}

TEST(Survivors, OfTwoHalvesTheOneWithTheLowestRankGoesOn) {
  Ranks ranks(4);
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 3), std::pair(2, 1), std::pair(2, 3)}) {
    ranks.Cut(a, b);
  }
  ranks.CallAll();
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[0]), ElementsAre(0, 2));
  EXPECT_THAT(MembersOf(ranks[2]), ElementsAre(0, 2));
  EXPECT_EQ(ranks[1].end(), End::kMinority);
  EXPECT_EQ(ranks[3].end(), End::kMinority);
}

TEST(Survivors, EachSideGoesOnIfTheCallersWishIt) {
  Ranks ranks(2);
  ranks.Cut(0, 1);
  Wish wish;
  wish.any = true;
  ranks.Call(0, wish);
  ranks.Call(1, wish);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[0]), ElementsAre(0));
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(1));
}

// Shows why a majority of the ranks that are not proven dead is no quorum.
TEST(Survivors, TwoOfFourDoNotGoOnWhenAnotherOneHasDied) {
  Ranks ranks(4);
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(3, 1), std::pair(3, 2)}) {
    ranks.Cut(a, b);
  }
  ranks.Call(0);
  ranks.Call(3);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[3]), ElementsAre(0, 3));
  ranks.under_way.clear();
  ranks.Kill(0);
  ranks.Call(1);
  ranks.Call(2);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[1]), IsEmpty());
  EXPECT_NE(ranks[1].end(), End::kNone);
  EXPECT_NE(ranks[2].end(), End::kNone);
}

// Rank 0 has decided, and no other rank knows the decision.
TEST(Survivors, TheNextLeaderDecidesWhatADeadOneMayHaveDecided) {
  Ranks ranks(3);
  ranks.CallAll();
  while (!ranks[0].last()) {
    ASSERT_TRUE(ranks.Deliver());
  }
  std::erase_if(ranks.under_way, [](const auto& message) { return message.from == 0; });
  EXPECT_FALSE(ranks[1].last().has_value());
  ranks.Kill(0);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(0, 1, 2));
  EXPECT_EQ(*ranks[1].last(), *ranks[0].last());
  EXPECT_EQ(*ranks[2].last(), *ranks[0].last());
}

TEST(Survivors, ALeaderThatDiesBeforeItProposesIsLeftOut) {
  Ranks ranks(3);
  ranks.CallAll();
  while (ranks.under_way.empty() || Ranks::TypeOf(ranks.under_way.back().text) != kProposal) {
    ASSERT_TRUE(ranks.Deliver());
  }
  std::erase_if(ranks.under_way, [](const auto& message) { return message.from == 0; });
  ranks.Kill(0);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(1, 2));
}

TEST(Survivors, ASilentRankIsCutAndLearnsWhoWentOn) {
  Ranks ranks(3);
  ranks.Call(0);
  ranks.Call(1);
  const auto hold_back = [&](std::vector<Ranks::Under>* held) {
    for (auto at = ranks.under_way.begin(); at != ranks.under_way.end();) {
      if (at->to == 2) {
        held->push_back(*at);
        at = ranks.under_way.erase(at);
      } else {
        ++at;
      }
    }
  };
  std::vector<Ranks::Under> held;
  for (int i = 0; i < 5; ++i) {
    hold_back(&held);
    ranks.DeliverAll();
    hold_back(&held);
    ranks.now += kSilence / 4;
    ranks[0].OnTick(ranks.now);
    ranks[1].OnTick(ranks.now);
    ranks.Collect();
  }
  hold_back(&held);
  while (!ranks.under_way.empty()) {
    ranks.Deliver();
    hold_back(&held);
  }
  EXPECT_THAT(MembersOf(ranks[0]), ElementsAre(0, 1));
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(0, 1));
  ranks.under_way.assign(held.begin(), held.end());
  ranks.DeliverAll();
  EXPECT_EQ(ranks[2].end(), End::kLeftOut);
  EXPECT_THAT(ranks[2].those_who_went_on().ranks(), ElementsAre(0, 1));
}

TEST(Survivors, ARankThatWasStoppedDoesNotTakeTheOthersForSilent) {
  Ranks ranks(2);
  ranks.Call(0);
  ranks.DeliverAll();
  ranks.now += 10 * kSilence;
  ranks[0].OnTick(ranks.now);
  EXPECT_THAT(ranks[0].knowledge().cut().ranks(), IsEmpty());
  EXPECT_GT(ranks[0].next_tick().at_ns, ranks.now);
  ranks.now += kSilence / 4;
  ranks[0].OnTick(ranks.now);
  ranks.now += kSilence / 4;
  ranks[0].OnTick(ranks.now);
  ranks.now += kSilence / 2;
  ranks[0].OnTick(ranks.now);
  EXPECT_THAT(ranks[0].knowledge().cut().ranks(), ElementsAre(1)) << "it has had time to answer";
}

TEST(Survivors, AnExcludedRankGivesUpAndItsExcluderIsKnown) {
  Ranks ranks(3);
  Wish wish;
  wish.exclude = {1};
  ranks.Call(2, wish);
  ranks.Call(0);
  ranks.DeliverAll();
  EXPECT_EQ(ranks[1].end(), End::kNone) << "it may find that its excluder has cut it";
  ranks.now = ranks[1].next_tick().at_ns;
  ranks[1].OnTick(ranks.now);
  ranks.DeliverAll();
  EXPECT_EQ(ranks[1].end(), End::kExcluded);
  EXPECT_EQ(ranks[1].by(), 2);
  EXPECT_THAT(MembersOf(ranks[0]), ElementsAre(0, 2));
}

// The lower one of two ranks is stopped. The other excludes it, waits for its answer, and gives up as
// a minority. When the stopped rank wakes up, it is the half with the lowest rank, and goes on.
// (Before, it obeyed the exclusion, and nobody went on.)
TEST(Survivors, AStoppedRankGoesOnIfItsExcluderHasGivenUp) {
  Ranks ranks(2);
  Wish wish;
  wish.exclude = {0};
  ranks.Call(1, wish);
  while (ranks[1].end() == End::kNone) {
    ranks.now = ranks[1].next_tick().at_ns;
    ranks[1].OnTick(ranks.now);
    ranks.Collect();
  }
  EXPECT_EQ(ranks[1].end(), End::kMinority);
  ranks.DeliverAll();
  ranks.now += kSecond;
  ranks[0].OnTick(ranks.now);
  EXPECT_EQ(ranks[0].end(), End::kNone);
  ranks.Call(0);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[0]), ElementsAre(0));
}

// The lower one of two ranks is late, wakes up as the other excludes it, and makes the call too. It
// does not propose that both go on.
TEST(Survivors, AnExcludedLeaderDoesNotPropose) {
  Ranks ranks(2);
  Wish wish;
  wish.exclude = {0};
  ranks.Call(0);
  ranks.Call(1, wish);
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[1]), IsEmpty());
  ranks.now = ranks[0].next_tick().at_ns;
  while (ranks[0].end() == End::kNone) {
    ranks.now = ranks[0].next_tick().at_ns;
    ranks[0].OnTick(ranks.now);
    ranks[1].OnTick(ranks.now);
    ranks.DeliverAll();
  }
  EXPECT_EQ(ranks[0].end(), End::kExcluded);
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(1));
}

// Of three ranks, two exclude the stopped one and go on. It learns that when it wakes up.
TEST(Survivors, AStoppedRankIsLeftOutIfItsExcludersHaveGoneOn) {
  Ranks ranks(3);
  Wish wish;
  wish.exclude = {0};
  ranks.Call(1, wish);
  ranks.Call(2, wish);
  std::deque<Ranks::Under> for_the_stopped;
  for (int i = 0; i < 1000 && MembersOf(ranks[2]).empty(); ++i) {
    ranks.Collect();
    for (auto& message : std::exchange(ranks.under_way, {})) {
      (message.to == 0 ? for_the_stopped : ranks.under_way).push_back(std::move(message));
    }
    if (!ranks.Deliver()) {
      ranks.now = std::min(ranks[1].next_tick().at_ns, ranks[2].next_tick().at_ns);
      ranks[1].OnTick(ranks.now);
      ranks[2].OnTick(ranks.now);
    }
  }
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(1, 2));
  ranks.under_way = std::move(for_the_stopped);
  ranks.Call(0);
  ranks.DeliverAll();
  ranks.now += kSecond;
  ranks[0].OnTick(ranks.now);
  ranks.DeliverAll();
  EXPECT_NE(ranks[0].end(), End::kNone);
  EXPECT_THAT(MembersOf(ranks[0]), IsEmpty());
}

TEST(Survivors, WhoReachesOthersOnlyInPartIsLeftOutFirst) {
  Ranks ranks(5);
  ranks.Cut(1, 2);
  ranks.Cut(1, 3);
  ranks.CallAll();
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[4]), ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(ranks[1].end(), End::kLeftOut);
}

TEST(Survivors, ALeaderThatFewReachGivesWay) {
  Ranks ranks(5);
  ranks.Cut(0, 2);
  ranks.Cut(0, 3);
  ranks.CallAll();
  ranks.DeliverAll();
  EXPECT_THAT(MembersOf(ranks[1]), ElementsAre(1, 2, 3, 4));
  EXPECT_NE(ranks[0].end(), End::kNone);
}

TEST(Survivors, DifferentCallsAreAnErrorOnAllAndTheNextOnesWork) {
  Ranks ranks(3);
  Wish shrink;
  shrink.kind = Kind::kShrink;
  ranks.Call(0, shrink);
  ranks.Call(1);
  ranks.Call(2, shrink);
  ranks.DeliverAll();
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks[r].last()->error, Error::kKinds);
    EXPECT_EQ(ranks[r].last()->culprit, 1);
  }
  ranks.CallAll();
  ranks.DeliverAll();
  EXPECT_EQ(ranks[2].last()->error, Error::kNone);
  EXPECT_EQ(ranks[2].number(), 3u);
}

TEST(Survivors, DifferentPoliciesAndMissingContextsAreErrors) {
  Ranks ranks(2);
  Wish any;
  any.any = true;
  ranks.Call(0);
  ranks.Call(1, any);
  ranks.DeliverAll();
  EXPECT_EQ(ranks[1].last()->error, Error::kPolicies);
  Wish shrink;
  shrink.kind = Kind::kShrink;
  ranks.Call(0, shrink);
  shrink.context = 0;
  ranks[1].Call(shrink, ranks.now, kSilence);
  ranks.DeliverAll();
  EXPECT_EQ(ranks[0].last()->error, Error::kContexts);
  EXPECT_EQ(ranks[0].last()->culprit, 1);
}

TEST(Survivors, ADecisionOfACutRankIsNotAdopted) {
  Ranks ranks(3);
  ranks.CallAll();
  while (!ranks[0].last()) {
    ASSERT_TRUE(ranks.Deliver());
  }
  // Rank 2 has accepted, and loses rank 0 before the decision comes.
  ranks[2].OnCut(0, ranks.now);
  std::deque<Ranks::Under> decisions;
  for (const auto& message : ranks.under_way) {
    if (message.to == 2 && message.from == 0 && Ranks::TypeOf(message.text) == kDecision) {
      decisions.push_back(message);
    }
  }
  ASSERT_EQ(decisions.size(), 1u);
  ranks[2].OnMessage(0, decisions[0].text, ranks.now);
  EXPECT_FALSE(ranks[2].last().has_value());
  EXPECT_EQ(ranks[2].end(), End::kNone) << "rank 1 has it too";
  ranks.DeliverAll();
  EXPECT_EQ(*ranks[2].last(), *ranks[0].last());
}

TEST(Survivors, MalformedMessagesDoNothing) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 300; ++run) {
    Ranks ranks(9);
    ranks.CallAll();
    for (int i = 0; i < 200 && ranks.Deliver(); ++i) {
      if (ranks.under_way.empty()) {
        break;
      }
      std::string text = ranks.under_way.front().text;
      if (random() % 2 == 0) {
        text.resize(random() % (text.size() + 1));
      } else {
        text[random() % text.size()] = static_cast<char>(random());
      }
      // The sender may be any number, also one that is not a rank.
      ranks[static_cast<int>(random() % 9)].OnMessage(static_cast<int>(random() % 11) - 1, text,
                                                      ranks.now);
    }
  }
}

}  // namespace
}  // namespace entrain
