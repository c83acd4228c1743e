#include "collectives/spec.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::ElementsAre;

TEST(Spec, AllReduceBlocksAreLaneMajor) {
  const Spec spec{CallKind::kAllReduce, 0, 3, 0, 2};
  EXPECT_EQ(BlockCount(spec), 6);
  EXPECT_EQ(BlockOf(spec, 2, 0), 2);
  EXPECT_EQ(BlockOf(spec, 0, 1), 3);
}

TEST(Spec, AllGatherBlocksAreRankMajor) {
  const Spec spec{CallKind::kAllGather, 0, 3, 0, 2};
  EXPECT_EQ(BlockCount(spec), 6);
  EXPECT_EQ(BlockOf(spec, 2, 0), 4);
  EXPECT_EQ(BlockOf(spec, 0, 1), 1);
}

TEST(Spec, BarrierHasNoBlocks) {
  const Spec spec{CallKind::kBarrier, 0, 3, 0, 2};
  EXPECT_EQ(BlockCount(spec), 0);
  EXPECT_THAT(UniformLayout(spec, 0).first, ElementsAre(0));
}

TEST(UniformLayout, CutsTheBufferOfAnAllReduceEvenly) {
  EXPECT_THAT(UniformLayout({CallKind::kAllReduce, 0, 2, 0, 2}, 7).first,
              ElementsAre(0, 2, 4, 6, 7));
  EXPECT_THAT(UniformLayout({CallKind::kBroadcast, 0, 3, 0, 1}, 1).first, ElementsAre(0, 1, 1, 1));
}

TEST(UniformLayout, GivesEveryRankItsWholePart) {
  EXPECT_THAT(UniformLayout({CallKind::kAllGather, 0, 2, 0, 2}, 5).first,
              ElementsAre(0, 3, 5, 8, 10));
  EXPECT_THAT(UniformLayout({CallKind::kReduceScatter, 0, 3, 0, 1}, 0).first,
              ElementsAre(0, 0, 0, 0));
}

TEST(UniformLayout, BlocksDifferByOneElementAtMost) {
  for (const CallKind kind : {CallKind::kAllReduce, CallKind::kBroadcast, CallKind::kAllGather,
                              CallKind::kReduceScatter}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1001}, int64_t{1} << 61}) {
      const Spec spec{kind, 0, 3, 0, 5};
      const bool by_part = kind == CallKind::kAllGather || kind == CallKind::kReduceScatter;
      if (by_part && count > 1001) {
        continue;  // no layout has three parts of this count
      }
      const Layout layout = UniformLayout(spec, count);
      int64_t least = layout.elements(0);
      int64_t most = least;
      for (int b = 0; b < layout.blocks(); ++b) {
        least = std::min(least, layout.elements(b));
        most = std::max(most, layout.elements(b));
      }
      EXPECT_LE(most - least, 1);
      EXPECT_GE(least, 0);
      EXPECT_EQ(layout.first.back(), by_part ? count * 3 : count);
    }
  }
}

}  // namespace
}  // namespace entrain
