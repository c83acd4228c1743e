#include "collectives/cost.h"

#include <vector>

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace entrain
