#include "lib/train/slab.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(Slab, ShardsAreCeilingsAndLieOneAfterTheOther) {
  const auto slab = Slab::Make({7, 4, 1}, 3, 1);
  ASSERT_TRUE(slab.ok()) << slab.status();
  EXPECT_EQ(slab->layers(), 3);
  EXPECT_EQ(slab->count(), 3 + 2 + 1);
  EXPECT_EQ(slab->layer(0).shard, 3);
  EXPECT_EQ(slab->layer(0).padded, 9);
  EXPECT_EQ(slab->layer(0).first, 3);
  EXPECT_EQ(slab->layer(0).valid, 3);
  EXPECT_EQ(slab->layer(0).offset, 0);
  EXPECT_EQ(slab->layer(1).shard, 2);
  EXPECT_EQ(slab->layer(1).offset, 3);
  EXPECT_EQ(slab->layer(2).valid, 0);
  EXPECT_EQ(slab->layer(2).offset, 5);
  EXPECT_EQ(slab->largest_padded(), 9);
}

TEST(Slab, SlotsCoverEveryElementOnce) {
  for (int slots = 1; slots <= 9; ++slots) {
    for (int64_t full = 1; full <= 20; ++full) {
      int64_t next = 0;
      for (int slot = 0; slot < slots; ++slot) {
        const auto slab = Slab::Make({full}, slots, slot);
        ASSERT_TRUE(slab.ok()) << slab.status();
        const SlabLayer& layer = slab->layer(0);
        if (layer.valid > 0) {
          EXPECT_EQ(layer.first, next);
        }
        next += layer.valid;
        EXPECT_LE(layer.padded - full, slots - 1);
      }
      EXPECT_EQ(next, full) << slots << " slots";
    }
  }
}

TEST(Slab, LayersTrainUnlessFrozenOrEmpty) {
  const auto slab = Slab::Make({0, 5, 3, 4}, 2, 1, {0, 0, 1, 0});
  ASSERT_TRUE(slab.ok()) << slab.status();
  EXPECT_THAT(slab->training(), testing::ElementsAre(1, 3));
  EXPECT_EQ(slab->layer(0).padded, 0);
  EXPECT_EQ(slab->layer(0).valid, 0);
  EXPECT_EQ(slab->layer(1).offset, 0);
  EXPECT_EQ(slab->layer(2).offset, 3);
  EXPECT_EQ(slab->layer(3).offset, 5);
}

TEST(Slab, RefusesSizesByName) {
  EXPECT_THAT(Slab::Make({3, -1}, 2, 0).status().message(),
              testing::HasSubstr("layer_counts[1]: -1 is negative"));
  EXPECT_THAT(Slab::Make({0, 0}, 2, 0).status().message(),
              testing::HasSubstr("layer_counts: all are 0"));
  EXPECT_THAT(Slab::Make({}, 2, 0).status().message(), testing::HasSubstr("layers: 0"));
  EXPECT_THAT(Slab::Make({int64_t{1} << 62}, 2, 0).status().message(),
              testing::HasSubstr("too large"));
}

}  // namespace
}  // namespace entrain
