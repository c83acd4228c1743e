// The sentences of a communicator about its failures.
#include "lib/comm/failure/failure_words.h"

#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

class FailureWordsTest : public PlayedComm {
 protected:
  FailureWordsTest() {
    for (size_t r = 0; r < kRanks; ++r) {
      config.members[r].id[0] = static_cast<uint8_t>(r + 1);
      config.members[r].world_rank = static_cast<int>(10 + r);
    }
  }
  // Opens a call of this rank that started two seconds ago.
  CallWork& Open() {
    Call call = AllReduce();
    call.options.timeout_ns = kSecond;
    works.push_back(funnel->Start(call, clock.Now()).value());
    clock.Advance(2 * kSecond);
    return static_cast<CallWork&>(*works.back());
  }
  static Descriptor Calls(int64_t count) {
    Call call;
    call.kind = CallKind::kAllReduce;
    call.count = count;
    return call.descriptor();
  }

  FakeClock clock;
  const FailureWords words{config.name, *peers, clock};
};

TEST_F(FailureWordsTest, ARecordNamesTheGuiltyProcessAndTheCall) {
  const Blame blame = words.BlameFor(&Open(), 2, Phase::kTransfer);
  EXPECT_EQ(blame.rank, 2);
  EXPECT_EQ(blame.world_rank, 12);
  EXPECT_EQ(blame.peer_id, config.members[2].id);
  EXPECT_EQ(blame.address, "played");
  EXPECT_EQ(blame.operation, "all_reduce");
  EXPECT_EQ(blame.sequence, 1u);
  EXPECT_EQ(blame.elapsed_ns, 2 * kSecond);
  EXPECT_EQ(blame.deadline_ns, kSecond);
  EXPECT_EQ(words.BlameFor(nullptr, kMe, Phase::kNone).address, "self");
}

TEST_F(FailureWordsTest, ATimedOutCallSaysForHowLongAndForWhom) {
  CallWork& work = Open();
  const absl::Status status = words.TimedOut(
      work, {2, "it does not answer", words.BlameFor(&work, 2, Phase::kTransfer)}, clock.Now());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(),
            "all_reduce #1: timed out on rank 1 after 2 s (deadline 1 s) waiting for rank 2 "
            "(played): it does not answer");
  EXPECT_EQ(BlameOf(status).rank, 2);
}

TEST_F(FailureWordsTest, ALossSaysWhatWasKnownOfTheRank) {
  const absl::Status path = absl::UnavailableError("connection reset");
  const absl::Status idle = words.Loss(0, path, nullptr, "", absl::OkStatus());
  EXPECT_EQ(idle.message(), "c: lost rank 0 (played): connection reset");
  EXPECT_EQ(BlameOf(idle).rank, 0);
  const absl::Status refused = words.Loss(0, path, &Open(), "no memory", absl::OkStatus());
  EXPECT_EQ(refused.message(),
            "all_reduce #1: lost rank 0 (played) after 2 s: its call failed: no memory; then: "
            "connection reset");
}

TEST_F(FailureWordsTest, ALossThatHasACauseBlamesTheCause) {
  Blame blame;
  blame.peer_id = config.members[2].id;
  const absl::Status cause = WithBlame(absl::UnavailableError("lost rank 7"), blame);
  const absl::Status loss = words.Loss(0, absl::UnavailableError("closed"), nullptr, "", cause);
  EXPECT_EQ(loss.message(), "c: lost rank 0 (played): closed; before, it had said: lost rank 7");
  EXPECT_EQ(BlameOf(loss).rank, 2) << "by its identity";
  EXPECT_EQ(BlameOf(loss).world_rank, 12);
}

TEST_F(FailureWordsTest, AShortageIsThisRanksFault) {
  const absl::Status status = words.Explain(Open(), absl::ResourceExhaustedError("no descriptors"));
  EXPECT_EQ(BlameOf(status).rank, kMe);
  EXPECT_EQ(BlameOf(status).peer_id, config.members[kMe].id);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
}

