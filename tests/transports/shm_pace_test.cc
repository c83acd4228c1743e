#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
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

// What a message that comes alone takes by each way, in ns a KiB. The ways of the next `messages`, as
// 'w', 'h' and 'r'.
struct Takes {
  int64_t whole, half, ring;
};
std::string WaysOf(LoneMessages& alone, const Takes& takes, int messages, uint64_t bytes,
                   bool halves = true) {
  std::string ways;
  for (int i = 0; i < messages; ++i) {
    const LoneMessages::Way way = alone.Next(bytes, halves);
    const int64_t kib[] = {takes.whole, takes.half, takes.ring};
    alone.Came(way, bytes, kib[way] * static_cast<int64_t>(bytes >> 10));
    ways += "whr"[way];
  }
  return ways;
}
constexpr uint64_t kNearBytes = 1 << 20, kFarBytes = 8 << 20;

TEST(LoneMessages, ARunOfEachWayIsTriedThenTheQuickestIsTaken) {
  LoneMessages whole, half, ring, two;
  EXPECT_EQ(WaysOf(whole, {50, 60, 70}, 20, kNearBytes), "wwwhhhrrr" + std::string(11, 'w'));
  EXPECT_EQ(WaysOf(half, {50, 40, 70}, 20, kNearBytes), "wwwhhhrrr" + std::string(11, 'h'));
  EXPECT_EQ(WaysOf(ring, {50, 40, 30}, 20, kNearBytes), "wwwhhhrrr" + std::string(11, 'r'));
  EXPECT_EQ(WaysOf(two, {50, 1, 30}, 20, kNearBytes, false), "wwwrrr" + std::string(14, 'r'));
}

TEST(LoneMessages, OfThoseThatNoCacheHoldsOneOfEachIsEnough) {
  LoneMessages alone;
  EXPECT_EQ(WaysOf(alone, {100, 95, 90}, 20, kFarBytes), "whr" + std::string(17, 'r'));
}

TEST(LoneMessages, WhereTheCachesHoldThemTheRingMustBeClearlyQuicker) {
  LoneMessages near, far;
  EXPECT_EQ(WaysOf(near, {100, 90, 95}, 20, kNearBytes).back(), 'w');
  EXPECT_EQ(WaysOf(far, {100, 90, 95}, 20, 2 * kNearBytes).back(), 'h');
}

TEST(LoneMessages, OnlyTheThirdOfARunCounts) {
  LoneMessages alone;
  std::string ways;
  for (int i = 0; i < 20; ++i) {
    const LoneMessages::Way way = alone.Next(kNearBytes, true);
    const bool first = ways.size() < 2 || "whr"[way] != ways[ways.size() - 2];
    alone.Came(way, kNearBytes, first ? 1 : way == LoneMessages::kHalf ? 40'000 : 60'000);
    ways += "whr"[way];
  }
  EXPECT_EQ(ways, "wwwhhhrrr" + std::string(11, 'h'));
}

TEST(LoneMessages, TheOthersAreTriedNowAndThenAndFoundOut) {
  LoneMessages alone;
  const std::string ways = WaysOf(alone, {50, 60, 70}, 1024, kNearBytes);
  std::string expected = "wwwhhhrrr" + std::string(1024 - 9, 'w');
  for (const auto& [at, run] : {std::pair{32, "hhh"},
                                {64, "rrr"},
                                {128, "hhh"},
                                {256, "rrr"},
                                {512, "hhh"},
                                {768, "rrr"}}) {
    expected.replace(static_cast<size_t>(at), 3, run);
  }
  EXPECT_EQ(ways, expected);
  EXPECT_EQ(WaysOf(alone, {50, 60, 20}, 1024, kNearBytes).back(), 'r');
  EXPECT_EQ(WaysOf(alone, {20, 60, 70}, 1024, kNearBytes).back(), 'w');
  EXPECT_EQ(WaysOf(alone, {50, 10, 70}, 1024, kNearBytes, false).find('h'), std::string::npos);
}

TEST(LoneMessages, OneThatWasInterruptedChangesNothing) {
  LoneMessages alone;
  WaysOf(alone, {50, 150, 150}, 20, kNearBytes);
  alone.Came(LoneMessages::kWhole, kNearBytes, 20'000'000'000);
  EXPECT_EQ(WaysOf(alone, {50, 150, 150}, 10, kNearBytes), std::string(10, 'w'));
}

TEST(Pace, EachPowerOfTwoLearnsForItself) {
  Pace pace;
  EXPECT_EQ(WaysOf(pace.Alone(1 << 20), {90, 50, 90}, 20, 1 << 20).back(), 'h');
  EXPECT_EQ(WaysOf(pace.Alone((2 << 20) - 1), {90, 50, 90}, 1, (2 << 20) - 1), "h");
  EXPECT_EQ(WaysOf(pace.Alone(2 << 20), {90, 50, 90}, 1, 2 << 20), "w") << "not known yet";
  EXPECT_EQ(&pace.Alone(uint64_t{1} << 40), &pace.Alone(~uint64_t{0}));
}

TEST(CopyTime, FollowsWhatIsQuickerAtOnceAndWhatIsSlowerSlowly) {
  CopyTime time;
  EXPECT_FALSE(time.known());
  EXPECT_EQ(time.ns_per_mib(), 0U);
  time.Note(1024, 400);
  EXPECT_EQ(time.ns_per_kib(), 400);
  time.Note(2048, 200);
  EXPECT_EQ(time.ns_per_kib(), 100);
  time.Note(1024, 1'000'000);  // counts as 400
  EXPECT_EQ(time.ns_per_kib(), 100 + 300.0 / 8);
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
            absl::StrCat("----rrrr", std::string(24, '-'), "rrrr", std::string(4, '-')));
  EXPECT_EQ(WaysByWork(pace, reads, 2048, 64 << 10),
            absl::StrCat(std::string(2008, '-'), "rrrr", std::string(36, '-')));
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
