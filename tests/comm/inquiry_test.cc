// How an asking rank finds the rank to blame. The test plays the queries and answers of the other
// ranks.
#include "lib/comm/failure/inquiry.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

using Answer = BlameDecision::Answer;

class InquiryTest : public PlayedComm {
 protected:
  // Does what the core does after each event.
  void Perform() {
    const Inquiry::Effects todo = inquiry.TakeEffects();
    for (const auto& question : todo.questions) {
      peers->SendSoon(question.to, ControlKind::kQuery, question.text);
    }
    if (!todo.warning.empty()) {
      warnings.push_back(todo.warning);
    }
    if (!todo.end.ok()) {
      failures.push_back(todo.end);
    }
    if (todo.found) {
      told.push_back(*todo.found);
    }
  }
  void Expire(CallWork& work) {
    inquiry.Expire(&work, clock.Now());
    Perform();
  }
  void Tick() {
    inquiry.OnTick(clock.Now());
    Perform();
  }
  Deadline FindOut() {
    const Deadline by = inquiry.FindOut(clock.Now());
    Perform();
    return by;
  }
  CallWork& Open(const Call& call) {
    works.push_back(funnel->Start(call, clock.Now()).value());
    auto& work = static_cast<CallWork&>(*works.back());
    work.started = true;
    open.Add(&work);
    return work;
  }
  // Returns the nonce of the last question to this rank.
  uint32_t Nonce(int rank) const {
    Reader reader(endpoints[static_cast<size_t>(rank)].urgent.back());
    EXPECT_EQ(reader.Get<Context>(), 20 + rank);
    EXPECT_EQ(reader.Get<ControlKind>(), ControlKind::kQuery);
    return reader.Get<uint32_t>();
  }
  void Answers(int rank, Answer answer, const absl::Status& excuse = absl::OkStatus(),
               CallId instead = CallFunnel::kPing) {
    Writer writer;
    writer.Put(Nonce(rank)).Put(answer).Put(int64_t{0}).Put(instead.user_tag).Put(instead.number);
    writer.PutText(EncodeStatus(excuse));
    const std::string text = writer.Take();
    Reader reader(text);
    if (inquiry.OnAnswer(rank, reader, clock.Now())) {
      Tick();
    }
  }
  void TimeIsUp() {
    clock.Advance(BlameDecision::kAnswerNs);
    Tick();
  }
  // Returns the text of the only failure.
  std::string Failure() const {
    EXPECT_EQ(failures.size(), 1u);
    return failures.empty() ? "" : std::string(failures[0].message());
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  // Time passes in steps of a second. In each of them the ranks answer.
  void Seconds(int seconds, const std::vector<int>& answering) {
    for (int i = 0; i < seconds; ++i) {
      clock.Advance(kSecond);
      Tick();
      for (const int rank : answering) {
        if (inquiry.watching()) {
          inquiry.OnHeard(rank, clock.Now());
        }
      }
    }
  }

  FakeClock clock;
  OpenCalls open;
  const FailureWords words{config.name, *peers, clock};
  Causes causes{clock, [](const std::string&) {}};
  Inquiry inquiry{*peers, *funnel, open, words, causes};
  std::vector<absl::Status> failures, told;
  std::vector<std::string> warnings;
};

TEST_F(InquiryTest, AnExpiredCallIsAskedAboutOnce) {
  CallWork &first = Open(AllReduce()), &second = Open(AllReduce());
  Expire(first);
  EXPECT_TRUE(first.inquired);
  EXPECT_TRUE(inquiry.busy());
  EXPECT_EQ(endpoints[0].urgent.size(), 1u);
  EXPECT_EQ(endpoints[2].urgent.size(), 1u);
  Expire(second);
  EXPECT_FALSE(second.inquired) << "one after the other";
  EXPECT_EQ(endpoints[0].urgent.size(), 1u);
}

// Ranks that are in different calls learn it long before a deadline. It is no error.
TEST_F(InquiryTest, ALongCallIsAskedAboutOnceForAWarning) {
  clock.Advance(kSecond);
  CallWork& first = Open(AllReduce());
  Seconds(4, {});
  EXPECT_TRUE(endpoints[0].urgent.empty());
  Seconds(1, {});
  ASSERT_EQ(endpoints[0].urgent.size(), 1u);
  EXPECT_FALSE(inquiry.busy()) << "the call has not expired";
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kAbsent, absl::AbortedError("its oldest unfinished call is barrier #7"),
          {Tag::kUntagged, 7});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(Has(warnings[0], "has waited 5 s")) << warnings[0];
  EXPECT_TRUE(Has(warnings[0], "its oldest unfinished call is barrier #7")) << warnings[0];
  EXPECT_TRUE(failures.empty());
  Seconds(20, {});
  EXPECT_EQ(endpoints[0].urgent.size(), 1u) << "once a call";
  EXPECT_FALSE(first.inquired);
  // Its deadline passes later.
  Expire(first);
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kAbsent);
  EXPECT_TRUE(Has(Failure(), "waiting for rank 0 (played): it has not started the call"));
  EXPECT_EQ(warnings.size(), 1u);
}

