// Ranks that called different things. The test plays the communicator and the endpoints.
#include "lib/comm/mismatch.h"

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_peer.h"
#include "tests/comm/played_shell.h"

namespace entrain {
namespace {

struct Disagreement {
  CallId call;
  uint64_t sequence;
  Vote::Result votes;
};

class MismatchTest : public testing::Test, public ComparedCalls, public PlayedShell {
 protected:
  static constexpr int kRanks = 4, kMe = 1;
  MismatchTest() {
    for (int r = 0; r < kRanks; ++r) {
      Member member;
      member.endpoint = r == kMe ? nullptr : &endpoints[static_cast<size_t>(r)];
      member.context = static_cast<Context>(10 + r);
      members.push_back(member);
    }
    peers.emplace("c", "c", kMe, members);
    mismatches.emplace(*this, *this, *peers, clock);
  }
  // ComparedCalls
  std::optional<OwnCall> OwnCollective(CallId call) const override {
    for (const OwnCall& one : open) {
      if (one.id == call) {
        return one;
      }
    }
    return std::nullopt;
  }
  Deadline FirstDeadline() const override { return first_deadline; }
  // CommShell
  bool SaysNothing(int rank) const override { return rank == silent; }
  void NeedFlush() override { ++flushes; }
  void NeedAttention() override { wants_attention = true; }
  void Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) override {
    disagreements.push_back({call, sequence, votes});
    mismatches->Stop();  // as a communicator does when it ends
  }
  void Fail(const absl::Status& why) override {
    failures.push_back(why);
    mismatches->Stop();
  }

