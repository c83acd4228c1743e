// The answers of a rank that is asked whether it has made a call. The test plays the other
// communicators of its process.
#include "lib/comm/respondent.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/idle_context.h"
#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

using Answer = Membership::Answer;

class PlayedContext final : public IdleContext {
 public:
  std::optional<int64_t> waits_since() const override { return since; }
  Deadline FindOut(HeldUpBy then) override {
    asked.push_back(std::move(then));
    return until;
  }

  std::optional<int64_t> since;
  Deadline until;
  std::vector<HeldUpBy> asked;
};

class RespondentTest : public PlayedComm {
 protected:
  struct Told {
    uint32_t nonce;
    Answer answer;
    int64_t more_ns;
    absl::Status excuse;
    CallId instead;
  };
  RespondentTest() {
    engine->Shutdown();
    engine = std::make_shared<Engine>(SeatOptions{.clock = &clock, .own_thread = false});
    engine->OpenContext(engine->ReserveContext(), self);
    engine->OpenContext(engine->ReserveContext(), other);
    respondent.emplace(*engine, *peers, *funnel, open, words);
  }
  // The last answer to rank 0.
  Told Last() const {
    Reader reader(endpoints[0].urgent.back());
    EXPECT_EQ(reader.Get<Context>(), 20);
    EXPECT_EQ(reader.Get<ControlKind>(), ControlKind::kAnswer);
    const auto nonce = reader.Get<uint32_t>();
    const auto answer = reader.Get<Answer>();
    const auto more_ns = reader.Get<int64_t>();
    const auto tag = reader.Get<uint32_t>();
    const CallId instead{tag, reader.Get<uint32_t>()};
    const auto excuse = DecodeStatus(reader.GetText(kMaxControlBytes));
    EXPECT_TRUE(reader.Finished());
    return {nonce, answer, more_ns, excuse.value(), instead};
  }
  Told Asks(const Query& query) {
    respondent->To(self, 0, query);
    return Last();
  }

  FakeClock clock;
  std::shared_ptr<PlayedContext> self = std::make_shared<PlayedContext>();
  std::shared_ptr<PlayedContext> other = std::make_shared<PlayedContext>();
  OpenCalls open;
  const FailureWords words{config.name, *peers, clock};
  std::optional<Respondent> respondent;
  const Query first{7, Asked::kCollective, {Tag::kUntagged, 0}, {}};
};

TEST_F(RespondentTest, ThatItHasMadeTheCallOrNot) {
  EXPECT_EQ(Asks(first).answer, Answer::kAbsent);
  Started(AllReduce());
  EXPECT_EQ(Asks(first).answer, Answer::kStarted);
  EXPECT_EQ(Last().nonce, 7u);
  EXPECT_EQ(Asks({8, Asked::kSend, {Tag::kUntagged, 0}, {}}).answer, Answer::kAbsent);
  EXPECT_EQ(Last().nonce, 8u);
}

TEST_F(RespondentTest, ThatItIsInAnotherCall) {
  open.Add(&Started(AllReduce(/*tag=*/5)));
  EXPECT_EQ(Asks(first).answer, Answer::kAbsent);
  EXPECT_EQ(Last().excuse.message(), "its oldest unfinished call is all_reduce tag 5 #1");
  EXPECT_EQ(Last().instead, (CallId{5, 0}));
}

TEST_F(RespondentTest, ThatItsProcessHasLostSomebody) {
  engine->causes().Tell(absl::UnavailableError("lost rank 5"));
  EXPECT_EQ(Asks(first).answer, Answer::kExcused);
  EXPECT_EQ(Last().excuse.message(), "lost rank 5");
  Started(AllReduce());
  EXPECT_EQ(Asks(first).answer, Answer::kStarted);
  EXPECT_TRUE(Last().excuse.ok());
}

TEST_F(RespondentTest, ThatItIsInAFunctionOfItsCallers) {
  engine->functions().Note(this, "the hook");
  EXPECT_EQ(Asks(first).answer, Answer::kAbsent) << "it may return soon";
  clock.Advance(OpenCalls::kLongRunNs);
  EXPECT_EQ(Asks(first).answer, Answer::kExcused);
  EXPECT_NE(std::string(Last().excuse.message()).find("the hook"), std::string::npos);
  EXPECT_EQ(BlameOf(Last().excuse).rank, kMe);
}

TEST_F(RespondentTest, ThatItWaitsInAnotherCommunicatorAndThenForWhom) {
  other->since = 1;
  other->until = {clock.Now() + 30};
  EXPECT_EQ(Asks(first).answer, Answer::kElsewhere);
  EXPECT_EQ(Last().more_ns, 30);
  ASSERT_EQ(other->asked.size(), 1u);
  other->asked[0](absl::DeadlineExceededError("it waits for rank 5"));
  EXPECT_EQ(endpoints[0].urgent.size(), 2u);
  EXPECT_EQ(Last().answer, Answer::kExcused);
  EXPECT_EQ(Last().excuse.message(), "it waits for rank 5");
  EXPECT_EQ(Last().nonce, 7u);
}

TEST_F(RespondentTest, ThatNobodyHoldsItUpThereOrThatItHasMadeTheCallMeanwhile) {
  other->since = 1;
  Asks(first);
  other->asked[0](absl::OkStatus());
  EXPECT_EQ(Last().answer, Answer::kAbsent);
  Asks(first);
  Started(AllReduce());
  other->asked[1](absl::OkStatus());
  EXPECT_EQ(Last().answer, Answer::kStarted);
}

TEST_F(RespondentTest, ItsOwnCallsAreNotAnotherCommunicators) {
  self->since = 1;
  EXPECT_EQ(Asks(first).answer, Answer::kAbsent);
  EXPECT_TRUE(self->asked.empty());
}

TEST_F(RespondentTest, TheCommunicatorLivesUntilTheLastAnswer) {
  other->since = 1;
  const long before = self.use_count();
  Asks(first);
  EXPECT_EQ(self.use_count(), before + 1);
  other->asked.clear();
  EXPECT_EQ(self.use_count(), before);
}

TEST_F(RespondentTest, NothingAfterTheEnd) {
  end.Set(absl::AbortedError("over"));
  respondent->To(self, 0, first);
  EXPECT_TRUE(endpoints[0].urgent.empty());
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
