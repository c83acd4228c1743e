#include "lib/base/clock.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(Clock, RealTimeDoesNotGoBack) {
  const int64_t first = Clock::Real().Now();
  EXPECT_GT(first, 0);
  EXPECT_LE(first, Clock::Real().Now());
}

TEST(Deadline, PassesWhenItsInstantComes) {
  FakeClock clock;
  const Deadline deadline = Deadline::After(kSecond, clock);
  EXPECT_FALSE(deadline.Passed(clock.Now()));
  EXPECT_EQ(deadline.Left(clock.Now()), kSecond);
  clock.Advance(kSecond - 1);
  EXPECT_FALSE(deadline.Passed(clock.Now()));
  EXPECT_EQ(deadline.Left(clock.Now()), 1);
  clock.Advance(1);
  EXPECT_TRUE(deadline.Passed(clock.Now()));
  clock.Advance(kSecond);
  EXPECT_EQ(deadline.Left(clock.Now()), 0);
}

TEST(Deadline, AVeryLongTimeIsNeverAndDoesNotOverflow) {
  FakeClock clock;
  const Deadline far = Deadline::After(std::numeric_limits<int64_t>::max(), clock);
  EXPECT_FALSE(far < Deadline::Never());
  EXPECT_TRUE(Deadline::After(kSecond, clock) < far);
}

TEST(Stop, SeesTheFlagOfAnotherThread) {
  std::atomic<bool> flag{false};
  EXPECT_FALSE(Stop{}.Cancelled());
  Stop stop;
  stop.cancelled = &flag;
  EXPECT_FALSE(stop.Cancelled());
  flag = true;
  EXPECT_TRUE(stop.Cancelled());
}

}  // namespace
}  // namespace entrain
