#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

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

TEST(CopyTime, FollowsWhatIsQuickerSoonAndWhatIsSlowerSlowly) {
  CopyTime time;
  EXPECT_FALSE(time.known());
  EXPECT_EQ(time.ns_per_mib(), 0U);
  time.Note(1024, 400);
  EXPECT_EQ(time.ns_per_kib(), 400);
  time.Note(2048, 200);
  EXPECT_EQ(time.ns_per_kib(), 250);
  time.Note(1024, 1'000'000);  // counts as 1000
  EXPECT_EQ(time.ns_per_kib(), 250 + 750.0 / 8);
}

TEST(CopyTime, IsToldInWholeNanosecondsAndMayBeAnything) {
  EXPECT_FALSE(CopyTime::Of(0).known());
  EXPECT_EQ(CopyTime::Of(70'000).ns_per_mib(), 70'000U);
  CopyTime forever;
  forever.Note(1, int64_t{1} << 62);
  EXPECT_EQ(forever.ns_per_mib(), 0xffffffff);
}

// Of `messages` of so many bytes each, on shared cores, which went through the ring: '-' for read.
// The sender sends to `receivers`, `senders` send here.
struct Shares {
  int64_t put, take, read;  // ns a KiB
  uint32_t receivers;
  int senders;
  bool both;
};
std::string WaysByWork(Pace& pace, const Shares& shares, int messages, size_t bytes) {
  std::string ways;
  for (int i = 0; i < messages; ++i) {
    const bool ring = pace.RingIsLessWork(bytes, shares.senders, shares.both);
    ways += ring ? 'r' : '-';
    if (ring) {
      pace.Puts(CopyTime::Of(static_cast<uint32_t>(shares.put * 1024)), shares.receivers);
    }
    pace.Worked(ring ? Pace::kTake : Pace::kRead, 1024, ring ? shares.take : shares.read);
  }
  return ways;
}

TEST(Pace, OnSharedCoresTheWorkOfBothSidesCounts) {
  struct {
    const char* what;
    Shares shares;
    bool ring;
  } cases[] = {
      {"the two share it", {110, 75, 200, 1, 1, false}, true},
      {"and that is as long as the longer", {190, 75, 200, 1, 1, false}, false},
      {"a sender to three", {70, 60, 200, 3, 1, false}, false},
      {"who is quick", {50, 60, 200, 3, 1, false}, true},
      {"from three to one", {200, 75, 100, 1, 3, false}, true},
      {"everybody sends", {70, 70, 200, 3, 3, true}, true},
      {"and it is more together", {110, 75, 200, 3, 3, true}, false},
  };
  for (const auto& one : cases) {
    Pace pace;
    const char usual = one.ring ? 'r' : '-', other = one.ring ? '-' : 'r';
    std::string expected(100, usual);
    expected[0] = '-';
    expected[1] = 'r';
    expected[8] = other;
    EXPECT_EQ(WaysByWork(pace, one.shares, 100, 1 << 20), expected) << one.what;
  }
}

TEST(Pace, OnSharedCoresATrialIsOfAMebibyteAndRare) {
  Pace pace;
  const Shares reads{100, 100, 100, 1, 1, true};
  EXPECT_EQ(WaysByWork(pace, reads, 40, 256 << 10),
            "----rrrr" + std::string(24, '-') + "rrrr" + std::string(4, '-'));
  EXPECT_EQ(WaysByWork(pace, reads, 2048, 64 << 10),
            std::string(2008, '-') + "rrrr" + std::string(36, '-'));
}

TEST(Pace, OnSharedCoresItFindsOutThatTheOtherWayHasBecomeQuicker) {
  Pace pace;
  WaysByWork(pace, {100, 100, 100, 1, 1, true}, 100, 1 << 20);
  const std::string ways = WaysByWork(pace, {40, 40, 400, 1, 1, true}, 600, 1 << 20);
  EXPECT_EQ(ways.substr(590), std::string(10, 'r'));
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
