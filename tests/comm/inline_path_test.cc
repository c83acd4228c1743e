// The inline path alone: a played communicator, one played endpoint, and an engine that no other
// thread drives.
#include "lib/comm/inline_path.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/engine/engine.h"

namespace entrain {
namespace {

using Next = Endpoint::Next;
using Sent = Endpoint::Sent;

// An endpoint that gives the answers that the test wants.
class PlayedEndpoint final : public Endpoint {
 public:
  void PostSend(const Envelope&, ConstBytes, Completion*) override {}
  void PostRecv(const Envelope&, Bytes, Completion*, RecvHint) override {}
  bool HasEarly(Tag) const override { return false; }
  Sent TrySend(const Envelope& envelope, ConstBytes bytes, SendRequest* request) override {
    tags.push_back(envelope.tag);
    last_bytes = bytes.size();
    last_count = envelope.descriptor.count;
    *request = {7, static_cast<int64_t>(bytes.size())};
    return sent;
  }
  Next TryRecv(const Envelope& envelope, Bytes bytes, const std::byte**) override {
    tags.push_back(envelope.tag);
    last_bytes = bytes.size();
    last_count = envelope.descriptor.count;
    during();
    return next;
  }
  Next TryTaken(SendRequest) override { return next; }
  void SendControl(absl::string_view) override {}
  void Revoke(Context, Context, const absl::Status&) override {}
  void Close(const absl::Status&) override {}
  std::string peer_address() const override { return "played"; }

  Sent sent = Sent::kCopied;
  Next next = Next::kThis;
  std::function<void()> during = [] {};
  std::vector<Tag> tags;
  size_t last_bytes = 0;
  int64_t last_count = 0;
};

class NoJob final : public Job {
 public:
  void Run() override {}
};

class InlinePathTest : public testing::Test, protected InlineFunnel, protected InlineOwner {
 protected:
  // InlineFunnel
  bool ended() const override { return over_for_good; }
  absl::Status Admit(const Call& call, Admitted* admitted) override {
    ++furnished;
    during_furnish();
    if (!refusal.ok() || waits) {
      admitted->waits = waits;
      return refusal;
    }
    admitted->plan = MakePlan(call);
    admitted->scratch = *pool.Take(scratch_bytes);
    admitted->wiring = {endpoints, contexts, 1};
    admitted->wiring.point_to_point = true;
    Number(CallNumbers::Of(call), &admitted->wiring);
    return absl::OkStatus();
  }
  void Number(CallNumbers::Series, Wiring* wiring) override {
    wiring->sequence = wiring->call_number = next_number++;
  }
  // InlineOwner
  absl::Status Over(const Descriptor&, const Wiring&) override {
    idle_when_over = pool.idle_bytes();
    engine->seat().Leave();
    return absl::OkStatus();
  }
  absl::Status GoOn(const Call&, Admitted admitted, const Progress& progress) override {
    gone_on.push_back(progress);
    gone_plan = std::move(admitted.plan);
    engine->seat().Leave();
    return absl::AbortedError("went on");
  }

  void TearDown() override { engine->Shutdown(); }
  // Makes a plan of one transfer, as the planner does, with `scratch_bytes` of scratch.
  std::shared_ptr<const Plan> MakePlan(const Call& call) const {
    auto schedule = std::make_shared<Schedule>();
    const bool sends = call.kind == CallKind::kSend;
    schedule->spec = {call.kind, 0, 2, 0, 1};
    schedule->transfers.push_back({sends ? Direction::kSend : Direction::kRecv,
                                   call.root,
                                   {sends ? Slot::kIn : Slot::kOut, 0, 1}});
    schedule->rounds.push_back({0, 1, 0, 0});
    schedule->lanes.push_back({0, 1, 0, 0});
    Layout layout;
    layout.first = {0, call.count};
    Plan plan = Plan::Make(std::move(schedule), "point_to_point", layout, layout, 8, 1);
    plan.slot_bytes = scratch_bytes;
    return std::make_shared<const Plan>(std::move(plan));
  }
  Call Message(CallKind kind, int64_t count = 4) {
    Call call;
    call.kind = kind;
    call.dtype = DType::kI64;
    call.count = count;
    call.root = 1;
    (kind == CallKind::kSend ? call.in : call.out) = {data.data(), count * 8, MemoryKind::kHost};
    return call;
  }
  std::optional<absl::Status> Again(const Call& call) {
    return path.RunAgain(CachedCall::KeyOf(call), call.in.data, call.out.data);
  }
  bool EngineIsFree() {
    const bool free = engine->seat().TakeIfQuiet();
    if (free) {
      engine->seat().Leave();
    }
    return free;
  }

