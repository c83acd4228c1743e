#include "gtest/gtest.h"

#include "transports/shm/pace.h"

namespace entrain::shm {
namespace {

constexpr size_t kBytes = 32 << 10;

// Of 64 messages, how many would come through the ring.
int ByRing(Pace& pace) {
  int yes = 0;
  for (int i = 0; i < 64; ++i) {
    yes += pace.RingIsQuicker() ? 1 : 0;
  }
  return yes;
}

TEST(Pace, TriesTheOtherWayOnceInAWhile) {
  Pace pace;
  EXPECT_EQ(ByRing(pace), 63);
  for (int i = 0; i < 20; ++i) {
    pace.Took(Pace::kTake, kBytes, 50'000);
  }
  EXPECT_EQ(ByRing(pace), 1);
}

TEST(Pace, FollowsWhatTheCopiesTake) {
  Pace pace;
  for (int i = 0; i < 20; ++i) {
    pace.Took(Pace::kTake, kBytes, 10'000);
    pace.Took(Pace::kRead, kBytes, 5'000);
  }
  EXPECT_EQ(ByRing(pace), 1);
  for (int i = 0; i < 40; ++i) {
    pace.Took(Pace::kTake, kBytes, 1'000);
  }
  EXPECT_EQ(ByRing(pace), 63);
}

TEST(Pace, OneCopyThatWasInterruptedChangesNothing) {
  Pace pace;
  pace.Took(Pace::kTake, kBytes, 20'000'000);
  EXPECT_EQ(ByRing(pace), 63);
}

}  // namespace
}  // namespace entrain::shm
