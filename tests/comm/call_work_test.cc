// One started call, over endpoints whose transfers the test ends.
#include "lib/comm/call_work.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NotedShell final : public PlayedShell {
 public:
  void StartWork(CallWork* work) override { started.push_back(work); }
  void NeedAttention() override { ++attention; }
  std::vector<CallWork*> started;
  int attention = 0;
};

class CallWorkTest : public PlayedComm {
 protected:
  Admitted AdmittedFor(const Call& call) {
    Admitted admitted;
    EXPECT_EQ(funnel->Admit(call, &admitted), absl::OkStatus());
    return admitted;
  }
  CallWork& Make(Admitted admitted, CallBegin begin) {
    works.push_back(RefPtr<Work>::Adopt(
        new CallWork(*engine, owner, config.name, std::move(admitted), std::move(begin))));
    return static_cast<CallWork&>(*works.back());
  }
  CallWork& Make(const Call& call) {
    works.push_back(funnel->Start(call, 0).value());
    return static_cast<CallWork&>(*works.back());
  }
  RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin) override {
    return RefPtr<CallWork>::Adopt(
        new CallWork(*engine, owner, config.name, std::move(admitted), std::move(begin)));
  }

  std::shared_ptr<NotedShell> owner = std::make_shared<NotedShell>();
};

TEST_F(CallWorkTest, ItsJobGivesItToTheOwner) {
  CallWork& work = Make(AllReduce());
  EXPECT_THAT(owner->started, IsEmpty());
  work.Run();
  EXPECT_THAT(owner->started, ElementsAre(&work));
  EXPECT_FALSE(work.started) << "the owner says so";
}

TEST_F(CallWorkTest, ItIsReadyWhenItsTransfersAreOver) {
  CallWork& work = Make(Message(CallKind::kSend, 2));
  work.executor().Start();
  EXPECT_EQ(work.WaitingFor(), 2);
  EXPECT_FALSE(work.ready);
  endpoints[2].Complete(absl::OkStatus(), 32);
  EXPECT_TRUE(work.ready);
  EXPECT_EQ(owner->attention, 1);
  EXPECT_TRUE(work.executor().Advance());
  EXPECT_EQ(work.WaitingFor(), -1);
  EXPECT_FALSE(work.done()) << "the owner finishes it";
}

TEST_F(CallWorkTest, ErrorsKnowItByKindTagAndNumber) {
  EXPECT_EQ(Make(AllReduce()).Name(), "all_reduce #1");
  EXPECT_EQ(Make(AllReduce()).Name(), "all_reduce #2");
  EXPECT_EQ(Make(AllReduce(5)).Name(), "all_reduce tag 5 #1");
  EXPECT_EQ(Make(Message(CallKind::kSend, 0, 5)).Name(), "send tag 5 #1");
  Call part = AllReduce();
  Call whole = part;
  whole.kind = CallKind::kReduce;
  part.whole = std::make_shared<const Call>(whole);
  EXPECT_EQ(Make(part).Name(), "reduce #3") << "the caller made that call";
}

TEST_F(CallWorkTest, ItTellsWhatItIs) {
  CallWork& work = Make(AdmittedFor(AllReduce(5)), {.call = AllReduce(5), .started_ns = 77});
  const WorkInfo info = work.Info();
  EXPECT_EQ(info.comm, "c");
  EXPECT_EQ(info.operation, "all_reduce");
  EXPECT_EQ(info.tag, 5);
  EXPECT_EQ(info.sequence, 1u);
  EXPECT_EQ(info.started_ns, 77);
  EXPECT_EQ(info.source, -1);
  EXPECT_EQ(Make(Message(CallKind::kRecv, 2)).Info().source, -1) << "of recv_any only";
}

TEST_F(CallWorkTest, AReceiveInLineHasItsNumberAndPeerWhenItIsTaken) {
  const Call call = Message(CallKind::kRecvAny, -1, 5);
  CallWork& work = Make(call);
  EXPECT_TRUE(work.waits());
  EXPECT_EQ(work.number(), 0u);
  EXPECT_EQ(work.peer(), -1);
  EXPECT_EQ(work.Name(), "recv_any tag 5");
  EXPECT_EQ(work.Info().source, -1);

  work.started = true;  // as the driver says
  ASSERT_THAT(funnel->TakeTurns([](uint32_t) { return 2; }), ElementsAre(&work));
  EXPECT_FALSE(work.waits());
  EXPECT_EQ(work.number(), 1u);
  EXPECT_EQ(work.peer(), 2);
  EXPECT_EQ(work.Name(), "recv_any tag 5 #1");
  EXPECT_EQ(work.Info().source, 2);
  EXPECT_EQ(work.Info().sequence, 1u);
  work.executor().Start();
  EXPECT_EQ(endpoints[2].posted.size(), 1u);
  EXPECT_THAT(endpoints[0].posted, IsEmpty());
  endpoints[2].Complete(absl::OkStatus(), 32);
  EXPECT_TRUE(work.ready);
}

TEST_F(CallWorkTest, ItsBuffersAreUsedAgain) {
  Admitted admitted = AdmittedFor(AllReduce());
  ASSERT_GT(admitted.scratch.size(), 0);
  const int64_t scratch = admitted.scratch.size();
  OwnedBuffer staged = *pool.Take(4096);
  const int64_t both = scratch + staged.size();
  CallWork& work = Make(std::move(admitted), {.call = AllReduce(), .staged = std::move(staged)});
  ASSERT_EQ(pool.idle_bytes(), 0);
  work.GiveBuffers(pool);
  EXPECT_EQ(pool.idle_bytes(), both);
}

}  // namespace
}  // namespace entrain
