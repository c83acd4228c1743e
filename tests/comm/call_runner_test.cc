// Calls under way, over endpoints whose transfers the test ends.
#include "lib/comm/call_runner.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <latch>
#include <optional>
#include <set>
#include <thread>
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
  void NeedAttention() override {
    wants_attention = true;
    at_attention();
  }
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
  Mismatches mismatches{peers->rank(), peers->size()};
  Causes causes{clock, [](const std::string&) {}};
  Inquiry inquiry{*peers, *funnel, open, words, causes};
  FlightRecorder flight{16, engine->clock().Now()};
  CallRunner runner{*this,
                    engine,
                    {config, *peers, pool, end, *funnel, open, words, inquiry, mismatches, flight},
                    /*pays=*/true};
  bool wants_attention = false;
  std::function<void()> at_attention = [] {};
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
  inquiry.OnTick(engine->clock().Now() + BlameDecision::kGraceNs);
  const absl::Status verdict = inquiry.TakeEffects().end;
  EXPECT_EQ(BlameOf(verdict).rank, 0);
  Fail(verdict);
  EXPECT_TRUE(work.done());
}

TEST_F(CallRunnerTest, TheEndOfACallUnderInquiryNeedsAttention) {
  const CallWork& work = Started(Message(CallKind::kSend, 0));
  inquiry.FindOut(clock.Now());
  inquiry.TakeEffects();
  endpoints[0].Complete(absl::OkStatus(), 32);
  wants_attention = false;
  runner.Attend();
  EXPECT_TRUE(work.done());
  EXPECT_TRUE(wants_attention);
  EXPECT_EQ(inquiry.TakeEffects().found, absl::OkStatus());
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

// ---- Calls of peers that differ from this rank's call of the same number

TEST_F(CallRunnerTest, EqualCallsDoNotDiffer) {
  Started(AllReduce());
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, AllReduce().descriptor());
  EXPECT_FALSE(mismatches.voting());
  EXPECT_EQ(runner.Own({Tag::kUntagged, 0})->descriptor, AllReduce().descriptor());
  runner.Stop(absl::AbortedError("over"));
}

TEST_F(CallRunnerTest, AnOpenCallIsComparedAtOnce) {
  Started(AllReduce());
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, Message(CallKind::kSend, 0).descriptor());
  EXPECT_TRUE(mismatches.voting());
  EXPECT_TRUE(mismatches.call() == (CallId{Tag::kUntagged, 0}));
  EXPECT_TRUE(wants_attention);
  runner.Stop(absl::AbortedError("over"));
}

TEST_F(CallRunnerTest, ALaterCallIsComparedWhenItStarts) {
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, Message(CallKind::kSend, 0).descriptor());
  EXPECT_FALSE(mismatches.voting());
  EXPECT_FALSE(runner.Own({Tag::kUntagged, 0}).has_value());
  Started(AllReduce());
  EXPECT_TRUE(mismatches.voting());
  runner.Stop(absl::AbortedError("over"));
}

TEST_F(CallRunnerTest, MessagesOfTwoRanksAreNotCompared) {
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, AllReduce().descriptor());
  Started(Message(CallKind::kSend, 0));
  EXPECT_FALSE(mismatches.voting());
  runner.Stop(absl::AbortedError("over"));
}

TEST_F(CallRunnerTest, WhatWasHeardIsForgottenAtTheEnd) {
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, Message(CallKind::kSend, 0).descriptor());
  runner.Stop(absl::AbortedError("over"));
  Started(AllReduce());
  EXPECT_FALSE(mismatches.voting());
  runner.Stop(absl::AbortedError("over"));
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
  for (PlayedPeer& each : endpoints) {
    each.sends = Endpoint::Sent::kCopied;
    each.receives = Endpoint::Next::kThis;
  }
  EXPECT_EQ(runner.Run(AllReduce()), absl::OkStatus());
  EXPECT_FALSE(engine->seat().Look().driven);
  // The call is remembered, so that a rank that called something else is found.
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, Message(CallKind::kSend, 0).descriptor());
  EXPECT_TRUE(mismatches.voting());
}

