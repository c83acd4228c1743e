// How a communicator ends: which error counts, and what the other ranks are told. comm_core_test.cc
// has the messages.
#include "lib/comm/failure/ending.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

class EndingTest : public PlayedComm {
 protected:
  std::optional<Ending::End> Ends(const absl::Status& why) { return ending.Fail(why, cause); }
  std::optional<Ending::Farewell> Leave(absl::string_view what) {
    return ending.Leave(what, open, cause);
  }
  std::string Message() const { return std::string(ending.status().message()); }

  OpenCalls open;
  absl::Status cause;  // an earlier failure of this process
  const FailureWords words{config.name, *peers, engine->clock()};
  Ending ending{config, words};
};

TEST_F(EndingTest, TheFirstReasonCounts) {
  const auto made = Ends(absl::UnavailableError("c: first"));
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->why.message(), "c: first");
  EXPECT_EQ(made->told, made->why);
  EXPECT_TRUE(ending.over());
  EXPECT_FALSE(Ends(absl::InternalError("c: second")).has_value());
  EXPECT_EQ(Message(), "c: first");
}

TEST_F(EndingTest, AnEarlierCauseOfThisProcessIsSaidToo) {
  cause = absl::UnavailableError("other: lost rank 5");
  ending.Abort("had enough");
  const auto made = Ends(ending.status());
  ASSERT_TRUE(made.has_value());
  EXPECT_NE(Message().find("had enough"), std::string::npos) << Message();
  EXPECT_NE(Message().find("other: lost rank 5"), std::string::npos) << Message();
  EXPECT_EQ(made->told, ending.status());
}

TEST_F(EndingTest, AnAbortBlamesThisRankAndIsSeenAtOnce) {
  ending.Abort("had enough");
  EXPECT_EQ(Message(), "c: aborted by rank 1: had enough");
  EXPECT_EQ(BlameOf(ending.status()).rank, 1);
  EXPECT_TRUE(ending.ended());
  EXPECT_TRUE(ending.end().here());
  EXPECT_FALSE(ending.over()) << "the driver has not come to it";
  EXPECT_EQ(Ends(absl::UnavailableError("c: later"))->why.code(), absl::StatusCode::kAborted);
}

TEST_F(EndingTest, AnErrorThatTheUserHasMetIsThisRanks) {
  ending.EndWith(absl::NotFoundError("no file"));
  EXPECT_EQ(Message(), "c: ended by rank 1: no file");
  EXPECT_EQ(ending.status().code(), FailureWords::CodeHere(absl::NotFoundError("no file")));
  EXPECT_EQ(BlameOf(ending.status()).rank, 1);
}

TEST_F(EndingTest, APartEndsWithTheErrorOfItsParent) {
  Ending part{config, words};
  ending.Abort("had enough");
  part.EndLike(ending);
  EXPECT_EQ(part.status().message(), "c: c: aborted by rank 1: had enough");
  EXPECT_TRUE(part.end().here());
}

TEST_F(EndingTest, WithoutCallsItLeavesQuietly) {
  const auto farewell = Leave("destroyed the communicator");
  ASSERT_TRUE(farewell.has_value());
  EXPECT_FALSE(farewell->end.has_value());
  EXPECT_EQ(farewell->quietly.message(), "c: the communicator was destroyed");
  EXPECT_EQ(Message(), "c: the communicator was destroyed");
  EXPECT_TRUE(ending.over());
  EXPECT_FALSE(Leave("destroyed its runtime").has_value()) << "once";
}

TEST_F(EndingTest, ItLeavesAlsoAfterItHasEnded) {
  ASSERT_TRUE(Ends(absl::UnavailableError("c: lost somebody")).has_value());
  const auto farewell = Leave("destroyed the communicator");
  ASSERT_TRUE(farewell.has_value());
  EXPECT_FALSE(farewell->end.has_value());
  EXPECT_TRUE(farewell->quietly.ok()) << "the peers' transfers have ended before";
  EXPECT_EQ(Message(), "c: lost somebody");
}

TEST_F(EndingTest, ARankThatIsLeftOutEndsAndTheOthersAreToldOtherwise) {
  const auto made = ending.EndAsStale(absl::OutOfRangeError("c: the others went on"));
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(ending.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(made->why, ending.status());
  EXPECT_EQ(made->told.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(made->told.message(), "c: the others go on without rank 1");
}

TEST_F(EndingTest, ThatItIsLeftOutReplacesAnEarlierReason) {
  ASSERT_TRUE(Ends(absl::UnavailableError("c: lost somebody")).has_value());
  EXPECT_FALSE(ending.EndAsStale(absl::OutOfRangeError("c: the others went on")).has_value());
  EXPECT_EQ(Message(), "c: the others went on");
}

TEST_F(EndingTest, UnfinishedCallsEndEverywhere) {
  open.Add(&Started(AllReduce()));
  const auto farewell = Leave("destroyed its runtime");
  ASSERT_TRUE(farewell.has_value() && farewell->end.has_value());
  EXPECT_EQ(Message(),
            "c: rank 1 destroyed its runtime with 1 unfinished calls, first all_reduce #1");
  EXPECT_EQ(farewell->end->why, ending.status());
  EXPECT_TRUE(farewell->quietly.ok());
  EXPECT_EQ(BlameOf(ending.status()).rank, 1);
}

}  // namespace
}  // namespace entrain
