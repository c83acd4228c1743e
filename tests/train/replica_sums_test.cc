#include "lib/train/edit/replica_sums.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(ReplicaSums, CopiesCountOnce) {
  // The second of two layers is replicated along the tensor axis.
  const Slab slab = *Slab::Make({4, 4}, 1, 0, {}, {0, 1});
  ExchangeGroups groups;
  groups.copies = 2;
  groups.tensor = 3;
  const ReplicaSums sums(slab, groups, 0);
  EXPECT_EQ(sums.Share(0, 12), 6);
  EXPECT_EQ(sums.Share(1, 12), 2);
}

TEST(ReplicaSums, AReplicaOfOneRankHasItsOwnNumbers) {
  const Slab slab = *Slab::Make({4}, 1, 0);
  const ExchangeGroups groups;
  const ReplicaSums sums(slab, groups, 0);
  EXPECT_THAT(*sums.Gather(0, {1, 2}), testing::ElementsAre(1, 2));
  EXPECT_EQ(sums.CheckCopies({0}, {1, 2}), absl::OkStatus());
}

TEST(ReplicaSums, RowsAreAddedInTheirOrder) {
  // 1 is lost in a sum with 1e16, unless it is added last.
  const std::vector<double> table = {1e16, 7, 1, 7, -1e16, 7, 1, 7};
  EXPECT_EQ(ReplicaSums::SumOfColumn(table, 2, 0), 1);
  EXPECT_EQ(ReplicaSums::SumOfColumn(table, 2, 1), 28);
}

}  // namespace
}  // namespace entrain
