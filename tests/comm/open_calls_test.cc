// The calls that are under way, and the questions about them.
#include "lib/comm/open_calls.h"

#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

class OpenCallsTest : public PlayedComm {
 protected:
  CallWork& Open(const Call& call, int64_t started_ns = 0) {
    works.push_back(funnel->Start(call, started_ns).value());
    auto& work = static_cast<CallWork&>(*works.back());
    work.started = true;
    open.Add(&work);
    return work;
  }
  Call Until(int64_t deadline_ns) {
    Call call = AllReduce();
    call.options.deadline = {deadline_ns};
    return call;
  }
  OpenCalls open;
};

TEST_F(OpenCallsTest, KeepsTheOrderInWhichTheyStarted) {
  EXPECT_EQ(open.first(), nullptr);
  CallWork &one = Open(AllReduce()), &two = Open(AllReduce());
  EXPECT_EQ(open.first(), &one);
  EXPECT_EQ(open.size(), 2u);
  open.Remove(&one);
  EXPECT_EQ(open.first(), &two);
  EXPECT_FALSE(open.Has(&one));
  EXPECT_TRUE(open.Has(&two));
  open.Remove(&two);
  EXPECT_TRUE(open.empty());
}

TEST_F(OpenCallsTest, CountsTheReceivesInLine) {
  CallWork& any = Open(Message(CallKind::kRecvAny, -1));
  CallWork& behind = Open(Message(CallKind::kRecv, 0));
  Open(AllReduce());
  EXPECT_EQ(open.in_line(), 2);
  const auto begun = funnel->TakeTurns([](uint32_t) { return 2; });
  EXPECT_EQ(begun.size(), 2u);
  open.LeftLine(begun.size());
  EXPECT_EQ(open.in_line(), 0);
  open.Remove(&any);
  open.Remove(&behind);
  EXPECT_EQ(open.in_line(), 0);
  CallWork& another = Open(Message(CallKind::kRecvAny, -1));
  EXPECT_EQ(open.in_line(), 1);
  open.Remove(&another);
  EXPECT_EQ(open.in_line(), 0) << "it has ended without its turn";
}

TEST_F(OpenCallsTest, FindsACollectiveByItsNumberAndNoMessage) {
  Open(Message(CallKind::kSend, 0));
  CallWork& work = Open(AllReduce(5));
  EXPECT_EQ(open.Collective({5, 0}), &work);
  EXPECT_EQ(open.Collective({5, 1}), nullptr);
  EXPECT_EQ(open.Collective({Tag::kUntagged, 0}), nullptr) << "that is a send";
  EXPECT_EQ(open.OwnCollective({5, 0})->descriptor, AllReduce(5).descriptor());
  EXPECT_FALSE(open.OwnCollective({5, 1}).has_value());
}

TEST_F(OpenCallsTest, TheOldestIsTheOneThatWasMadeFirst) {
  EXPECT_EQ(open.Oldest(), nullptr);
  Open(AllReduce(), 30);
  CallWork& oldest = Open(AllReduce(), 10);
  Open(AllReduce(), 20);
  EXPECT_EQ(open.Oldest(), &oldest);
}

TEST_F(OpenCallsTest, TheFirstDeadlineIsOfACallThatIsNotAskedAbout) {
  EXPECT_FALSE(open.FirstDeadline() < Deadline::Never());
  Open(Until(300));
  CallWork& first = Open(Until(100));
  EXPECT_EQ(open.FirstDeadline().at_ns, 100);
  first.inquired = true;
  EXPECT_EQ(open.FirstDeadline().at_ns, 300);
}

TEST_F(OpenCallsTest, KnowsWhoUsesMemory) {
  CallWork& work = Open(AllReduce());  // input data[0..4), output data[4..8)
  const auto bytes = [&](size_t first, size_t count) {
    return ConstBytes(reinterpret_cast<const std::byte*>(data.data() + first), count * 8);
  };
  EXPECT_EQ(open.UserOf(bytes(0, 1)), &work);
  EXPECT_EQ(open.UserOf(bytes(7, 4)), &work);
  EXPECT_EQ(open.UserOf(bytes(8, 4)), nullptr);
}

TEST_F(OpenCallsTest, NoFunctionRunsWhereNoneWasCalled) {
  CallWork& work = Open(AllReduce());
  EXPECT_EQ(open.RunningFunction().work, nullptr);
  EXPECT_EQ(open.HeldUpByFunction(work, kSecond).work, nullptr);
}

}  // namespace
}  // namespace entrain
