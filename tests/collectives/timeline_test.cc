#include "collectives/timeline.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "collectives/catalog.h"

namespace entrain {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Picoseconds of a call of `count` one-byte elements.
int64_t Time(CallKind kind, const char* name, int n, int64_t count, const MachineModel& machine,
             int lanes = 1, std::vector<int> hosts = {}, int window = 4) {
  hosts.resize(static_cast<size_t>(n));
  Spec spec{kind, 0, n, 0, lanes};
  const Algorithm& algorithm = **FindAlgorithm(kind, name);
  std::vector<Schedule> schedules;
  for (; spec.rank < n; ++spec.rank) {
    schedules.push_back(algorithm.build(spec, hosts));
  }
  spec.rank = 0;
  return RunTimeline(schedules, hosts, UniformLayout(spec, count), 1, window, machine);
}

MachineModel Machine(const LinkModel& link) {
  MachineModel machine;
  machine.inside = machine.across = link;
  return machine;
}

TEST(Timeline, AMessageTakesWorkOnBothSidesAndTheLatency) {
  const MachineModel machine = Machine({.latency_ps = 1000,
                                        .message_ps = 10,
                                        .send_fs = 1000,
                                        .receive_fs = 2000,
                                        .eager_bytes = kNever});
  // 100 bytes to the root: 10 + 100, 1000, 10 + 200.
  EXPECT_EQ(Time(CallKind::kGather, "direct", 2, 100, machine), 1320);
  // And from it.
  EXPECT_EQ(Time(CallKind::kBroadcast, "direct", 2, 100, machine), 1320);
  // Without bytes: 10, 1000, 10.
  EXPECT_EQ(Time(CallKind::kBarrier, "direct", 2, 0, machine), 1020);
}

TEST(Timeline, ARootTakesOneMessageAfterTheOther) {
  const MachineModel machine =
      Machine({.latency_ps = 1000, .receive_fs = 1000, .eager_bytes = kNever});
  EXPECT_EQ(Time(CallKind::kGather, "direct", 5, 100, machine), 1000 + 4 * 100);
}

TEST(Timeline, LanesOfAChainFollowEachOther) {
  const MachineModel machine =
      Machine({.latency_ps = 1, .send_fs = 1000, .receive_fs = 1000, .eager_bytes = kNever});
  const int64_t whole = Time(CallKind::kBroadcast, "ring", 5, 8000, machine);
  EXPECT_GE(whole, 4 * 2 * 8000);  // each rank takes all of it before it passes it on
  const int64_t cut = Time(CallKind::kBroadcast, "ring", 5, 8000, machine, 8, {}, 8);
  EXPECT_GE(cut, 2 * 8000 + 3 * 1000);  // those in the middle take and pass on
  EXPECT_LT(cut, whole / 2);
}

TEST(Timeline, AWindowKeepsLanesBack) {
  const MachineModel machine = Machine({.latency_ps = 1000, .eager_bytes = kNever});
  EXPECT_EQ(Time(CallKind::kAllReduce, "direct", 2, 8, machine, 8, {}, 8), 1000);
  EXPECT_EQ(Time(CallKind::kAllReduce, "direct", 2, 8, machine, 8, {}, 2), 4 * 1000);
}

TEST(Timeline, RanksOfACrowdTakeTurns) {
  MachineModel machine = Machine({.message_ps = 100, .eager_bytes = kNever});
  EXPECT_EQ(Time(CallKind::kAllGather, "direct", 2, 1, machine), 200);  // post one, take one
  machine.cores = 1;
  EXPECT_EQ(Time(CallKind::kAllGather, "direct", 2, 1, machine), 400);
  machine.switch_ps = 1000;
  // The second posts and takes what is there; the first takes what that has sent.
  EXPECT_EQ(Time(CallKind::kAllGather, "direct", 2, 1, machine), 400 + 2 * 1000);
  machine.cores = 2;
  EXPECT_EQ(Time(CallKind::kAllGather, "direct", 2, 1, machine), 200);
}

TEST(Timeline, RanksOfAHostShareItsWire) {
  MachineModel machine;
  machine.across = {.wire_fs = 1000, .eager_bytes = kNever};
  machine.inside.eager_bytes = kNever;
  // Each rank sends 100 bytes to the next one: one of each host's two leaves it.
  EXPECT_EQ(Time(CallKind::kReduceScatter, "ring", 4, 100, machine, 1, {0, 0, 1, 1}), 3 * 100);
  // All four ranks' neighbours are on the other host.
  EXPECT_EQ(Time(CallKind::kReduceScatter, "ring", 4, 100, machine, 1, {0, 1, 0, 1}), 3 * 200);
}

TEST(Timeline, WhoSendsMuchWaitsUntilItIsTaken) {
  MachineModel machine = Machine({.latency_ps = 1000, .eager_bytes = 64, .large_ps = 50});
  // The other ranks of a gather are over when the root has taken their parts.
  EXPECT_EQ(Time(CallKind::kGather, "direct", 2, 64, machine), 1000);
  EXPECT_EQ(Time(CallKind::kGather, "direct", 2, 65, machine), 1000 + 50 + 1000);
}

TEST(Timeline, CombiningCountsWhatIsTouched) {
  MachineModel machine = Machine({.eager_bytes = kNever});
  machine.reduce_fs = 3000;
  EXPECT_EQ(Time(CallKind::kAllReduce, "direct", 2, 600, machine), 1800);
  // Four operands at once: five touches instead of three times three.
  EXPECT_EQ(Time(CallKind::kAllReduce, "direct", 4, 600, machine), 3000);
}

TEST(Timeline, FewHopsServeFewBytesAndFewBytesServeMany) {
  const MachineModel machine = Machine(
      {.latency_ps = 1000000, .message_ps = 100000, .receive_fs = 1000000, .eager_bytes = kNever});
  const auto time = [&](const char* name, int64_t bytes) {
    return Time(CallKind::kAllReduce, name, 8, bytes, machine);
  };
  EXPECT_LT(time("direct", 8), time("ring", 8));
  EXPECT_LT(time("ring", 1 << 20), time("direct", 1 << 20));
}

TEST(Timeline, SlowLinksBetweenHostsAreSpared) {
  MachineModel machine;
  machine.inside = {.latency_ps = 1000000, .receive_fs = 100000, .eager_bytes = kNever};
  machine.across = {.latency_ps = 50000000, .wire_fs = 1000000, .eager_bytes = kNever};
  const std::vector<int> hosts = {0, 1, 0, 1, 0, 1, 0, 1};
  EXPECT_LT(Time(CallKind::kAllReduce, "composed", 8, 1 << 20, machine, 1, hosts),
            Time(CallKind::kAllReduce, "ring", 8, 1 << 20, machine, 1, hosts));
}

}  // namespace
}  // namespace entrain
