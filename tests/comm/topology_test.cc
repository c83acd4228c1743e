#include "lib/comm/plan/topology.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/comm/plan/planner.h"

namespace entrain {
namespace {

using testing::ElementsAre;

TEST(Topology, HostsAreNumberedInOrderOfTheirFirstRank) {
  const Topology topology = Topology::FromHostIds({"b", "a", "b", "c", "a", "a"});
  EXPECT_EQ(topology.hosts, 3);
  EXPECT_THAT(topology.host_of, ElementsAre(0, 1, 0, 2, 1, 1));
  EXPECT_THAT(topology.Local(4).ranks, ElementsAre(1, 4, 5));
  EXPECT_EQ(topology.Local(4).me, 1);
}

TEST(Topology, AcrossTakesTheSamePlaceOfEveryHostThatHasIt) {
  const Topology topology = Topology::FromHostIds({"b", "a", "b", "c", "a", "a"});
  EXPECT_THAT(topology.Across(0).ranks, ElementsAre(0, 1, 3));
  EXPECT_THAT(topology.Across(4).ranks, ElementsAre(2, 4));
  EXPECT_THAT(topology.Across(5).ranks, ElementsAre(5));
}

TEST(Overrides, AreParsedWithRanges) {
  const auto overrides =
      ParseOverrides("all_reduce:ring@1M-inf, broadcast:tree,all_gather:direct@0-4K");
  ASSERT_TRUE(overrides.ok()) << overrides.status();
  ASSERT_EQ(overrides->size(), 3u);
  EXPECT_EQ((*overrides)[0].low, 1 << 20);
  EXPECT_EQ((*overrides)[1].algorithm, "tree");
  EXPECT_EQ((*overrides)[2].high, 4096);
  EXPECT_FALSE(ParseOverrides("all_reduce:ring@5").ok());
  EXPECT_FALSE(ParseOverrides("all_reduce:ring@8K-1").ok());
  EXPECT_FALSE(ParseOverrides("everything:ring").ok());
}

TEST(Planner, ChoiceIsTheSameOnEveryRank) {
  const Topology topology = Topology::FromHostIds({"a", "a", "b", "b", "c"});
  for (const int64_t count : {1, 1000, 100000, 10000000}) {
    std::vector<const char*> names;
    for (int rank = 0; rank < 5; ++rank) {
      Planner planner(rank, topology, {}, BuiltinTuning(), {});
      Call call;
      call.kind = CallKind::kAllReduce;
      call.dtype = DType::kF32;
      call.count = count;
      const auto plan = planner.PlanFor(call);
      ASSERT_TRUE(plan.ok());
      names.push_back((*plan)->algorithm);
      EXPECT_EQ((*plan)->schedule->lanes.size(), Planner(0, topology, {}, BuiltinTuning(), {})
                                                     .PlanFor(call)
                                                     .value()
                                                     ->schedule->lanes.size());
    }
    EXPECT_THAT(names, testing::Each(testing::StrEq(names[0]))) << count;
  }
}

TEST(Planner, LargeWorldsDoNotTalkToEverybody) {
  const Topology topology = Topology::FromHostIds(std::vector<std::string>(100, "a"));
  for (const CallKind kind : {CallKind::kBarrier, CallKind::kBroadcast, CallKind::kAllReduce,
                              CallKind::kReduceScatter, CallKind::kAllGather}) {
    Planner planner(0, topology, {}, BuiltinTuning(), {Link::kShm, 0});
    Call call;
    call.kind = kind;
    call.count = 10;
    const auto plan = planner.PlanFor(call);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_STRNE((*plan)->algorithm, "direct");
    EXPECT_STRNE((*plan)->algorithm, "two_step");
  }
}

TEST(Planner, OverrideThatCannotServeIsPassedOver) {
  const auto overrides = ParseOverrides("all_reduce:composed,all_reduce:ring");
  ASSERT_TRUE(overrides.ok());
  Planner planner(0, Topology::FromHostIds({"a", "a"}), *overrides, BuiltinTuning(), {});
  Call call;
  call.kind = CallKind::kAllReduce;
  call.count = 10;
  const auto plan = planner.PlanFor(call);
  ASSERT_TRUE(plan.ok());
  EXPECT_STREQ((*plan)->algorithm, "ring");  // "composed" needs several hosts
}

}  // namespace
}  // namespace entrain