// A member that computes, or is still in an earlier call, makes the call later.
TEST_F(InquiryTest, AMemberThatIsLateIsNoWarning) {
  clock.Advance(kSecond);
  Open(AllReduce());
  Seconds(5, {});
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kAbsent);
  clock.Advance(kSecond);
  Open(AllReduce());
  open.Remove(open.Oldest());
  Seconds(5, {});
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kAbsent, absl::AbortedError("its oldest unfinished call is all_reduce #0"),
          {Tag::kUntagged, 0});
  EXPECT_TRUE(warnings.empty());
  EXPECT_TRUE(failures.empty());
}

TEST_F(InquiryTest, AMemberThatHasLeftIsNotAsked) {
  inquiry.OnLeft(2);
  Expire(Open(AllReduce()));
  EXPECT_EQ(endpoints[0].urgent.size(), 1u);
  EXPECT_TRUE(endpoints[2].urgent.empty());
}

TEST_F(InquiryTest, AMemberThatDoesNotAnswerIsGuilty) {
  Expire(Open(AllReduce()));
  Answers(0, Answer::kAbsent);
  EXPECT_TRUE(failures.empty());
  TimeIsUp();
  EXPECT_TRUE(Has(Failure(), "waiting for rank 2 (played): it does not answer")) << Failure();
  EXPECT_EQ(BlameOf(failures[0]).rank, 2);
}

TEST_F(InquiryTest, AMemberThatHasNotStartedTheCallIsGuilty) {
  Expire(Open(AllReduce()));
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kAbsent);
  EXPECT_TRUE(Has(Failure(), "waiting for rank 0 (played): it has not started the call"))
      << Failure();
  EXPECT_EQ(BlameOf(failures[0]).late, std::vector<int32_t>{0});
}

TEST_F(InquiryTest, AnExcuseIsPassedOnWithWhomItBlames) {
  config.members[2].id[0] = 9;
  Blame blame;
  blame.peer_id = config.members[2].id;
  Expire(Open(AllReduce()));
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kExcused, WithBlame(absl::UnavailableError("lost somebody"), blame));
  EXPECT_TRUE(Has(Failure(), ": lost somebody")) << Failure();
  EXPECT_EQ(BlameOf(failures[0]).rank, 2);
}

TEST_F(InquiryTest, WhereAllHaveStartedNobodyIsGuilty) {
  Expire(Open(AllReduce()));
  Answers(0, Answer::kStarted);
  Answers(2, Answer::kStarted);
  EXPECT_FALSE(Failure().empty());
  EXPECT_EQ(BlameOf(failures[0]).rank, -1);
}

TEST_F(InquiryTest, AnAnswerToAnEarlierQuestionIsIgnored) {
  CallWork& first = Open(AllReduce());
  Expire(first);
  const uint32_t before = Nonce(0);
  inquiry.OnFinished(&first);
  open.Remove(&first);
  Expire(Open(AllReduce()));
  Writer writer;
  writer.Put(before).Put(Answer::kAbsent).Put(int64_t{0}).Put(CallFunnel::kPing.user_tag);
  writer.Put(CallFunnel::kPing.number).PutText(EncodeStatus(absl::OkStatus()));
  const std::string text = writer.Take();
  Reader reader(text);
  EXPECT_FALSE(inquiry.OnAnswer(0, reader, clock.Now()));
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kStarted);
  EXPECT_EQ(BlameOf(failures.at(0)).rank, -1);
}