TEST_F(FailureWordsTest, ADisagreementNamesTheGuiltyFirst) {
  const CallId call{Tag::kUntagged, 4};
  Vote::Result votes;
  votes.parties = {{Calls(4), {1, 2}}, {Calls(5), {0}}};
  votes.guilty = 0;
  const absl::Status status = words.Disagreement(call, 4, votes);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(BlameOf(status).rank, 0);
  EXPECT_EQ(BlameOf(status).sequence, 5u);
  const std::string text(status.message());
  EXPECT_EQ(text.rfind("all_reduce #5: ranks disagree: rank 0 called ", 0), 0u) << text;
  EXPECT_NE(text.find("ranks 1, 2 called "), std::string::npos) << text;
}

TEST_F(FailureWordsTest, ADisagreementWithoutAMajoritySaysSo) {
  Vote::Result votes;
  votes.parties = {{Calls(4), {0}}, {Calls(5), {1}}};
  votes.silent = {2};
  const std::string text(words.Disagreement({7, 0}, 0, votes).message());
  EXPECT_EQ(text.rfind("all_reduce tag 7 #1: ranks disagree: rank 0 called ", 0), 0u) << text;
  EXPECT_NE(text.find("; which of these is wrong cannot be known; not known: rank 2"),
            std::string::npos)
      << text;
}

TEST_F(FailureWordsTest, AnErrorOfAnotherCommunicatorIsOneOfThis) {
  Blame there;
  there.rank = 55;
  there.peer_id = config.members[0].id;
  EXPECT_EQ(words.BlameHere(WithBlame(absl::AbortedError("x"), there)).rank, 0);
  there.peer_id[0] = 99;
  EXPECT_EQ(words.BlameHere(WithBlame(absl::AbortedError("x"), there)).rank, -1) << "no member";
  EXPECT_EQ(FailureWords::CodeHere(absl::DataLossError("x")), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FailureWords::CodeHere(absl::NotFoundError("x")), absl::StatusCode::kAborted);
}

TEST_F(FailureWordsTest, ABlamedRankIsNamedByItsIdentityToo) {
  Blame blame;
  blame.rank = 2;
  const Blame named = BlameOf(words.WithMember(WithBlame(absl::AbortedError("x"), blame)));
  EXPECT_EQ(named.peer_id, config.members[2].id);
  EXPECT_EQ(named.world_rank, 12);
  EXPECT_EQ(words.WithMember(absl::AbortedError("nobody")).message(), "nobody");
}

TEST_F(FailureWordsTest, AnAbortOfOursNamesAnEarlierCause) {
  const absl::Status own =
      WithBlame(absl::AbortedError("gave up"), words.BlameFor(nullptr, kMe, Phase::kNone));
  const absl::Status cause = WithBlame(absl::UnavailableError("lost rank 2"),
                                       words.BlameFor(nullptr, 2, Phase::kTransfer));
  EXPECT_EQ(words.WithEarlierCause(own, absl::OkStatus()), own);
  const absl::Status both = words.WithEarlierCause(own, cause);
  EXPECT_EQ(both.message(), "gave up; before, it had failed: lost rank 2");
  EXPECT_EQ(BlameOf(both).rank, 2);
  const absl::Status of_another =
      WithBlame(absl::AbortedError("gave up"), words.BlameFor(nullptr, 0, Phase::kNone));
  EXPECT_EQ(words.WithEarlierCause(of_another, cause), of_another);
}

TEST_F(FailureWordsTest, ManyRanksAreShortened) {
  EXPECT_EQ(FailureWords::RankList({3}), "rank 3");
  EXPECT_EQ(FailureWords::RankList({0, 1, 2}), "ranks 0, 1, 2");
  EXPECT_EQ(FailureWords::RankList({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

}  // namespace
}  // namespace entrain
