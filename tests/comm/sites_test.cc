// Sites: what ranks make of the round trips between them, and what the planner makes of sites.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/comm/plan/planner.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Sites, RanksThatAreNearEachOtherAreOneSite) {
  Paths paths;
  // 0 and 2 are near each other, and so are 1 and 3.
  paths.SetSites({{.first = 0, .count = 2},
                  {.first = 1, .count = 2},
                  {.first = 0, .count = 2},
                  {.first = 1, .count = 2}},
                 100 * kMillisecond);
  EXPECT_THAT(paths.sites, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(paths.round_trip_ns, 64 * kMillisecond);
}

TEST(Sites, WithoutALongWayThereAreNone) {
  Paths paths;
  paths.SetSites({{.first = 0, .count = 2}, {.first = 0, .count = 2}}, kSiteRoundTrip - 1);
  EXPECT_THAT(paths.sites, IsEmpty());
  EXPECT_EQ(paths.round_trip_ns, 0);
}

TEST(Sites, WhereRanksDisagreeEachIsASiteOfItsOwn) {
  const std::vector<std::vector<Paths::Near>> disagreements = {
      // 0 is near 1 and 2, but 1 and 2 are not near each other.
      {{.first = 0, .count = 3}, {.first = 0, .count = 2}, {.first = 0, .count = 2}},
      // 2 names 1, which names 0.
      {{.first = 0, .count = 2}, {.first = 0, .count = 2}, {.first = 1, .count = 2}},
      // Values that no rank can have found.
      {{.first = -1, .count = 1}, {.first = 7, .count = 1}, {.first = 2, .count = 1}},
      {{.first = 0, .count = 3}, {.first = 0, .count = 3}, {.first = 0, .count = 3}},
  };
  for (const auto& near : disagreements) {
    Paths paths;
    paths.SetSites(near, 6 * kMillisecond);
    EXPECT_THAT(paths.sites, ElementsAre(0, 1, 2));
    EXPECT_EQ(paths.round_trip_ns, 4 * kMillisecond);
  }
}

TEST(Sites, APartHasTheSitesOfItsRanks) {
  Paths paths;
  paths.SetSites({{.first = 0, .count = 2},
                  {.first = 0, .count = 2},
                  {.first = 2, .count = 2},
                  {.first = 2, .count = 2}},
                 20 * kMillisecond);
  const std::vector<int> across = {3, 1}, inside = {2, 3};
  EXPECT_THAT(paths.Of(across).sites, ElementsAre(0, 1));
  EXPECT_EQ(paths.Of(across).round_trip_ns, 16 * kMillisecond);
  EXPECT_THAT(paths.Of(inside).sites, IsEmpty());
  EXPECT_EQ(paths.Of(inside).round_trip_ns, 0);
}

// Four hosts of one rank each.
Planner Of(const Paths& paths) {
  return Planner(0, Topology::FromHostIds(std::vector<std::string>{"a", "b", "c", "d"}), {},
                 BuiltinTuning(), paths);
}

Call AllReduceOf(int64_t bytes) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = bytes / 4;
  return call;
}

TEST(Sites, ManyBytesCrossBetweenTwoSitesAsRarelyAsPossible) {
  Paths two, none;
  two.SetSites({{.first = 0, .count = 2},
                {.first = 0, .count = 2},
                {.first = 2, .count = 2},
                {.first = 2, .count = 2}},
               100 * kMillisecond);
  Planner planner = Of(two);
  EXPECT_STREQ((*planner.PlanFor(AllReduceOf(64 << 20)))->algorithm, "composed");
  EXPECT_THAT(*planner.Explain(AllReduceOf(64 << 20)), HasSubstr("2 sites, 64 ms apart"));
  // Few bytes cross once: half a round trip.
  EXPECT_THAT((*planner.PlanFor(AllReduceOf(1 << 10)))->algorithm,
              testing::AnyOf(testing::StrEq("direct"), testing::StrEq("recursive_doubling")));
  EXPECT_STRNE((*Of(none).PlanFor(AllReduceOf(64 << 20)))->algorithm, "composed");
}

TEST(Sites, AllLanesRunAtOnceAsFarAsMemoryAllows) {
  Paths apart;
  apart.SetSites(std::vector<Paths::Near>{{.first = 0}, {.first = 1}, {.first = 2}, {.first = 3}},
                 100 * kMillisecond);
  const auto plan = [](const Paths& paths, int64_t bytes) {
    return *Of(paths).PlanFor(AllReduceOf(bytes));
  };
  EXPECT_EQ(plan({}, 64 << 20)->window, kWindow);
  const auto far = plan(apart, 64 << 20);
  EXPECT_EQ(far->window, static_cast<int>(far->schedule->lanes.size()));
  const auto large = plan(apart, int64_t{4} << 30);
  EXPECT_LT(large->window, static_cast<int>(large->schedule->lanes.size()));
  EXPECT_GE(large->window, kWindow);
}

}  // namespace
}  // namespace entrain