  static Descriptor Calls(int64_t count) {
    Call call;
    call.kind = CallKind::kAllReduce;
    call.count = count;
    return call.descriptor();
  }
  static Wiring WiringOf(uint32_t number, bool point_to_point = false) {
    Wiring wiring;
    wiring.call_number = number;
    wiring.sequence = number;
    wiring.point_to_point = point_to_point;
    return wiring;
  }
  static CallId Id(uint32_t number) { return {Tag::kUntagged, number}; }
  // A call of this rank starts.
  void Starts(uint32_t number, const Descriptor& mine) {
    open.push_back({Id(number), number, mine});
    mismatches->Meet(WiringOf(number), mine);
  }
  void Attend() {
    while (std::exchange(wants_attention, false)) {
      mismatches->Attend();
    }
  }
  void BallotOf(int rank, uint32_t number, const Descriptor& called) {
    const std::string text = Ballot(number, called);
    Reader reader(text);
    mismatches->OnBallot(rank, reader);
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
  size_t BallotsSent() const {
    size_t sent = 0;
    for (const PlayedPeer& endpoint : endpoints) {
      sent += endpoint.urgent.size();
    }
    return sent;
  }
  Endpoint& From(int rank) { return endpoints[static_cast<size_t>(rank)]; }

  FakeClock clock;
  std::deque<PlayedPeer> endpoints{kRanks};
  std::vector<Member> members;
  std::optional<Peers> peers;
  std::optional<Mismatches> mismatches;
  std::vector<OwnCall> open;
  Deadline first_deadline;
  int silent = -1, flushes = 0;
  bool wants_attention = false;
  std::vector<Disagreement> disagreements;
  std::vector<absl::Status> failures;
};

TEST_F(MismatchTest, EqualCallsAreNone) {
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(4));
  mismatches->NoteOver(WiringOf(0), Calls(4));
  open.clear();
  mismatches->Compare(From(2), Id(0), Calls(4));
  EXPECT_FALSE(mismatches->voting());
}

TEST_F(MismatchTest, AnOpenCallIsComparedAtOnce) {
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  EXPECT_TRUE(mismatches->voting());
}

TEST_F(MismatchTest, ALaterCallIsComparedWhenItStarts) {
  mismatches->Compare(From(0), Id(3), Calls(5));
  EXPECT_FALSE(mismatches->voting());
  Starts(3, Calls(4));
  EXPECT_TRUE(mismatches->voting());
}

TEST_F(MismatchTest, ACallThatIsOverIsCompared) {
  mismatches->NoteOver(WiringOf(7), Calls(4));
  mismatches->Compare(From(0), Id(7), Calls(5));
  EXPECT_TRUE(mismatches->voting());
}

TEST_F(MismatchTest, MessagesOfTwoRanksAreNotCompared) {
  mismatches->Compare(From(0), Id(0), Calls(5));
  mismatches->Meet(WiringOf(0, /*point_to_point=*/true), Calls(4));
  EXPECT_FALSE(mismatches->voting());
}

TEST_F(MismatchTest, TheBallotGoesToAllThatListenOnce) {
  silent = 3;
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  Attend();
  EXPECT_EQ(BallotsSent(), 2u);
  EXPECT_TRUE(endpoints[3].urgent.empty());
  EXPECT_GT(flushes, 0);
  mismatches->Attend();
  EXPECT_EQ(BallotsSent(), 2u);
}

TEST_F(MismatchTest, TheRankThatCalledSomethingElseIsGuilty) {
  Starts(2, Calls(4));
  mismatches->Compare(From(0), Id(2), Calls(5));
  BallotOf(0, 2, Calls(5));
  BallotOf(2, 2, Calls(4));
  Attend();
  EXPECT_TRUE(disagreements.empty()) << "a ballot is missing";
  BallotOf(3, 2, Calls(4));
  Attend();
  ASSERT_EQ(disagreements.size(), 1u);
  EXPECT_EQ(disagreements[0].votes.guilty, 0);
  EXPECT_EQ(disagreements[0].sequence, 2u);
  EXPECT_FALSE(mismatches->voting());
}

TEST_F(MismatchTest, ARankThatHasNotCalledYetVotesWhenItStarts) {
  BallotOf(0, 5, Calls(5));
  Attend();
  EXPECT_EQ(BallotsSent(), 0u) << "its own call is not known";
  Starts(5, Calls(4));
  Attend();
  EXPECT_EQ(BallotsSent(), 3u);
}

TEST_F(MismatchTest, BallotsAreAwaitedForALimitedTime) {
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  Attend();
  mismatches->OnTick(clock.Now() + Vote::kVoteNs - 1);
  EXPECT_TRUE(disagreements.empty());
  mismatches->OnTick(clock.Now() + Vote::kVoteNs);
  ASSERT_EQ(disagreements.size(), 1u);
  EXPECT_EQ(disagreements[0].votes.guilty, -1) << "one against one";
  EXPECT_EQ(disagreements[0].votes.silent, (std::vector<int>{2, 3}));
}

TEST_F(MismatchTest, ACallThatExpiresBeforeShortensTheVote) {
  first_deadline = {clock.Now() + 10};
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  EXPECT_EQ(mismatches->until().at_ns, first_deadline.at_ns + Vote::kLateNs);
}

TEST_F(MismatchTest, ARankThatGoesIsNotAwaited) {
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  BallotOf(0, 0, Calls(5));
  BallotOf(2, 0, Calls(4));
  Attend();
  mismatches->OnGone(3);
  Attend();
  ASSERT_EQ(disagreements.size(), 1u);
  EXPECT_EQ(disagreements[0].votes.guilty, 0);
}

TEST_F(MismatchTest, ADifferenceBetweenTwoCountsWhereAllCalledTheSame) {
  Starts(0, Calls(4));
  mismatches->FoundBetweenTwo(Id(0), absl::DataLossError("lengths differ"));
  for (const int r : {0, 2, 3}) {
    BallotOf(r, 0, Calls(4));
  }
  Attend();
  EXPECT_TRUE(disagreements.empty());
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].message(), "lengths differ");
}

TEST_F(MismatchTest, ACallerWaitsForTheEndOfTheVote) {
  mismatches->NoteOver(WiringOf(0), Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  const RefPtr<Work> end = mismatches->End();
  EXPECT_FALSE(end->done());
  mismatches->OnTick(mismatches->until().at_ns);
  EXPECT_TRUE(end->done());
}

TEST_F(MismatchTest, StopEndsTheVoteAndForgetsWhatWasHeard) {
  mismatches->Compare(From(0), Id(1), Calls(5));
  Starts(0, Calls(4));
  mismatches->Compare(From(0), Id(0), Calls(5));
  const RefPtr<Work> end = mismatches->End();
  mismatches->Stop();
  EXPECT_TRUE(end->done());
  EXPECT_FALSE(mismatches->voting());
  Starts(1, Calls(4));
  EXPECT_FALSE(mismatches->voting());
}

TEST_F(MismatchTest, AMalformedBallotIsIgnored) {
  Starts(0, Calls(4));
  for (const std::string& text :
       {std::string("x"), Ballot(0, Calls(5), kRanks), Ballot(0, Calls(5)) + "x"}) {
    Reader reader(text);
    mismatches->OnBallot(0, reader);
    EXPECT_FALSE(mismatches->voting());
  }
}

}  // namespace
}  // namespace entrain
