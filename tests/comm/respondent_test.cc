// The answers of a rank that is asked whether it has made a call. comm_core_test.cc has the
// messages, and the questions to other communicators.
#include "lib/comm/failure/respondent.h"

#include <string>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

using Answer = BlameDecision::Answer;

class RespondentTest : public PlayedComm {
 protected:
  Respondent::Reply Asks(const Query& query) {
    facts.now_ns = clock.Now();
    return respondent.To(0, query, facts);
  }

  FakeClock clock;
  OpenCalls open;
  const FailureWords words{config.name, *peers, clock};
  Causes causes{clock, [](const std::string&) {}};
  const Respondent respondent{causes, *peers, *funnel, open, words};
  Respondent::Facts facts;
  const Query first{7, Asked::kCollective, {Tag::kUntagged, 0}, {}};
};

TEST_F(RespondentTest, ThatItHasMadeTheCallOrNot) {
  EXPECT_EQ(Asks(first).answer, Answer::kAbsent);
  Started(AllReduce());
  EXPECT_EQ(Asks(first).answer, Answer::kStarted);
  EXPECT_EQ(Asks({8, Asked::kSend, {Tag::kUntagged, 0}, {}}).answer, Answer::kAbsent);
}

TEST_F(RespondentTest, ThatItIsInAnotherCall) {
  open.Add(&Started(AllReduce(/*tag=*/5)));
  const Respondent::Reply reply = Asks(first);
  EXPECT_EQ(reply.answer, Answer::kAbsent);
  EXPECT_EQ(reply.excuse.message(), "its oldest unfinished call is all_reduce tag 5 #1");
  const std::string text = respondent.TextOf(first, reply);
  Reader reader(text);
  EXPECT_EQ(reader.Get<uint32_t>(), 7u) << "the nonce of the question";
  EXPECT_EQ(reader.Get<Answer>(), Answer::kAbsent);
  EXPECT_EQ(reader.Get<int64_t>(), 0);
  EXPECT_EQ(reader.Get<uint32_t>(), 5u);
  EXPECT_EQ(reader.Get<uint32_t>(), 0u) << "its oldest collective";
  EXPECT_EQ(DecodeStatus(reader.GetText(kMaxControlBytes)), reply.excuse);
  EXPECT_TRUE(reader.Finished());
}

TEST_F(RespondentTest, ThatItsProcessHasLostSomebody) {
  causes.Tell(absl::UnavailableError("lost rank 5"));
  EXPECT_EQ(Asks(first).answer, Answer::kExcused);
  EXPECT_EQ(Asks(first).excuse.message(), "lost rank 5");
  Started(AllReduce());
  EXPECT_EQ(Asks(first).answer, Answer::kStarted);
  EXPECT_TRUE(Asks(first).excuse.ok());
}

TEST_F(RespondentTest, ThatItIsInAFunctionOfItsCallers) {
  facts.inside = absl::DeadlineExceededError("it is in the hook");
  EXPECT_EQ(Asks(first).answer, Answer::kExcused);
  EXPECT_EQ(Asks(first).excuse.message(), "it is in the hook");
  EXPECT_EQ(BlameOf(Asks(first).excuse).rank, kMe);
}

TEST_F(RespondentTest, ThatItWaitsInAnotherCommunicatorAndThenForWhom) {
  facts.elsewhere = true;
  EXPECT_EQ(Asks(first).answer, Answer::kElsewhere);
  const Respondent::Reply second =
      respondent.After(0, first, absl::DeadlineExceededError("it waits for rank 5"));
  EXPECT_EQ(second.answer, Answer::kExcused);
  EXPECT_EQ(second.excuse.message(), "it waits for rank 5");
}

TEST_F(RespondentTest, ThatNobodyHoldsItUpThereOrThatItHasMadeTheCallMeanwhile) {
  EXPECT_EQ(respondent.After(0, first, absl::OkStatus()).answer, Answer::kAbsent);
  Started(AllReduce());
  EXPECT_EQ(respondent.After(0, first, absl::OkStatus()).answer, Answer::kStarted);
  facts.elsewhere = true;
  EXPECT_EQ(Asks(first).answer, Answer::kStarted) << "the other communicator is not asked";
}

TEST(QueryTest, ItIsReadAsItWasWritten) {
  Query query{7, Asked::kSend, {5, 3}, {}};
  query.theirs.count = 9;
  const std::string text = query.ToText();
  Reader reader(text);
  const auto read = Query::From(reader);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->nonce, 7u);
  EXPECT_EQ(read->asked, Asked::kSend);
  EXPECT_EQ(read->call, (CallId{5, 3}));
  EXPECT_EQ(read->theirs, query.theirs);
}

TEST(QueryTest, AMalformedOneIsNone) {
  const Descriptor called;
  const auto text = [&](Asked asked, absl::string_view rest) {
    Writer writer;
    writer.Put(uint32_t{7}).Put(asked).Put(uint32_t{5}).Put(uint32_t{3});
    return writer.PutRaw(&called, sizeof(called)).Take() + std::string(rest);
  };
  const auto read = [](const std::string& message) {
    Reader reader(message);
    return Query::From(reader);
  };
  const auto good = read(text(Asked::kRecv, ""));
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->nonce, 7u);
  EXPECT_EQ(good->call, (CallId{5, 3}));
  EXPECT_FALSE(good->compares()) << "of messages nobody but the peer knows";
  EXPECT_FALSE(read(text(static_cast<Asked>(3), "")).has_value());
  EXPECT_FALSE(read(text(Asked::kRecv, "x")).has_value());
  EXPECT_FALSE(read("").has_value());
}

}  // namespace
}  // namespace entrain
