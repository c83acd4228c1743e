#include "lib/train/shard/slab.h"

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

// Cut as by torch.chunk: 5 rows of 3 over 4 ranks give 2, 2, 1 and 0 rows.
TEST(Slab, SegmentsAreCutAlongTheirRows) {
  const std::vector<SlabSegment> segments = {{15, 5}, {2, 2}};
  std::vector<int> seen(17);
  const std::vector<std::vector<int64_t>> pieces = {{6, 1}, {6, 1}, {3}, {}};
  for (int slot = 0; slot < 4; ++slot) {
    const auto slab = Slab::Make({17}, 4, slot, {}, {}, {segments});
    ASSERT_TRUE(slab.ok()) << slab.status();
    const SlabLayer& layer = slab->layer(0);
    EXPECT_EQ(layer.shard, 2 * 3 + 1);
    EXPECT_EQ(layer.padded, 4 * 7);
    EXPECT_EQ(layer.first, slot * 7);
    EXPECT_EQ(layer.valid, slot < 2 ? 7 : slot == 2 ? 3 : 0);
    std::vector<int64_t> counts;
    for (const SlabPiece& piece : layer.pieces) {
      counts.push_back(piece.count);
      EXPECT_EQ(piece.at, counts.size() == 1 ? 0 : 6);
      for (int64_t i = 0; i < piece.count; ++i) {
        ++seen[static_cast<size_t>(piece.first + i)];
      }
    }
    EXPECT_EQ(counts, pieces[static_cast<size_t>(slot)]);
  }
  EXPECT_EQ(seen, std::vector<int>(17, 1));
  const auto made = [](std::vector<SlabSegment> of) {
    const std::vector<std::vector<SlabSegment>> layers = {std::move(of)};
    return std::string(Slab::Make({17}, 2, 0, {}, {}, layers).status().message());
  };
  EXPECT_THAT(made({{15, 5}}), testing::HasSubstr("have 15 elements, the layer 17"));
  EXPECT_THAT(made({{15, 4}, {2, 2}}), testing::HasSubstr("15 elements in 4 rows"));
  EXPECT_THAT(made({{15, 5}, {3, 3}}), testing::HasSubstr("3 elements in 3 rows, after 15"));
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