TEST_F(InquiryTest, ARankOfAnotherCommunicatorLearnsWhoHoldsUpTheOldestCall) {
  Open(AllReduce());
  const Deadline by = FindOut();
  EXPECT_EQ(by.at_ns, clock.Now() + BlameDecision::kAnswerToOthersNs);
  EXPECT_FALSE(inquiry.busy()) << "no call has expired";
  Answers(0, Answer::kAbsent);
  Answers(2, Answer::kStarted);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(Has(std::string(told[0].message()), "it waits in all_reduce #1 of c for rank 0"))
      << told[0];
  EXPECT_TRUE(failures.empty());
}

TEST_F(InquiryTest, ACallThatEndsHoldsNobodyUp) {
  CallWork& work = Open(AllReduce());
  EXPECT_FALSE(inquiry.OnFinished(&work)) << "nobody has asked";
  FindOut();
  EXPECT_TRUE(inquiry.OnFinished(&work));
  Perform();
  EXPECT_EQ(told, std::vector<absl::Status>{absl::OkStatus()});
}

TEST_F(InquiryTest, TheEndOfTheCommunicatorIsToldToThoseWhoAsked) {
  CallWork& work = Open(AllReduce());
  FindOut();
  inquiry.Stop(absl::AbortedError("over"));
  EXPECT_FALSE(inquiry.OnFinished(&work));
  Perform();
  EXPECT_EQ(told, std::vector<absl::Status>{absl::AbortedError("over")});
}

TEST_F(InquiryTest, ALostPathNamesItsPeerAfterAMoment) {
  inquiry.OnLost(2, absl::UnavailableError("reset"), clock.Now());
  inquiry.OnLost(0, absl::UnavailableError("later"), clock.Now());
  Tick();
  EXPECT_TRUE(failures.empty()) << "somebody may know better";
  clock.Advance(BlameDecision::kGraceNs);
  Tick();
  EXPECT_EQ(Failure(), "c: lost rank 2 (played): reset");
}

TEST_F(InquiryTest, APeerThatHasSaidWhyIsNotWaitedFor) {
  inquiry.Opened(clock.Now());
  clock.Advance(1);
  causes.Hear(&endpoints[2], EncodeStatus(absl::UnavailableError("lost rank 7")));
  inquiry.OnLost(2, absl::UnavailableError("reset"), clock.Now());
  Tick();
  EXPECT_TRUE(Has(Failure(), "before, it had said: lost rank 7")) << Failure();
}

TEST_F(InquiryTest, ACallThatTheLostRankCouldNotStartIsSaid) {
  Writer writer;
  writer.Put(Asked::kCollective).Put(uint32_t{Tag::kUntagged}).Put(uint32_t{0}).PutText("no room");
  const std::string text = writer.Take();
  Reader reader(text);
  inquiry.OnRefused(0, reader);
  const absl::Status path = absl::UnavailableError("reset");
  EXPECT_EQ(inquiry.Loss(0, path).message(),
            "c: lost rank 0 (played): its call failed: no room; then: reset");
  EXPECT_EQ(inquiry.Loss(2, path).message(), "c: lost rank 2 (played): reset");
  Open(AllReduce());
  Open(AllReduce());
  open.Remove(open.first());
  EXPECT_FALSE(Has(std::string(inquiry.Loss(0, path).message()), "no room"))
      << "it has made that call after all";
}

TEST_F(InquiryTest, AGatherThatWaitsIsComparedWithItsNeighboursOnce) {
  Call gather = AllReduce();
  gather.kind = CallKind::kReduce;
  gather.root = kMe;
  Open(gather);
  EXPECT_EQ(inquiry.next_tick().at_ns, clock.Now() + Inquiry::kCompareNs);
  Seconds(2, {});  // a question for a warning would come after 5 s
  for (const int rank : {0, 2}) {
    ASSERT_EQ(endpoints[static_cast<size_t>(rank)].urgent.size(), 1u);
    EXPECT_EQ(Nonce(rank), 0u) << "no inquiry is under way";
  }
  EXPECT_TRUE(failures.empty());
  Open(gather);
  Seconds(1, {});
  EXPECT_EQ(endpoints[2].urgent.size(), 2u);
  Open(AllReduce());
  Seconds(1, {});
  EXPECT_EQ(endpoints[2].urgent.size(), 2u) << "its data are compared";
}

