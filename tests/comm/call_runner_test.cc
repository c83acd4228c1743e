// Calls under way, over endpoints whose transfers the test ends.
#include "lib/comm/call_runner.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

class CallRunnerTest : public PlayedComm {
 protected:
  // CommShell
  RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin) override {
    return runner.Submit(std::move(admitted), std::move(begin));
  }
  void StartWork(CallWork* work) override { runner.StartWork(work); }
  std::shared_ptr<CommShell> Keep() override { return {kept, this}; }
  void NeedAttention() override { wants_attention = true; }
  void NeedFlush() override {}
  absl::Status CauseOf(int) const override { return absl::OkStatus(); }
  bool SaysNothing(int) const override { return false; }
  void Disagree(CallId, uint64_t, const Vote::Result&) override {}
  void Fail(const absl::Status& why) override {
    failures.push_back(why);
    end.Set(why);
    runner.Stop(why);  // as the communicator does
  }

  CallWork& Submitted(const Call& call) {
    works.push_back(funnel->Start(call, clock.Now()).value());
    return static_cast<CallWork&>(*works.back());
  }
  CallWork& Started(const Call& call) {
    CallWork& work = Submitted(call);
    engine->seat().PollOnce();
    Attend();
    return work;
  }
  void Attend() {
    while (std::exchange(wants_attention, false)) {
      runner.Attend();
    }
  }
  void Complete(int rank, const absl::Status& status) {
    endpoints[static_cast<size_t>(rank)].Complete(status, 32);
    Attend();
  }

  FakeClock clock;
  std::shared_ptr<int> kept = std::make_shared<int>();
  OpenCalls open;
  const FailureWords words{config.name, *peers, clock};
  Mismatches mismatches{*this, open, *peers, clock};
  Inquiry inquiry{*this, *peers, *funnel, open, words, clock};
  FlightRecorder flight{16, engine->clock().Now()};
  CallRunner runner{*this,
                    engine,
                    {config, *peers, pool, end, *funnel, open, words, inquiry, mismatches, flight}};
  bool wants_attention = false;
  std::vector<absl::Status> failures;
};

TEST_F(CallRunnerTest, ACallIsOverWhenItsTransfersAre) {
  CallWork& work = Started(Message(CallKind::kSend, 0));
  EXPECT_EQ(open.size(), 1u);
  EXPECT_FALSE(work.done());
  Complete(0, absl::OkStatus());
  EXPECT_TRUE(work.done());
  EXPECT_TRUE(work.status().ok());
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(runner.bytes_sent(), 32u);
  EXPECT_EQ(runner.bytes_received(), 0u);
}

TEST_F(CallRunnerTest, TheFlightRecorderFollowsACall) {
  const auto state = [&] { return flight.Read().back().state; };
  CallWork& work = Submitted(Message(CallKind::kRecv, 2, /*tag=*/9));
  EXPECT_EQ(state(), FlightState::kPlanned);
  engine->seat().PollOnce();
  Attend();
  EXPECT_EQ(state(), FlightState::kReceiving);
  const FlightOpen known = work.flight_open();
  EXPECT_EQ(known.mark, flight.Read().back().mark);
  EXPECT_EQ(known.receives_from, std::vector<int>{2});
  EXPECT_TRUE(known.sends_to.empty());
  EXPECT_EQ(known.call.tag, 9);
  Complete(2, absl::OkStatus());
  EXPECT_EQ(state(), FlightState::kDone);
  const FlightCall call = flight.Read().back().call;
  EXPECT_EQ(call.kind, CallKind::kRecv);
  EXPECT_EQ(call.peer, 2);
  EXPECT_EQ(call.number, 1u);

  CallWork& lost = Started(Message(CallKind::kSend, 0));
  EXPECT_EQ(state(), FlightState::kSending);
  EXPECT_EQ(lost.flight_open().sends_to, std::vector<int>{0});
  Fail(absl::AbortedError("over"));
  EXPECT_EQ(state(), FlightState::kFailed);
  Complete(0, absl::AbortedError("over"));  // the call lives until then
}