TEST_F(CallRunnerTest, AnInlineCallThatIsOverWaitsForTheEndOfTheVote) {
  for (PlayedPeer& each : endpoints) {
    each.sends = Endpoint::Sent::kCopied;
    each.receives = Endpoint::Next::kThis;
  }
  struct EndOfVote final : Job {
    explicit EndOfVote(std::function<void()> ends) : run(std::move(ends)) {}
    void Run() override { run(); }
    const std::function<void()> run;
  } job([&] {
    EXPECT_TRUE(mismatches.voting());
    end.Set(absl::DataLossError("ranks disagree"));
    runner.VoteIsOver();
  });
  bool asked = false;
  at_attention = [&] {
    if (!std::exchange(asked, true)) {
      engine->seat().Submit(&job);
    }
  };
  runner.Compare(endpoints[0], {Tag::kUntagged, 0}, Message(CallKind::kSend, 0).descriptor());
  EXPECT_FALSE(asked) << "the call has not started";
  EXPECT_EQ(runner.Run(AllReduce()), absl::DataLossError("ranks disagree"));
  EXPECT_FALSE(engine->seat().Look().driven);
}

TEST_F(CallRunnerTest, NothingIsDueWhereNoFunctionRuns) {
  EXPECT_FALSE(runner.next_tick() < Deadline::Never());
}

// ---- Inline calls

using Next = Endpoint::Next;
using Sent = Endpoint::Sent;

class NoJob final : public Job {
 public:
  void Run() override {}
};

// Calls that run on the test's thread. Rank 0 takes what it is sent, and sends what is expected.
class InlineTest : public CallRunnerTest {
 protected:
  InlineTest() {
    peer.sends = Sent::kCopied;
    peer.receives = Next::kThis;
  }
  std::optional<absl::Status> Again(const Call& call) {
    return runner.RunAgain(CachedCall::KeyOf(call), call.in.data, call.out.data);
  }
  Call MessageOf(CallKind kind, int64_t count = 4) {
    Call call = Message(kind, 0);
    call.count = count;
    (kind == CallKind::kSend ? call.in : call.out).bytes = count * 8;
    return call;
  }
  bool EngineIsFree() {
    const bool free = engine->seat().TakeIfQuiet();
    if (free) {
      engine->seat().Leave();
    }
    return free;
  }

  PlayedPeer& peer = endpoints[0];
};

TEST_F(InlineTest, TheSecondCallOfAKeyNeedsNoPlan) {
  for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
    const Call call = MessageOf(kind);
    EXPECT_EQ(Again(call), std::nullopt);
    EXPECT_EQ(runner.Run(call), absl::OkStatus());
    EXPECT_EQ(Again(call), absl::OkStatus());
    EXPECT_EQ(Again(call), absl::OkStatus());
  }
  ASSERT_EQ(peer.tags.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(peer.tags[i].call() - peer.tags[i / 3 * 3].call(), i % 3)
        << "every call has a number of its own";
  }
  EXPECT_EQ(runner.inlined(InlineEnd::kDone), 6u);
  const auto recorded = flight.Read();
  ASSERT_EQ(recorded.size(), 6u);
  EXPECT_EQ(recorded[1].call.kind, CallKind::kSend);
  EXPECT_EQ(recorded[1].call.number, 2u);
  EXPECT_EQ(recorded[4].call.kind, CallKind::kRecv);
  EXPECT_EQ(recorded[4].call.peer, 0);
  EXPECT_EQ(runner.bytes_sent(), 3u * 32);
  EXPECT_EQ(runner.bytes_received(), 3u * 32);
  EXPECT_TRUE(EngineIsFree());
}

TEST_F(InlineTest, ManyKeysAreKeptAtATime) {
  std::vector<Call> calls;
  for (int op = 0; op < 11; ++op) {  // a send has no operator, but its key has one
    calls.push_back(MessageOf(CallKind::kSend));
    calls.back().reduction.op = static_cast<ReduceOp>(op);
    EXPECT_EQ(runner.Run(calls.back()), absl::OkStatus());
  }
  const auto found = std::count_if(calls.begin(), calls.end(),
                                   [&](const Call& call) { return Again(call).has_value(); });
  EXPECT_GE(found, 7) << "of 11 in 256 places";
}

TEST_F(InlineTest, MessagesOfEveryLengthShareAnEntry) {
  for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
    ASSERT_EQ(runner.Run(MessageOf(kind, 4)), absl::OkStatus());
    for (const int64_t count : {5, 0, 60, 4}) {
      EXPECT_EQ(Again(MessageOf(kind, count)), absl::OkStatus());
      EXPECT_EQ(peer.last_bytes, static_cast<size_t>(count) * 8);
      EXPECT_EQ(peer.last_count, count);
    }
    for (const int64_t count : {int64_t{-1}, kMaxInlineBytes / 8 + 1, INT64_MAX, INT64_MIN}) {
      Call call = MessageOf(kind);
      call.count = count;
      EXPECT_EQ(Again(call), std::nullopt);
    }
  }
  EXPECT_TRUE(EngineIsFree());
}