  std::shared_ptr<Engine> engine = std::make_shared<Engine>(SeatOptions{.own_thread = false});
  BufferPool pool{int64_t{1} << 30};
  PlayedEndpoint peer;
  std::vector<Endpoint*> endpoints{nullptr, &peer};
  std::vector<Context> contexts{1, 2};
  std::vector<int64_t> data = std::vector<int64_t>(100);
  int furnished = 0;
  uint32_t next_number = 0;
  int64_t scratch_bytes = 0, idle_when_over = -1;
  bool over_for_good = false, waits = false;
  std::shared_ptr<const Plan> gone_plan;  // of the call that an executor continues
  absl::Status refusal;
  std::function<void()> during_furnish = [] {};
  std::vector<Progress> gone_on;
  FlightRecorder flight{16, 0};
  InlinePath path{engine->seat(), pool, *this, *this, flight, 2, /*pays=*/true};
};

TEST_F(InlinePathTest, TheSecondCallOfAKeyNeedsNoOwner) {
  for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
    furnished = 0;
    const Call call = Message(kind);
    EXPECT_EQ(Again(call), std::nullopt);
    EXPECT_EQ(path.Run(call), absl::OkStatus());
    EXPECT_EQ(Again(call), absl::OkStatus());
    EXPECT_EQ(Again(call), absl::OkStatus());
    EXPECT_EQ(furnished, 1);
  }
  ASSERT_EQ(peer.tags.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(peer.tags[i].call(), i) << "every call has a number of its own";
  }
  EXPECT_EQ(path.count(InlineEnd::kDone), 6u);
  // The flight recorder has the calls of the inline path and of the executor.
  const auto recorded = flight.Read();
  ASSERT_EQ(recorded.size(), 6u);
  EXPECT_EQ(recorded[1].call.kind, CallKind::kSend);
  EXPECT_EQ(recorded[1].call.number, 2u);
  EXPECT_EQ(recorded[4].call.kind, CallKind::kRecv);
  EXPECT_EQ(recorded[4].call.number, 5u);
  EXPECT_EQ(recorded[4].call.peer, 1);
  EXPECT_STREQ(recorded[4].call.algorithm, "point_to_point");
  EXPECT_EQ(path.bytes_sent(), 3u * 32);
  EXPECT_EQ(path.bytes_received(), 3u * 32);
  EXPECT_TRUE(EngineIsFree());
}

// Tests any number of cached plans. With a plain hash, a send and a receive would share a slot on
// some ranks.
TEST(PlanCacheTest, KindsAndPeersThatTakeTurnsDoNotShareASlot) {
  for (uint64_t plans_made = 0; plans_made < 50; ++plans_made) {
    std::set<size_t> slots;
    for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
      for (int root = 5; root < 5 + 16; ++root) {
        slots.insert(
            PlanCache::Query({kind, DType::kF32, ReduceOp::kSum, root, 1}, plans_made).slot());
      }
    }
    EXPECT_EQ(slots.size(), 32u) << plans_made;
  }
}

TEST_F(InlinePathTest, ManyKeysAreKeptAtATime) {
  std::vector<Call> calls;
  for (int op = 0; op < 11; ++op) {  // a send has no operator, but its key has one
    calls.push_back(Message(CallKind::kSend));
    calls.back().reduction.op = static_cast<ReduceOp>(op);
    EXPECT_EQ(path.Run(calls.back()), absl::OkStatus());
  }
  const auto kept = std::count_if(calls.begin(), calls.end(),
                                  [&](const Call& call) { return Again(call).has_value(); });
  EXPECT_GE(kept, 7) << "of 11 in 256 places";
}

