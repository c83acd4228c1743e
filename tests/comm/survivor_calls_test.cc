// What calls of agree and shrink return. The test plays the core and the network of three ranks.
#include "lib/comm/failure/survivor_calls.h"

#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_peer.h"

namespace entrain {
namespace {

using Kind = Survivors::Kind;

constexpr int kRanks = 3;
constexpr int64_t kTimeoutNs = 2 * kSecond;

class SurvivorCallsTest : public testing::Test {
 protected:
  struct Rank {
    explicit Rank(int of) : rank(of) {
      for (int r = 0; r < kRanks; ++r) {
        Member member;
        member.host_id = "host";
        member.endpoint = r == rank ? nullptr : &endpoints[static_cast<size_t>(r)];
        members.push_back(member);
      }
      calls.Begin(std::vector<MemberReport>(kRanks), kSecond);
    }

    const int rank;
    std::deque<PlayedPeer> endpoints{kRanks};
    std::vector<Member> members;
    const std::string name = "c";
    FakeClock clock;
    const Peers peers{name, name, rank, members};
    const FailureWords words{name, peers, clock};
    SurvivorCalls calls{peers, words, name, 0};
    // What the core has done.
    int opened = 0, dropped = 0;
    std::vector<std::pair<int, Context>> next;
    std::vector<Context> unused;
    std::vector<SurvivorCalls::Outcome> over;
    absl::Status stale;
  };
  SurvivorCallsTest() {
    for (int r = 0; r < kRanks; ++r) {
      ranks.push_back(std::make_unique<Rank>(r));
    }
  }

  // Does what the machine of the rank wishes. Its messages wait in `sent`.
  void Perform(int r) {
    Rank& rank = *ranks[static_cast<size_t>(r)];
    SurvivorCalls::Effects todo = rank.calls.TakeEffects();
    for (const Survivors::Message& message : todo.messages) {
      sent.push_back({r, message});
    }
    if (todo.next) {
      ++rank.opened;
      rank.next = todo.next->members;
    }
    rank.unused.insert(rank.unused.end(), todo.unused.begin(), todo.unused.end());
    rank.stale.Update(todo.stale);
    rank.dropped += todo.drops_next ? 1 : 0;
    if (todo.over) {
      rank.over.push_back(*todo.over);
    }
  }
  void Deliver() {
    for (; !sent.empty(); sent.pop_front()) {
      const auto [from, message] = sent.front();
      ranks[static_cast<size_t>(message.to)]->calls.OnMessage(from, message.text, now);
      Perform(message.to);
    }
  }
  // The call of a rank, which reserves the context number 10 + rank for a shrink.
  absl::Status Start(int r, Kind kind, std::vector<int> exclude = {}) {
    SurvivorCall call;
    call.timeout_ns = kTimeoutNs;
    call.started_ns = now;
    call.next_name = "next";
    call.wish.kind = kind;
    call.wish.exclude = std::move(exclude);
    SurvivorCalls& calls = ranks[static_cast<size_t>(r)]->calls;
    call.wish.context = calls.WantsContext(kind) ? static_cast<Context>(10 + r) : 0;
    const absl::Status status = calls.Start(std::move(call), now);
    Perform(r);
    Deliver();
    return status;
  }
  // The time passes without silence of any rank.
  void Wait(int64_t ns) {
    for (const int64_t end = now + ns; now < end;) {
      now = std::min(now + 100 * kMillisecond, end);
      for (int r = 0; r < kRanks; ++r) {
        if (ranks[static_cast<size_t>(r)]->calls.next_tick().Passed(now)) {
          ranks[static_cast<size_t>(r)]->calls.OnTick(now, std::vector<uint64_t>(kRanks));
          Perform(r);
          Deliver();
        }
      }
    }
  }
  Rank& at(int r) { return *ranks[static_cast<size_t>(r)]; }
  // Returns the result of the rank's only call so far.
  const SurvivorCalls::Outcome& Result(int r) {
    EXPECT_EQ(at(r).over.size(), 1u);
    static const SurvivorCalls::Outcome kNone;
    return at(r).over.empty() ? kNone : at(r).over.back();
  }
  static bool Has(const absl::Status& why, const std::string& words) {
    return why.message().find(words) != std::string::npos;
  }

  int64_t now = 10 * kSecond;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::deque<std::pair<int, Survivors::Message>> sent;
};

TEST_F(SurvivorCallsTest, AShrinkMakesOneCommunicatorOfAllContexts) {
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(Start(r, Kind::kShrink).ok());
  }
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(Result(r).status.ok()) << Result(r).status;
    EXPECT_TRUE(Result(r).takes_next);
    EXPECT_EQ(at(r).opened, 1);
    EXPECT_EQ(at(r).next, (std::vector<std::pair<int, Context>>{{0, 10}, {1, 11}, {2, 12}}));
    EXPECT_TRUE(at(r).unused.empty()) << "the number is used";
  }
}

TEST_F(SurvivorCallsTest, OneCallAtATime) {
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  const absl::Status second = Start(0, Kind::kAgree);
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Has(second, "agree: another thread is in shrink of c")) << second;
  EXPECT_TRUE(at(0).over.empty());
}

