#include "collectives/catalog.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// The schedules of an entry have the properties that the entry states.
TEST(Catalog, EntriesTellWhatTheirMessagesAreAndWhomTheyGoTo) {
  constexpr int kRanks = 16;
  std::vector<int> hosts(kRanks, 0);
  std::fill(hosts.begin() + kRanks / 2, hosts.end(), 1);
  for (const Algorithm& algorithm : Catalog()) {
    SCOPED_TRACE(testing::Message() << NameOf(algorithm.kind) << " " << algorithm.name);
    bool whole_lanes = true, any = false;
    int root_at_once = 0;  // most partners of rank 0 in a round
    // The fewest partners of any rank, in its busiest round.
    int least_at_once = kRanks;
    int least = kRanks, most = 0;  // partners in all rounds together
    for (int rank = 0; rank < kRanks; ++rank) {
      const Schedule schedule = algorithm.build({algorithm.kind, rank, kRanks, 0, 1}, hosts);
      std::set<int> partners;
      int at_once = 0;
      for (const Round& round : schedule.rounds) {
        std::set<int> here;
        for (uint32_t i = 0; i < round.transfers; ++i) {
          const Transfer& transfer = schedule.transfers[round.first_transfer + i];
          here.insert(transfer.peer);
          any |= transfer.region.blocks > 0;
          whole_lanes &= transfer.region.blocks == kRanks;
        }
        at_once = std::max(at_once, static_cast<int>(here.size()));
        partners.insert(here.begin(), here.end());
      }
      root_at_once = rank == 0 ? at_once : root_at_once;
      least_at_once = std::min(least_at_once, at_once);
      least = std::min(least, static_cast<int>(partners.size()));
      most = std::max(most, static_cast<int>(partners.size()));
    }
    EXPECT_EQ(algorithm.message == Message::kLane, any && whole_lanes);
    EXPECT_EQ(algorithm.partners == Partners::kAll, least_at_once == kRanks - 1);
    EXPECT_EQ(algorithm.partners == Partners::kRoot,
              root_at_once == kRanks - 1 && least_at_once < kRanks - 1);
    EXPECT_EQ(algorithm.partners == Partners::kAllInTurn,
              least == kRanks - 1 && least_at_once < kRanks - 1);
    EXPECT_EQ(algorithm.partners == Partners::kFew, most < kRanks - 1);
    EXPECT_EQ(algorithm.by_hosts,
              algorithm.fits({algorithm.kind, 0, kRanks, 0, 1}, hosts) &&
                  !algorithm.fits({algorithm.kind, 0, kRanks, 0, 1}, std::vector<int>(kRanks, 0)));
  }
}

}  // namespace
}  // namespace entrain