TEST_F(InquiryTest, AMemberInAnotherCallIsSaidToBeThere) {
  Expire(Open(AllReduce()));
  Answers(2, Answer::kStarted);
  Answers(0, Answer::kAbsent,
          absl::DeadlineExceededError("its oldest unfinished call is barrier tag 5 #1"));
  EXPECT_TRUE(Has(Failure(),
                  "waiting for rank 0 (played): it has not started the call (its oldest "
                  "unfinished call is barrier tag 5 #1)"))
      << Failure();
  EXPECT_EQ(BlameOf(failures.at(0)).rank, 0);
}

// ---- Silence: 4 s are allowed, so a question is due each second

TEST_F(InquiryTest, AMemberThatAnswersNothingIsGivenUpBeforeTheDeadline) {
  inquiry.SetSilence(4 * kSecond);
  Open(AllReduce());
  EXPECT_EQ(inquiry.next_tick().at_ns, clock.Now() + kSecond);
  Seconds(3, {0});
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(endpoints[0].urgent.size(), 3u) << "a question each second";
  EXPECT_EQ(endpoints[2].urgent.size(), 3u);
  EXPECT_EQ(Nonce(2), 0u) << "no inquiry is under way";
  Seconds(1, {0});
  EXPECT_TRUE(Has(Failure(),
                  "all_reduce #1: gave up on rank 1 after 4 s: rank 2 (played) has "
                  "answered nothing for 4 s (silence)"))
      << Failure();
  EXPECT_TRUE(absl::IsDeadlineExceeded(failures.at(0)));
  EXPECT_EQ(BlameOf(failures.at(0)).rank, 2);
  EXPECT_EQ(BlameOf(failures.at(0)).late, std::vector<int32_t>{2});
}

TEST_F(InquiryTest, AMemberWhoseProgramIsSlowIsWaitedFor) {
  inquiry.SetSilence(4 * kSecond);
  Open(AllReduce());
  Seconds(60, {0, 2});
  EXPECT_TRUE(failures.empty());
}

TEST_F(InquiryTest, SilenceBeforeTheCallDoesNotCount) {
  inquiry.SetSilence(4 * kSecond);
  Seconds(60, {});
  CallWork& first = Open(AllReduce());
  Seconds(3, {});
  open.Remove(&first);
  Open(AllReduce());
  Seconds(3, {});
  EXPECT_TRUE(failures.empty()) << "the second call has waited for 3 s";
  Seconds(1, {});
  EXPECT_EQ(BlameOf(failures.at(0)).late, (std::vector<int32_t>{0, 2}));
}

TEST_F(InquiryTest, WithoutALimitNobodyIsTooSilent) {
  Open(AllReduce());
  EXPECT_EQ(inquiry.next_tick().at_ns, clock.Now() + Inquiry::kWarnNs);
  Seconds(60, {});
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(endpoints[2].urgent.size(), 1u) << "for the warning";
}

TEST_F(InquiryTest, ABreakOfThisRankIsNotSilenceOfTheOthers) {
  inquiry.SetSilence(4 * kSecond);
  Open(AllReduce());
  Seconds(2, {0, 2});
  clock.Advance(100 * kSecond);
  Tick();
  EXPECT_TRUE(failures.empty());
  Seconds(4, {0});
  EXPECT_EQ(BlameOf(failures.at(0)).rank, 2);
}

TEST_F(InquiryTest, AMemberWhoseLibraryRunsOnlyInCallsIsNotSilent) {
  config.members[2].answers = false;
  inquiry.SetSilence(4 * kSecond);
  Open(AllReduce());
  Seconds(60, {0});
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(endpoints[2].urgent.size(), 1u) << "for the warning";
}

TEST_F(InquiryTest, BytesThatArriveAreASignOfLife) {
  inquiry.SetSilence(4 * kSecond);
  CallWork& work = Open(AllReduce());
  for (int i = 0; i < 30; ++i) {
    endpoints[2].arrived += 100;  // the answer waits behind them
    Seconds(1, {0});
  }
  EXPECT_TRUE(failures.empty());
  Expire(work);
  endpoints[2].arrived += 100;
  Answers(0, Answer::kStarted);
  TimeIsUp();
  EXPECT_TRUE(Has(Failure(), "every rank has started the call, but the data did not arrive"))
      << Failure();
  EXPECT_EQ(BlameOf(failures.at(0)).rank, -1);
}

}  // namespace
}  // namespace entrain