TEST_F(InlineTest, AddressesThatAreNotGoodUseUpNoNumber) {
  const Call good = MessageOf(CallKind::kSend);
  Call call = good;
  ASSERT_EQ(runner.Run(call), absl::OkStatus());
  for (void* const bad :
       {static_cast<void*>(nullptr), static_cast<void*>(reinterpret_cast<char*>(data.data()) + 4),
        reinterpret_cast<void*>(~uintptr_t{0} - 7)}) {
    call.in.data = bad;
    EXPECT_EQ(Again(call), std::nullopt);
    EXPECT_TRUE(EngineIsFree());
  }
  EXPECT_EQ(Again(good), absl::OkStatus());
  EXPECT_EQ(peer.tags[1].call(), peer.tags[0].call() + 1);
}

TEST_F(InlineTest, PlansThatCountNoMoreAreNotUsed) {
  const Call call = MessageOf(CallKind::kSend);
  ASSERT_EQ(runner.Run(call), absl::OkStatus());
  runner.ForgetPlans();
  EXPECT_EQ(Again(call), std::nullopt);
  ASSERT_EQ(runner.Run(call), absl::OkStatus());
  EXPECT_EQ(Again(call), absl::OkStatus());
}

TEST_F(InlineTest, NothingIsDoneWhileTheEngineIsBusyOrItDoesNotPay) {
  const Call call = MessageOf(CallKind::kSend);
  ASSERT_EQ(runner.Run(call), absl::OkStatus());
  ASSERT_TRUE(engine->seat().TakeIfQuiet());
  EXPECT_EQ(Again(call), std::nullopt);
  EXPECT_EQ(runner.Run(call), std::nullopt);
  engine->seat().Leave();
  runner.SetInlinePays(false);
  EXPECT_EQ(Again(call), std::nullopt);
  EXPECT_EQ(runner.Run(call), std::nullopt);
  runner.SetInlinePays(true);
  end.Set(absl::AbortedError("over"));
  EXPECT_EQ(Again(call), std::nullopt);
  EXPECT_EQ(peer.tags.size(), 1u);
  EXPECT_TRUE(EngineIsFree());
}

TEST_F(InlineTest, CallsForTheExecutorAloneAreLeftToIt) {
  Call background = MessageOf(CallKind::kSend), any = MessageOf(CallKind::kRecv);
  background.options.background = true;
  any.kind = CallKind::kRecvAny;
  EXPECT_EQ(runner.Run(background), std::nullopt);
  EXPECT_EQ(runner.Run(any), std::nullopt);
  EXPECT_TRUE(peer.tags.empty());
}

TEST_F(InlineTest, AReceiveBehindALineIsLeftToTheExecutor) {
  Call any = MessageOf(CallKind::kRecv);
  any.kind = CallKind::kRecvAny;
  any.root = -1;
  const CallWork& first = Started(any);
  EXPECT_EQ(runner.Run(MessageOf(CallKind::kRecv)), std::nullopt);
  EXPECT_TRUE(first.waits());
  EXPECT_TRUE(peer.tags.empty());
  Fail(absl::AbortedError("the test is over"));
}

// One call that an executor must continue. The communicator ends meanwhile, so that the call is
// over.
struct HandedOver final : InlineTest {
  void TestBody() override {}
  void Try(InlineEnd why, CallKind kind, Sent sends, Next receives, bool lends, bool again) {
    SCOPED_TRACE(SentenceOf(why));
    NoJob job;
    const Call call = MessageOf(kind);
    ASSERT_EQ(runner.Run(call), absl::OkStatus());  // puts the call into the cache
    peer.sends = sends;
    peer.receives = receives;
    peer.during = [&] {
      end.Set(absl::AbortedError("it has ended"));
      if (why == InlineEnd::kEngineWanted) {
        engine->seat().Submit(&job);
        peer.during = [] {};
      }
    };
    const auto status = again ? Again(call) : runner.Run(call);
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->message(), "it has ended");
    EXPECT_EQ(runner.inlined(why), 1u);
    // Peers may read what was lent, so it is revoked before the caller gets it back.
    EXPECT_EQ(failures.size(), lends ? 1u : 0u);
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(kept.use_count(), 1);
    engine->seat().PollOnce();  // runs the job
    EXPECT_TRUE(EngineIsFree());
    TearDown();
  }
};

