#include <cstddef>
#include <functional>

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "tests/support/forbid_reading.h"
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

// Of `messages` long ones, which take so long by reading and through the ring, how many would come
// through the ring.
int LongByRing(Pace& pace, int messages, int64_t read_ns, int64_t ring_ns) {
  int yes = 0;
  for (int i = 0; i < messages; ++i) {
    const Pace::Way way = pace.WayOfLong(Pace::kWhole);
    pace.Came(way, Pace::kLong, way == Pace::kRing ? ring_ns : read_ns);
    yes += way == Pace::kRing ? 1 : 0;
  }
  return yes;
}

TEST(Pace, KnowsTheWayOfLongMessagesAfterTwo) {
  Pace ring;
  EXPECT_EQ(LongByRing(ring, 2, 200'000, 100'000), 1);
  EXPECT_EQ(LongByRing(ring, 10, 200'000, 100'000), 8);  // the 4th and the 8th are read
  Pace read;
  EXPECT_EQ(LongByRing(read, 2, 100'000, 200'000), 1);
  EXPECT_EQ(LongByRing(read, 10, 100'000, 200'000), 2);
}

TEST(Pace, TriesTheOtherWayOfLongMessagesOnceInAWhile) {
  Pace pace;
  LongByRing(pace, 64, 200'000, 100'000);
  EXPECT_EQ(LongByRing(pace, 64, 200'000, 100'000), 63);
  EXPECT_LT(LongByRing(pace, 64 * 12, 100'000, 200'000), 64 * 12 / 2);  // and finds out
  EXPECT_EQ(LongByRing(pace, 64, 100'000, 200'000), 1);
}

TEST(Pace, ALongMessageThatWasInterruptedChangesNothing) {
  Pace pace;
  LongByRing(pace, 64, 100'000, 200'000);
  pace.Came(Pace::kWhole, Pace::kLong, 20'000'000);
  EXPECT_EQ(LongByRing(pace, 64, 100'000, 200'000), 1);
}

// In a process of its own, which has measured nothing yet.
bool InAChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body() ? 0 : 1);
  }
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST(RingPaysUpTo, IsAPowerOfTwoInItsLimits) {
  EXPECT_TRUE(InAChild([] {
    const size_t pays = RingPaysUpTo();
    return pays >= 4 << 10 && pays <= 32 << 10 && (pays & (pays - 1)) == 0;
  }));
}

TEST(RingPaysUpTo, IsTheLargestWhereNothingCanBeRead) {
  EXPECT_TRUE(InAChild([] { return ForbidReading() && RingPaysUpTo() == 32 << 10; }));
}

}  // namespace
}  // namespace entrain::shm
