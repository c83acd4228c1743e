// The end of a communicator: the messages to each rank, and the texts of errors.
#include "lib/comm/ending.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

class EndingTest : public PlayedComm {
 protected:
  EndingTest() { config.context = engine->ReserveContext(); }
  // CommShell
  std::shared_ptr<CommShell> Keep() override { return {kept, this}; }
  bool left(int rank) const override { return rank == gone; }
  void EndCalls(const absl::Status& why) override { ends.push_back(why); }

  std::string Message() const { return std::string(ending.status().message()); }
  static ControlKind KindOf(const std::string& message) {
    Reader reader(message);
    reader.Get<Context>();
    return reader.Get<ControlKind>();
  }

  OpenCalls open;
  const FailureWords words{config.name, *peers, engine->clock()};
  Ending ending{*this, *engine, config, *peers, words, open};
  std::shared_ptr<int> kept = std::make_shared<int>();
  int gone = -1;
  std::vector<absl::Status> ends;
};

TEST_F(EndingTest, AFailureIsToldToAllMembersByBothWays) {
  ending.Fail(absl::UnavailableError("c: lost somebody"));
  for (const int r : {0, 2}) {
    const PlayedPeer& peer = endpoints[static_cast<size_t>(r)];
    ASSERT_EQ(peer.sent.size(), 1u);
    EXPECT_EQ(KindOf(peer.sent[0]), ControlKind::kAbort);
    EXPECT_EQ(peer.sent, peer.urgent);
    EXPECT_EQ(peer.revoked.message(), "c: lost somebody");
  }
  EXPECT_FALSE(engine->Accepts(config.context));
  EXPECT_EQ(engine->causes().cause().message(), "c: lost somebody");
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0], ending.status());
}

TEST_F(EndingTest, TheFirstReasonCounts) {
  ending.Fail(absl::UnavailableError("c: first"));
  ending.Fail(absl::InternalError("c: second"));
  EXPECT_EQ(Message(), "c: first");
  EXPECT_EQ(ends.size(), 1u);
  EXPECT_EQ(endpoints[0].sent.size(), 1u);
}

TEST_F(EndingTest, AMemberThatHasLeftIsToldNothing) {
  gone = 2;
  ending.Fail(absl::UnavailableError("c: lost somebody"));
  EXPECT_EQ(endpoints[0].sent.size(), 1u);
  EXPECT_TRUE(endpoints[2].sent.empty());
  EXPECT_FALSE(endpoints[2].revoked.ok());
}

TEST_F(EndingTest, AnEarlierCauseOfThisProcessIsSaidToo) {
  engine->causes().Tell(absl::UnavailableError("other: lost rank 5"));
  ending.Abort("had enough");
  EXPECT_NE(Message().find("had enough"), std::string::npos) << Message();
  EXPECT_NE(Message().find("other: lost rank 5"), std::string::npos) << Message();
}

TEST_F(EndingTest, AnAbortBlamesThisRank) {
  ending.Abort("had enough");
  EXPECT_EQ(Message(), "c: aborted by rank 1: had enough");
  EXPECT_EQ(BlameOf(ending.status()).rank, 1);
  EXPECT_EQ(ends.size(), 1u) << "no driver: the caller ran it";
  EXPECT_EQ(kept.use_count(), 1) << "not longer";
}

TEST_F(EndingTest, ItHasEndedAtOnceForNewCalls) {
  ASSERT_TRUE(engine->seat().TakeIfQuiet());
  ending.EndHere(absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(ending.ended());
  EXPECT_TRUE(ends.empty()) << "the driver has not come to it";
  EXPECT_EQ(kept.use_count(), 2);
  engine->seat().Turn();
  EXPECT_EQ(ends.size(), 1u);
  engine->seat().Leave();
}

TEST_F(EndingTest, AnErrorThatTheUserHasMetIsThisRanks) {
  ending.EndWith(absl::NotFoundError("no file"));
  EXPECT_EQ(Message(), "c: ended by rank 1: no file");
  EXPECT_EQ(ending.status().code(), FailureWords::CodeHere(absl::NotFoundError("no file")));
  EXPECT_EQ(BlameOf(ending.status()).rank, 1);
  EXPECT_EQ(ends.size(), 1u);
}

TEST_F(EndingTest, WithoutCallsItLeavesQuietly) {
  ending.Leave("destroyed the communicator");
  ending.Leave("destroyed its runtime");
  ASSERT_EQ(endpoints[0].sent.size(), 1u);
  EXPECT_EQ(KindOf(endpoints[0].sent[0]), ControlKind::kLeave);
  EXPECT_TRUE(endpoints[0].urgent.empty());
  EXPECT_EQ(Message(), "c: the communicator was destroyed");
  EXPECT_FALSE(engine->causes().told());
  EXPECT_TRUE(ends.empty());
}

TEST_F(EndingTest, ItLeavesAlsoAfterItHasEnded) {
  ending.Fail(absl::UnavailableError("c: lost somebody"));
  ending.Leave("destroyed the communicator");
  ending.Leave("destroyed its runtime");
  ASSERT_EQ(endpoints[0].sent.size(), 2u);
  EXPECT_EQ(KindOf(endpoints[0].sent[1]), ControlKind::kLeave);
  EXPECT_EQ(Message(), "c: lost somebody");
}

TEST_F(EndingTest, ARankThatIsLeftOutEndsAndTheOthersAreToldOtherwise) {
  ending.EndAsStale(absl::OutOfRangeError("c: the others went on"));
  EXPECT_EQ(ending.status().code(), absl::StatusCode::kOutOfRange);
  ASSERT_EQ(endpoints[0].sent.size(), 1u);
  const auto told = DecodeStatus(absl::string_view(endpoints[0].sent[0]).substr(3));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(told->message(), "c: the others go on without rank 1");
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kOutOfRange);
}

TEST_F(EndingTest, ThatItIsLeftOutReplacesAnEarlierReason) {
  ending.Fail(absl::UnavailableError("c: lost somebody"));
  ending.EndAsStale(absl::OutOfRangeError("c: the others went on"));
  EXPECT_EQ(Message(), "c: the others went on");
  EXPECT_EQ(endpoints[0].sent.size(), 1u);
}

TEST_F(EndingTest, UnfinishedCallsEndEverywhere) {
  open.Add(&Started(AllReduce()));
  ending.Leave("destroyed its runtime");
  EXPECT_EQ(Message(),
            "c: rank 1 destroyed its runtime with 1 unfinished calls, first all_reduce #1");
  EXPECT_EQ(KindOf(endpoints[0].sent.at(0)), ControlKind::kAbort);
  EXPECT_EQ(BlameOf(ending.status()).rank, 1);
  EXPECT_EQ(ends.size(), 1u);
}

}  // namespace
}  // namespace entrain