TEST(InlineEnds, EachButOneHandsOverOnce) {
  const struct {
    InlineEnd end;
    CallKind kind;
    Sent sent;
    Next next;
    bool lends;
  } cases[] = {
      {InlineEnd::kNoRoom, CallKind::kSend, Sent::kNo, Next::kThis, false},
      {InlineEnd::kOtherFirst, CallKind::kSend, Sent::kRtsSent, Next::kOther, true},
      {InlineEnd::kWaitedLong, CallKind::kSend, Sent::kRtsSent, Next::kNothing, true},
      {InlineEnd::kOtherFirst, CallKind::kRecv, Sent::kNo, Next::kOther, false},
      {InlineEnd::kWaitedLong, CallKind::kRecv, Sent::kNo, Next::kNothing, false},
      {InlineEnd::kEngineWanted, CallKind::kRecv, Sent::kNo, Next::kNothing, false},
  };
  for (const auto& one : cases) {
    for (const bool again : {false, true}) {
      HandedOver().Try(one.end, one.kind, one.sent, one.next, one.lends, again);
    }
  }
}

TEST_F(InlineTest, AMessageThatIsTooLongIsHandedOverUntouched) {
  data.resize(kMaxInlineBytes / 8 + 1);
  std::latch posted(1);
  peer.during = [&] { posted.count_down(); };
  std::thread other([&] {  // the peer takes what the executor has posted
    posted.wait();
    engine->seat().RunInDriver([&] { Complete(0, absl::OkStatus()); });
  });
  EXPECT_EQ(runner.Run(MessageOf(CallKind::kSend, kMaxInlineBytes / 8 + 1)), absl::OkStatus());
  other.join();
  EXPECT_EQ(runner.inlined(InlineEnd::kNoFit), 1u);
  EXPECT_TRUE(peer.tags.empty());
}

TEST_F(InlineTest, SmallScratchIsKeptAndLargeScratchGoesBackToThePool) {
  for (PlayedPeer& each : endpoints) {
    each.sends = Sent::kCopied;
    each.receives = Next::kThis;
  }
  for (const int64_t bytes : {int64_t{1} << 10, int64_t{1} << 18}) {
    data.resize(static_cast<size_t>(bytes) / 4);
    Call call = AllReduce();
    call.count = bytes / 8;
    call.in = {data.data(), bytes, MemoryKind::kHost};
    call.out = {data.data() + call.count, bytes, MemoryKind::kHost};
    pool.Clear();
    ASSERT_EQ(runner.Run(call), absl::OkStatus());
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Again(call), absl::OkStatus()) << bytes;
      EXPECT_EQ(pool.idle_bytes() > 0, bytes > (64 << 10)) << "another call may need it";
    }
  }
}

// An executor that continues a call keeps the plan as it was.
TEST_F(InlineTest, TheLengthDoesNotChangeWhileAnotherHasThePlan) {
  const Call call = MessageOf(CallKind::kSend, 4);
  Admitted admitted;
  ASSERT_EQ(funnel->Admit(call, &admitted), absl::OkStatus());
  CachedCall cached(call, call.descriptor(), admitted.wiring, 0, admitted.plan);
  std::shared_ptr<const Plan> other = cached.plan;
  EXPECT_FALSE(cached.Resize(5));
  EXPECT_EQ(other->places.transfers[0].bytes, 4 * 8);
  other = nullptr;
  EXPECT_TRUE(cached.Resize(5));
  EXPECT_EQ(cached.plan->places.transfers[0].bytes, 5 * 8);
}

// Tests any number of cached plans. With a plain hash, a send and a receive would share a slot on
// some ranks.
TEST(CallCacheTest, KindsAndPeersThatTakeTurnsDoNotShareASlot) {
  for (uint64_t plans_made = 0; plans_made < 50; ++plans_made) {
    std::set<size_t> slots;
    for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
      for (int root = 5; root < 5 + 16; ++root) {
        slots.insert(
            CallCache::Query({kind, DType::kF32, ReduceOp::kSum, root, 1}, plans_made).slot());
      }
    }
    EXPECT_EQ(slots.size(), 32u) << plans_made;
  }
}

TEST(InlineEnds, HaveASentenceEach) {
  const std::set<absl::string_view> sentences(kInlineEnds.begin(), kInlineEnds.end());
  EXPECT_EQ(sentences.size(), static_cast<size_t>(InlineEnd::kEngineWanted) + 1);
  EXPECT_EQ(sentences.count(""), 0u);
}

}  // namespace
}  // namespace entrain