TEST_F(CallRunnerTest, ACallKeepsTheCommunicator) {
  Started(Message(CallKind::kSend, 0));
  EXPECT_EQ(kept.use_count(), 2);
  Complete(0, absl::OkStatus());
  works.clear();
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_F(CallRunnerTest, AReceiveFromAnyPeerBeginsWhenSomethingHasCome) {
  int source = -1;
  Call call = Message(CallKind::kRecvAny, -1);
  call.source = &source;
  CallWork& work = Started(call);
  EXPECT_TRUE(endpoints[2].posted.empty());
  endpoints[2].early = true;
  runner.Attend();
  EXPECT_EQ(endpoints[2].posted.size(), 1u);
  EXPECT_EQ(open.in_line(), 0);
  Complete(2, absl::OkStatus());
  EXPECT_TRUE(work.done());
  EXPECT_EQ(source, 2);
}

TEST_F(CallRunnerTest, NoPeersMessagesHoldUpAnothers) {
  endpoints[0].early = endpoints[2].early = true;
  std::vector<int> from;
  for (int i = 0; i < 4; ++i) {
    from.push_back(Started(Message(CallKind::kRecvAny, -1)).peer());
  }
  EXPECT_EQ(from, (std::vector<int>{0, 2, 0, 2}));
  Complete(0, absl::OkStatus());
  Complete(2, absl::OkStatus());
  EXPECT_TRUE(open.empty());
}

TEST_F(CallRunnerTest, ALostPathIsTheMatterOfTheInquiry) {
  CallWork& work = Started(Message(CallKind::kSend, 0));
  Complete(0, absl::UnavailableError("reset"));
  EXPECT_TRUE(failures.empty());
  EXPECT_FALSE(work.done()) << "until there is a verdict";
  clock.Advance(Membership::kGraceNs);
  inquiry.OnTick(clock.Now());
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(BlameOf(failures[0]).rank, 0);
  EXPECT_TRUE(work.done());
}

TEST_F(CallRunnerTest, AMemberThatHasLeftFailsTheCallAtOnce) {
  Started(Message(CallKind::kSend, 0));
  inquiry.OnLeft(0);
  const absl::Status loss = inquiry.Loss(0, absl::UnavailableError("reset"));
  Complete(0, absl::UnavailableError("reset"));
  EXPECT_EQ(failures, std::vector<absl::Status>{loss});
}

TEST_F(CallRunnerTest, AnyOtherErrorEndsAllCalls) {
  CallWork &broken = Started(Message(CallKind::kSend, 0)), &other = Started(AllReduce());
  Complete(0, absl::InternalError("no such thing"));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(broken.status().ok());
  EXPECT_FALSE(other.status().ok());
  Complete(0, absl::AbortedError("over"));
  Complete(2, absl::AbortedError("over"));  // now the work is freed
}

TEST_F(CallRunnerTest, ADifferenceInACollectiveIsPutToTheVote) {
  Started(AllReduce());
  Complete(0, absl::DataLossError("lengths differ"));
  Complete(2, absl::DataLossError("lengths differ"));
  EXPECT_TRUE(failures.empty());
  EXPECT_TRUE(mismatches.voting());
  runner.Stop(absl::AbortedError("over"));
}

TEST_F(CallRunnerTest, ADifferenceInAMessageEndsTheCommunicator) {
  Started(Message(CallKind::kRecv, 0));
  Complete(0, absl::DataLossError("lengths differ"));
  EXPECT_EQ(failures.size(), 1u);
  EXPECT_FALSE(mismatches.voting());
}

TEST_F(CallRunnerTest, ACallThatStartsAfterTheEndEndsWithIt) {
  CallWork& work = Submitted(Message(CallKind::kSend, 0));
  end.Set(absl::AbortedError("over"));
  engine->seat().PollOnce();
  EXPECT_EQ(work.status(), absl::AbortedError("over"));
  EXPECT_TRUE(open.empty());
  EXPECT_TRUE(endpoints[0].posted.empty());
}

TEST_F(CallRunnerTest, AStoppedCallKeepsItsBuffersUntilItsTransfersHaveEnded) {
  CallWork& work = Started(Message(CallKind::kSend, 0));
  runner.Stop(absl::AbortedError("over"));
  EXPECT_EQ(work.status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(open.empty());
  works.clear();
  runner.Attend();
  EXPECT_EQ(kept.use_count(), 2) << "the engine has it still";
  Complete(0, absl::AbortedError("over"));
  runner.Attend();
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_F(CallRunnerTest, AnInlineCallThatIsOverLeavesTheSeat) {
  Admitted admitted;
  ASSERT_TRUE(funnel->Admit(AllReduce(), &admitted).ok());
  ASSERT_TRUE(engine->seat().TakeIfQuiet());
  EXPECT_EQ(runner.Over(AllReduce().descriptor(), admitted.wiring), absl::OkStatus());
  EXPECT_FALSE(engine->seat().Look().driven);
  // The call is remembered, so that a rank that called something else is found.
  mismatches.Compare(endpoints[0], {Tag::kUntagged, 0}, Message(CallKind::kSend, 0).descriptor());
  EXPECT_TRUE(mismatches.voting());
}

TEST_F(CallRunnerTest, AnInlineCallThatGoesOnAfterTheEndEndsWithIt) {
  Admitted admitted;
  ASSERT_TRUE(funnel->Admit(AllReduce(), &admitted).ok());
  ASSERT_TRUE(engine->seat().TakeIfQuiet());
  end.Set(absl::AbortedError("over"));
  EXPECT_EQ(runner.GoOn(AllReduce(), std::move(admitted), {}), absl::AbortedError("over"));
  EXPECT_FALSE(engine->seat().Look().driven);
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_F(CallRunnerTest, NothingIsDueWhereNoFunctionRuns) {
  EXPECT_FALSE(runner.next_tick() < Deadline::Never());
}

}  // namespace
}  // namespace entrain
