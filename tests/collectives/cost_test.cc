#include "collectives/cost.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "collectives/catalog.h"

namespace entrain {
namespace {

Cost Worst(CallKind kind, const char* name, int n, int64_t count, std::vector<int> hosts = {}) {
  hosts.resize(static_cast<size_t>(n));
  const Spec spec{kind, 0, n, 0, 1};
  return CountWorstCost(**FindAlgorithm(kind, name), spec, hosts, UniformLayout(spec, count), 4);
}

TEST(Cost, CountsOneRank) {
  const Spec spec{CallKind::kAllReduce, 1, 4, 0, 2};
  const Schedule ring = (*FindAlgorithm(CallKind::kAllReduce, "ring"))->build(spec, {});
  const Cost cost = CountCost(ring, UniformLayout(spec, 800), 4);
  EXPECT_EQ(cost.rounds, 6);
  EXPECT_EQ(cost.messages, 12);
  EXPECT_EQ(cost.bytes_sent, 2 * 600 * 4);
  EXPECT_EQ(cost.bytes_received, 2 * 600 * 4);
  EXPECT_EQ(cost.reduced_elements, 600);
  EXPECT_EQ(cost.reduced_bytes, 2400);
  EXPECT_EQ(cost.scratch_bytes, 2400);
  EXPECT_EQ(cost.bytes_sent_across, 0);
}

TEST(Cost, TakesTheLargestOfAllRanks) {
  const Cost cost = Worst(CallKind::kBroadcast, "direct", 5, 100);
  EXPECT_EQ(cost.rounds, 1);
  EXPECT_EQ(cost.bytes_sent, 4 * 400);  // the root
  EXPECT_EQ(cost.bytes_received, 400);  // all but the root
}

TEST(Cost, HopsFollowMessagesFromRankToRank) {
  EXPECT_EQ(Worst(CallKind::kAllReduce, "ring", 8, 8).hops, 14);
  EXPECT_EQ(Worst(CallKind::kBroadcast, "ring", 8, 8).rounds, 2);
  EXPECT_EQ(Worst(CallKind::kBroadcast, "ring", 8, 8).hops, 7);
  EXPECT_EQ(Worst(CallKind::kBroadcast, "tree", 8, 8).hops, 3);
  EXPECT_EQ(Worst(CallKind::kAllReduce, "direct", 8, 8).hops, 1);
}

TEST(Cost, TellsMessagesBetweenHostsApart) {
  const Cost cost = Worst(CallKind::kAllReduce, "composed", 4, 400, {0, 0, 1, 1});
  EXPECT_EQ(cost.hops, 4);
  EXPECT_EQ(cost.hops_across, 2);
  EXPECT_EQ(cost.bytes_sent_across, 2 * 400);
  EXPECT_EQ(cost.bytes_sent, 6 * 400);
  const Cost ring = Worst(CallKind::kAllReduce, "ring", 4, 400, {0, 0, 1, 1});
  EXPECT_EQ(ring.bytes_sent_across, 6 * 400);
}

// Returns the cost for `count` one-byte elements.
LaneCost Lane(CallKind kind, const char* name, int n, int64_t count, const MachineCost& machine,
              std::vector<int> hosts = {}) {
  hosts.resize(static_cast<size_t>(n));
  Spec spec{kind, 0, n, 0, 1};
  std::vector<Schedule> schedules;
  for (; spec.rank < n; ++spec.rank) {
    schedules.push_back((*FindAlgorithm(kind, name))->build(spec, hosts));
  }
  spec.rank = 0;
  return CountLane(schedules, hosts, UniformLayout(spec, count), 1, machine);
}

MachineCost Machine(const LinkCost& link) {
  MachineCost machine;
  machine.inside = machine.across = link;
  return machine;
}

TEST(LaneCost, AMessageTakesWorkOnBothSidesAndTheLatency) {
  const MachineCost machine = Machine({.latency_ps = 1000, .message_ps = 10, .byte_fs = 2000});
  // 100 bytes to the root take 10, 1000, and 10 + 200.
  EXPECT_EQ(Lane(CallKind::kGather, "direct", 2, 100, machine).first_ps, 1220);
  EXPECT_EQ(Lane(CallKind::kBroadcast, "direct", 2, 100, machine).first_ps, 1220);  // from the root
  EXPECT_EQ(Lane(CallKind::kBarrier, "direct", 2, 0, machine).first_ps, 1020);      // without bytes
}

TEST(LaneCost, ARootTakesOneMessageAfterTheOtherAndReceiversTakeTheirsSideBySide) {
  const MachineCost machine = Machine({.latency_ps = 1000, .byte_fs = 1000});
  EXPECT_EQ(Lane(CallKind::kGather, "direct", 5, 100, machine).first_ps, 1000 + 4 * 100);
  EXPECT_EQ(Lane(CallKind::kBroadcast, "direct", 5, 100, machine).first_ps, 1000 + 100);
}

TEST(LaneCost, ALaneOfAChainTakesAllItsHopsAndTheNextOneHop) {
  const MachineCost machine = Machine({.latency_ps = 1, .byte_fs = 1000});
  const LaneCost lane = Lane(CallKind::kBroadcast, "ring", 5, 1000, machine);
  EXPECT_EQ(lane.first_ps, 4 * (1 + 1000));
  EXPECT_EQ(lane.next_ps, 1000);
}

TEST(LaneCost, RanksOfACrowdTakeTurns) {
  const auto both = [](const MachineCost& machine) {
    return Lane(CallKind::kAllGather, "direct", 2, 1, machine);  // each sends one and takes one
  };
  MachineCost machine = Machine({.message_ps = 100});
  EXPECT_EQ(both(machine).next_ps, 200);
  machine.cores = 1;
  EXPECT_EQ(both(machine).next_ps, 400);
  EXPECT_EQ(both(machine).first_ps, 400);
  machine.switch_ps = 1000;
  EXPECT_EQ(both(machine).next_ps, 400 + 2 * 1000);
  machine.cores = 2;
  EXPECT_EQ(both(machine).next_ps, 200);
}

TEST(LaneCost, RanksOfAHostShareItsWire) {
  const auto ring = [](const MachineCost& machine, std::vector<int> hosts) {
    return Lane(CallKind::kReduceScatter, "ring", 4, 100, machine, std::move(hosts)).first_ps;
  };
  MachineCost machine;
  machine.across = {.wire_fs = 1000};
  // Each rank sends 100 bytes to the next rank. One of the two ranks of each host sends across.
  EXPECT_EQ(ring(machine, {0, 0, 1, 1}), 3 * 100);
  // The neighbours of all four ranks are on the other host.
  EXPECT_EQ(ring(machine, {0, 1, 0, 1}), 3 * 200);
  machine.inside = {.wire_fs = 1000};
  machine.across = {};
  EXPECT_EQ(ring(machine, {}), 3 * 400);
}

TEST(LaneCost, CombiningCountsWhatIsTouched) {
  MachineCost machine;
  machine.reduce_fs = 3000;
  EXPECT_EQ(Lane(CallKind::kAllReduce, "direct", 2, 600, machine).first_ps, 1800);
  // Four operands at once cost five memory accesses instead of three times three.
  EXPECT_EQ(Lane(CallKind::kAllReduce, "direct", 4, 600, machine).first_ps, 3000);
}

TEST(LaneCost, FewHopsServeFewBytesAndFewBytesServeMany) {
  const MachineCost machine =
      Machine({.latency_ps = 1000000, .message_ps = 100000, .byte_fs = 1000000});
  const auto time = [&](const char* name, int64_t bytes) {
    return Lane(CallKind::kAllReduce, name, 8, bytes, machine).first_ps;
  };
  EXPECT_LT(time("direct", 8), time("ring", 8));
  EXPECT_LT(time("ring", 1 << 20), time("direct", 1 << 20));
}

TEST(LaneCost, SlowLinksBetweenHostsAreSpared) {
  MachineCost machine;
  machine.inside = {.latency_ps = 1000000, .byte_fs = 100000};
  machine.across = {.latency_ps = 50000000, .wire_fs = 1000000};
  const std::vector<int> hosts = {0, 1, 0, 1, 0, 1, 0, 1};
  EXPECT_LT(Lane(CallKind::kAllReduce, "composed", 8, 1 << 20, machine, hosts).first_ps,
            Lane(CallKind::kAllReduce, "ring", 8, 1 << 20, machine, hosts).first_ps);
}

}  // namespace
}  // namespace entrain
