#include "collectives/catalog.h"

#include <set>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

TEST(Catalog, NamesAreUniqueWithinAKind) {
  std::set<std::pair<CallKind, std::string>> seen;
  for (const Algorithm& algorithm : Catalog()) {
    EXPECT_TRUE(seen.emplace(algorithm.kind, algorithm.name).second) << algorithm.name;
  }
}

TEST(Catalog, EveryKindHasAnAlgorithmForOneRankAndOneHost) {
  for (const CallKind kind : {CallKind::kBarrier, CallKind::kBroadcast, CallKind::kAllReduce,
                              CallKind::kReduceScatter, CallKind::kAllGather}) {
    bool found = false;
    for (const Algorithm& algorithm : Catalog()) {
      found |= algorithm.kind == kind && algorithm.fits({kind, 0, 1, 0, 1}, {{0}});
    }
    EXPECT_TRUE(found) << NameOf(kind);
  }
}

TEST(Catalog, FindsByKindAndName) {
  const auto tree = FindAlgorithm(CallKind::kBarrier, "tree");
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ((*tree)->kind, CallKind::kBarrier);
}

TEST(Catalog, ListsTheNamesThereAre) {
  const auto none = FindAlgorithm(CallKind::kBarrier, "rnig");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(none.status().message(), HasSubstr("no algorithm 'rnig' for barrier"));
  EXPECT_THAT(none.status().message(), HasSubstr("direct, tree"));
}

TEST(Catalog, ComposedWantsHostsToComposeOver) {
  const auto composed = FindAlgorithm(CallKind::kAllReduce, "composed");
  ASSERT_TRUE(composed.ok());
  const Spec spec{CallKind::kAllReduce, 0, 3, 0, 1};
  EXPECT_TRUE((*composed)->fits(spec, {{0, 0, 1}}));
  EXPECT_TRUE((*composed)->fits(spec, {{7, 3, 7}}));
  EXPECT_FALSE((*composed)->fits(spec, {{0, 0, 0}}));
  EXPECT_FALSE((*composed)->fits(spec, {{0, 1, 2}}));
}

}  // namespace
}  // namespace entrain
