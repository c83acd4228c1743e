// The order of spinning, yielding and sleeping.
#include "lib/engine/backoff.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

int Spins(Backoff& backoff, bool crowded) {
  int spins = 0;
  while (backoff.Spin(crowded)) {
    ++spins;
  }
  return spins;
}

TEST(Backoff, SpinsThenYieldsThenSleeps) {
  Backoff backoff;
  EXPECT_EQ(Spins(backoff, false), Backoff::kSpins);
  constexpr int64_t kStart = 5;
  EXPECT_TRUE(backoff.Yield(kStart, false));
  EXPECT_FALSE(backoff.Spin(false)) << "it does not spin again";
  EXPECT_TRUE(backoff.Yield(kStart + Backoff::kYieldNs - 1, false));
  EXPECT_FALSE(backoff.Yield(kStart + Backoff::kYieldNs, false));
  EXPECT_FALSE(backoff.Yield(kStart + 10 * Backoff::kYieldNs, false)) << "nor does it yield again";
}

TEST(Backoff, DoesNotSpinWhereCoresAreShared) {
  Backoff backoff;
  EXPECT_EQ(Spins(backoff, true), 0);
  EXPECT_TRUE(backoff.Yield(0, true));
  EXPECT_FALSE(backoff.Yield(Backoff::kYieldNs, true));
}

TEST(Backoff, BeginsAnewWhenSomethingCame) {
  Backoff backoff;
  EXPECT_EQ(Spins(backoff, false), Backoff::kSpins);
  EXPECT_TRUE(backoff.Yield(0, false));
  EXPECT_FALSE(backoff.Yield(Backoff::kYieldNs, false));
  backoff.Reset();
  EXPECT_EQ(Spins(backoff, false), Backoff::kSpins);
  EXPECT_TRUE(backoff.Yield(Backoff::kYieldNs, false));
}

TEST(Backoff, KeepsTheCoreForWhatIsOnItsWay) {
  Backoff backoff;
  backoff.Expect();
  EXPECT_EQ(Spins(backoff, true), Backoff::kExpectedSpins) << "also where cores are shared";
  EXPECT_TRUE(backoff.Yield(0, true));
  backoff.Expect();
  EXPECT_EQ(Spins(backoff, false), Backoff::kExpectedSpins);
}

}  // namespace
}  // namespace entrain
