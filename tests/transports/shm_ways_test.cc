#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/forbid_reading.h"
#include "transports/shm/ways.h"

namespace entrain::shm {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr Facts kSlowReads{.spare_cores = true, .can_read = true, .reads = Reads::kSlow};
constexpr Facts kFairReads{.spare_cores = true, .can_read = true, .reads = Reads::kFair};
constexpr Facts kFairReadsOnSharedCores{
    .spare_cores = false, .can_read = true, .reads = Reads::kFair};
constexpr Facts kQuickReads{.spare_cores = true, .can_read = true, .reads = Reads::kQuick};
constexpr Facts kQuickReadsOnSharedCores{
    .spare_cores = false, .can_read = true, .reads = Reads::kQuick};
constexpr Facts kNoReads{.spare_cores = true, .can_read = false, .reads = Reads::kQuick};

struct Row {
  const char* what;
  Ask ask;
  Facts facts;
  Way way;
};

// Rows in the order of docs/shm.md.
constexpr Row kRows[] = {
    {"small", {.bytes = 32 * kKiB, .credit = true}, kSlowReads, Way::kEager},
    {"small, beside fair reads", {.bytes = 32 * kKiB, .credit = true}, kFairReads, Way::kEager},
    {"empty", {.bytes = 0, .credit = true}, kQuickReads, Way::kEager},
    {"small, beside quick reads", {.bytes = 4 * kKiB, .credit = true}, kQuickReads, Way::kEager},
    {"not so small", {.bytes = 4 * kKiB + 1, .credit = true}, kQuickReads, Way::kRead},
    {"on shared cores",
     {.bytes = 32 * kKiB, .credit = true},
     kQuickReadsOnSharedCores,
     Way::kEager},
    {"that cannot be read", {.bytes = 32 * kKiB, .credit = true}, kNoReads, Way::kEager},
    {"no credit", {.bytes = 8}, kQuickReads, Way::kRead},
    {"no credit, slow reads", {.bytes = 32 * kKiB}, kSlowReads, Way::kRead},
    {"no credit, no reads", {.bytes = 8}, kNoReads, Way::kRing},
    {"small, in a region", {.bytes = 8, .credit = true, .mapped = true}, kSlowReads, Way::kEager},

    {"lent", {.bytes = kMiB, .mapped = true, .loan = true}, kSlowReads, Way::kLoan},
    {"lent, nothing can be read", {.bytes = 8, .mapped = true, .loan = true}, kNoReads, Way::kLoan},
    {"mapped", {.bytes = 64 * kMiB, .mapped = true}, kSlowReads, Way::kMapped},
    {"would be lent", {.bytes = kMiB, .loan = true}, kQuickReads, Way::kRead},

    {"nothing can be read", {.bytes = 33 * kKiB}, kNoReads, Way::kRing},
    {"and the sender sleeps", {.bytes = kMiB, .awake = false}, kNoReads, Way::kRing},

    {"the sender sleeps", {.bytes = kMiB, .awake = false}, kSlowReads, Way::kRead},
    {"likewise, long", {.bytes = 64 * kMiB, .awake = false}, kQuickReads, Way::kRead},

    {"slow reads", {.bytes = 33 * kKiB}, kSlowReads, Way::kRing},
    {"slow reads, both ways", {.bytes = kMiB, .exchange = true}, kSlowReads, Way::kRing},
    {"slow reads, shared cores",
     {.bytes = kMiB, .exchange = true},
     {.spare_cores = false, .can_read = true, .reads = Reads::kSlow},
     Way::kRing},

    {"fair reads, both ways", {.bytes = 64 * kMiB, .exchange = true}, kFairReads, Way::kRead},
    {"fair reads, shared cores",
     {.bytes = 33 * kKiB, .exchange = true},
     kFairReadsOnSharedCores,
     Way::kRing},
    {"likewise, one way", {.bytes = 33 * kKiB}, kFairReadsOnSharedCores, Way::kRing},
    {"fair reads, long", {.bytes = 512 * kKiB}, kFairReads, Way::kRing},
    {"fair reads, not so long", {.bytes = 512 * kKiB - 1}, kFairReads, Way::kRead},
    {"long", {.bytes = 2 * kMiB}, kQuickReads, Way::kRing},
    {"long, shared cores", {.bytes = 2 * kMiB}, kQuickReadsOnSharedCores, Way::kRing},
    {"not so long", {.bytes = 2 * kMiB - 1}, kQuickReads, Way::kRead},
    {"long, both ways", {.bytes = 64 * kMiB, .exchange = true}, kQuickReads, Way::kRead},
};

TEST(Ways, RowByRow) {
  for (const Row& row : kRows) {
    EXPECT_EQ(Choose(row.ask, row.facts), row.way) << row.what;
  }
}

TEST(Ways, ASmallRingBoundsWhatIsEager) {
  Facts facts = kSlowReads;
  facts.most_eager = 2 * kKiB;
  EXPECT_EQ(EagerLimit(facts), 2 * kKiB);
  facts.reads = Reads::kQuick;
  EXPECT_EQ(EagerLimit(facts), 2 * kKiB);
  facts.most_eager = 64 * kKiB;
  EXPECT_EQ(EagerLimit(facts), 4 * kKiB);
}

TEST(Ways, AreExplained) {
  EXPECT_EQ(Explained(kQuickReads),
            "spare cores, memory of the peer is read quickly: eager to 4K; one way read, ring from "
            "2M; both ways read; from a sender that sleeps read; from a region mapped or lent");
  EXPECT_EQ(Explained(kFairReads),
            "spare cores, memory of the peer is read about as quickly as the ring: eager to 32K; "
            "one way read, ring from 512K; both ways read; from a sender that sleeps read; from a "
            "region mapped or lent");
  EXPECT_EQ(Explained(kSlowReads),
            "spare cores, memory of the peer is read slowly: eager to 32K; one way ring; both ways "
            "ring; from a sender that sleeps read; from a region mapped or lent");
  EXPECT_THAT(Explained({}),
              testing::StartsWith("shared cores, memory of the peer cannot be read"));
}

// Runs the body in a separate process, which has not measured anything yet.
bool InAChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body() ? 0 : 1);
  }
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST(Ways, ReadsAreSlowWhereNothingCanBeRead) {
  EXPECT_TRUE(InAChild([] { return ForbidReading() && MeasuredReads() == Reads::kSlow; }));
}

TEST(Ways, ReadsAreMeasuredOnce) {
  EXPECT_TRUE(InAChild([] {
    const Reads reads = MeasuredReads();
    return ForbidReading() && MeasuredReads() == reads;
  }));
}

}  // namespace
}  // namespace entrain::shm