TEST_F(InlinePathTest, MessagesOfEveryLengthShareAnEntry) {
  for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
    furnished = 0;
    ASSERT_EQ(path.Run(Message(kind, 4)), absl::OkStatus());
    for (const int64_t count : {5, 0, 100, 4}) {
      EXPECT_EQ(Again(Message(kind, count)), absl::OkStatus());
      EXPECT_EQ(peer.last_bytes, static_cast<size_t>(count) * 8);
      EXPECT_EQ(peer.last_count, count);
    }
    for (const int64_t count : {int64_t{-1}, kMaxInlineBytes / 8 + 1, INT64_MAX, INT64_MIN}) {
      Call call = Message(kind);
      call.count = count;
      EXPECT_EQ(Again(call), std::nullopt);
    }
    EXPECT_EQ(furnished, 1);
  }
  EXPECT_TRUE(EngineIsFree());
}

TEST_F(InlinePathTest, TheLengthDoesNotChangeWhileAnExecutorHasThePlan) {
  ASSERT_EQ(path.Run(Message(CallKind::kSend, 4)), absl::OkStatus());
  peer.sent = Sent::kNo;
  ASSERT_TRUE(Again(Message(CallKind::kSend, 5)).has_value());  // an executor continues it
  peer.sent = Sent::kCopied;
  ASSERT_NE(gone_plan, nullptr);
  EXPECT_EQ(Again(Message(CallKind::kSend, 6)), std::nullopt);
  EXPECT_EQ(gone_plan->places.transfers[0].bytes, 5 * 8);
  EXPECT_EQ(Again(Message(CallKind::kSend, 5)), absl::OkStatus());
  gone_plan = nullptr;
  EXPECT_EQ(Again(Message(CallKind::kSend, 6)), absl::OkStatus());
}

TEST_F(InlinePathTest, AddressesThatAreNotGoodUseUpNoNumber) {
  Call call = Message(CallKind::kSend);
  ASSERT_EQ(path.Run(call), absl::OkStatus());
  for (void* const bad :
       {static_cast<void*>(nullptr), static_cast<void*>(reinterpret_cast<char*>(data.data()) + 4),
        reinterpret_cast<void*>(~uintptr_t{0} - 7)}) {
    call.in.data = bad;
    EXPECT_EQ(Again(call), std::nullopt);
    EXPECT_TRUE(EngineIsFree());
  }
  EXPECT_EQ(next_number, 1u);
}

TEST_F(InlinePathTest, PlansThatCountNoMoreAreNotUsed) {
  const Call call = Message(CallKind::kSend);
  ASSERT_EQ(path.Run(call), absl::OkStatus());
  path.Forget();
  EXPECT_EQ(Again(call), std::nullopt);
  // Plans are forgotten while this one is made, so it may be out of date.
  during_furnish = [this] { path.Forget(); };
  ASSERT_EQ(path.Run(call), absl::OkStatus());
  EXPECT_EQ(Again(call), std::nullopt);
  during_furnish = [] {};
  ASSERT_EQ(path.Run(call), absl::OkStatus());
  EXPECT_EQ(Again(call), absl::OkStatus());
}

TEST_F(InlinePathTest, NothingIsDoneWhileTheEngineIsBusyOrItDoesNotPay) {
  const Call call = Message(CallKind::kSend);
  ASSERT_EQ(path.Run(call), absl::OkStatus());
  ASSERT_TRUE(engine->seat().TakeIfQuiet());
  EXPECT_EQ(Again(call), std::nullopt);
  EXPECT_EQ(path.Run(call), std::nullopt);
  engine->seat().Leave();
  path.SetPays(false);
  EXPECT_EQ(Again(call), std::nullopt);
  EXPECT_EQ(path.Run(call), std::nullopt);
  path.SetPays(true);
  over_for_good = true;
  EXPECT_EQ(Again(call), std::nullopt);
  EXPECT_EQ(next_number, 1u);
  EXPECT_TRUE(EngineIsFree());
}

TEST_F(InlinePathTest, CallsForTheExecutorAloneAreLeftToIt) {
  Call background = Message(CallKind::kSend), any = Message(CallKind::kRecv);
  background.options.background = true;
  any.kind = CallKind::kRecvAny;
  EXPECT_EQ(path.Run(background), std::nullopt);
  EXPECT_EQ(path.Run(any), std::nullopt);
  EXPECT_EQ(furnished, 0);
}