TEST_F(SurvivorCallsTest, ARepeatedCallGetsTheDecisionThatCameTooLate) {
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  EXPECT_TRUE(Start(1, Kind::kShrink).ok());
  Wait(kTimeoutNs);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Result(0).status)) << Result(0).status;
  EXPECT_TRUE(Has(Result(0).status, "rank 2 did not make the call")) << Result(0).status;
  EXPECT_EQ(BlameOf(Result(0).status).rank, 2);
  EXPECT_EQ(at(0).opened, 0);
  EXPECT_TRUE(at(0).unused.empty()) << "the rank stays in the agreement";
  EXPECT_TRUE(Start(2, Kind::kShrink).ok());
  EXPECT_TRUE(Result(2).status.ok()) << Result(2).status;
  EXPECT_EQ(at(0).opened, 1);
  EXPECT_EQ(at(0).over.size(), 1u) << "no call takes it yet";
  EXPECT_FALSE(at(0).calls.WantsContext(Kind::kShrink));
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  ASSERT_EQ(at(0).over.size(), 2u);
  EXPECT_TRUE(at(0).over.back().status.ok());
  EXPECT_TRUE(at(0).over.back().takes_next);
  EXPECT_EQ(at(0).opened, 1);
}

TEST_F(SurvivorCallsTest, ACommunicatorThatNoCallTakesIsDropped) {
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  EXPECT_TRUE(Start(1, Kind::kShrink).ok());
  Wait(kTimeoutNs);
  EXPECT_TRUE(Start(2, Kind::kShrink).ok());
  at(0).calls.Close(absl::AbortedError("c: this rank left"));
  Perform(0);
  EXPECT_EQ(at(0).dropped, 1);
  EXPECT_EQ(Start(0, Kind::kShrink).message(), "c: this rank left");
  at(2).calls.Close(absl::AbortedError("c: this rank left"));
  Perform(2);
  EXPECT_EQ(at(2).dropped, 0) << "its call has taken it";
}

TEST_F(SurvivorCallsTest, ACallOfAnotherKindWaitsForTheEarlierDecision) {
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(Start(r, Kind::kAgree).ok());
  }
  Wait(kTimeoutNs);
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  EXPECT_TRUE(Start(2, Kind::kAgree).ok());
  EXPECT_TRUE(Result(2).status.ok()) << Result(2).status;
  for (int r = 1; r < kRanks; ++r) {
    EXPECT_TRUE(Start(r, Kind::kShrink).ok());
  }
  EXPECT_TRUE(at(0).over.back().takes_next);
  EXPECT_EQ(at(0).next.size(), 3u);
  EXPECT_TRUE(at(0).unused.empty());
  // Rank 1 has got the decision of agree after its call. A decision of shrink replaces it.
  EXPECT_TRUE(at(1).over.back().takes_next) << at(1).over.back().status;
}

TEST_F(SurvivorCallsTest, ACallThatHasOnlyWaitedGivesItsContextNumberBack) {
  EXPECT_TRUE(Start(0, Kind::kAgree).ok());
  Wait(kTimeoutNs);
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  EXPECT_TRUE(at(0).unused.empty());
  Wait(kTimeoutNs);
  EXPECT_EQ(at(0).over.size(), 2u);
  EXPECT_EQ(at(0).unused, std::vector<Context>{10});
}

TEST_F(SurvivorCallsTest, RanksThatCallDifferentThingsDisagree) {
  EXPECT_TRUE(Start(0, Kind::kShrink).ok());
  EXPECT_TRUE(Start(1, Kind::kAgree).ok());
  EXPECT_TRUE(Start(2, Kind::kShrink).ok());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(Result(r).status.code(), absl::StatusCode::kDataLoss) << Result(r).status;
    EXPECT_EQ(BlameOf(Result(r).status).rank, 1);
    EXPECT_EQ(at(r).opened, 0);
    EXPECT_EQ(at(r).unused.size(), r == 1 ? 0u : 1u);
  }
}

TEST_F(SurvivorCallsTest, AnExcludedRankEndsAsStale) {
  EXPECT_TRUE(Start(0, Kind::kShrink, {2}).ok());
  EXPECT_TRUE(Start(1, Kind::kShrink).ok());
  EXPECT_TRUE(Start(2, Kind::kShrink).ok());
  Wait(kSecond);
  EXPECT_EQ(at(0).next, (std::vector<std::pair<int, Context>>{{0, 10}, {1, 11}}));
  EXPECT_EQ(at(2).stale.code(), absl::StatusCode::kOutOfRange) << at(2).stale;
  EXPECT_EQ(Result(2).status, at(2).stale);
  EXPECT_EQ(at(2).unused, std::vector<Context>{12});
  EXPECT_TRUE(Start(2, Kind::kShrink).ok());
  EXPECT_EQ(at(2).over.back().status.code(), absl::StatusCode::kOutOfRange);
}

TEST_F(SurvivorCallsTest, ALostPathInsideAHostProvesTheEndOfAProcess) {
  Blame reset;
  reset.sys_errno = ECONNRESET;
  for (int r = 0; r < 2; ++r) {
    at(r).calls.OnLost(2, WithBlame(absl::UnavailableError("reset"), reset), now);
    EXPECT_TRUE(Start(r, Kind::kShrink).ok());
  }
  EXPECT_EQ(at(0).next, (std::vector<std::pair<int, Context>>{{0, 10}, {1, 11}}));
  EXPECT_TRUE(Result(1).takes_next);
}

}  // namespace
}  // namespace entrain