TEST_F(InlinePathTest, ACallThatCannotBeFurnishedOrMustWaitLeavesTheEngine) {
  const Call call = Message(CallKind::kSend);
  refusal = absl::ResourceExhaustedError("no memory");
  EXPECT_EQ(path.Run(call), refusal);
  EXPECT_TRUE(EngineIsFree());
  refusal = absl::OkStatus();
  waits = true;
  EXPECT_EQ(path.Run(call), std::nullopt);
  EXPECT_TRUE(EngineIsFree());
  EXPECT_EQ(next_number, 0u);
}

TEST_F(InlinePathTest, EveryEndButOneHandsOverOnce) {
  NoJob job;
  const struct {
    InlineEnd end;
    CallKind kind;
    Sent sent;
    Next next;
    size_t lent;
  } cases[] = {
      {InlineEnd::kNoRoom, CallKind::kSend, Sent::kNo, Next::kThis, 0},
      {InlineEnd::kOtherFirst, CallKind::kSend, Sent::kRtsSent, Next::kOther, 1},
      {InlineEnd::kWaitedLong, CallKind::kSend, Sent::kRtsSent, Next::kNothing, 1},
      {InlineEnd::kOtherFirst, CallKind::kRecv, Sent::kNo, Next::kOther, 0},
      {InlineEnd::kWaitedLong, CallKind::kRecv, Sent::kNo, Next::kNothing, 0},
      {InlineEnd::kEngineWanted, CallKind::kRecv, Sent::kNo, Next::kNothing, 0},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(SentenceOf(one.end));
    const Call call = Message(one.kind);
    peer.sent = Sent::kCopied;
    peer.next = Next::kThis;
    peer.during = [] {};
    ASSERT_EQ(path.Run(call), absl::OkStatus());  // puts the call into the cache
    for (const bool again : {false, true}) {
      gone_on.clear();
      peer.sent = one.sent;
      peer.next = one.next;
      if (one.end == InlineEnd::kEngineWanted) {
        peer.during = [&] {
          engine->seat().Submit(&job);
          peer.during = [] {};
        };
      }
      const uint64_t before = path.count(one.end);
      const auto status = again ? Again(call) : path.Run(call);
      ASSERT_TRUE(status.has_value());
      EXPECT_EQ(status->code(), absl::StatusCode::kAborted);
      EXPECT_EQ(path.count(one.end), before + 1);
      ASSERT_EQ(gone_on.size(), 1u);
      EXPECT_EQ(gone_on[0].lent.size(), one.lent);
      EXPECT_NE(std::exchange(gone_plan, nullptr), nullptr);
      engine->seat().PollOnce();  // runs the job
      EXPECT_TRUE(EngineIsFree());
    }
  }
}

TEST_F(InlinePathTest, AMessageThatIsTooLongIsHandedOverUntouched) {
  data.resize(kMaxInlineBytes / 8 + 1);
  const Call call = Message(CallKind::kSend, kMaxInlineBytes / 8 + 1);
  EXPECT_EQ(path.Run(call)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(path.count(InlineEnd::kNoFit), 1u);
  EXPECT_TRUE(peer.tags.empty());
}

TEST_F(InlinePathTest, SmallScratchIsKeptAndLargeScratchGoesBackToThePool) {
  for (const int64_t bytes : {int64_t{1} << 10, int64_t{1} << 20}) {
    scratch_bytes = bytes;
    const Call call = Message(CallKind::kSend, bytes / 1024 % 64 + 1);
    pool.Clear();
    ASSERT_EQ(path.Run(call), absl::OkStatus());
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Again(call), absl::OkStatus()) << bytes;
      EXPECT_EQ(idle_when_over >= bytes, bytes > (64 << 10)) << "before another call may need it";
    }
  }
  EXPECT_EQ(furnished, 2);
}

TEST(InlineEnds, HaveASentenceEach) {
  const std::set<absl::string_view> sentences(kInlineEnds.begin(), kInlineEnds.end());
  EXPECT_EQ(sentences.size(), static_cast<size_t>(InlineEnd::kEngineWanted) + 1);
  EXPECT_EQ(sentences.count(""), 0u);
}

}  // namespace
}  // namespace entrain
