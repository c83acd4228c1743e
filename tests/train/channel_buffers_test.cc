// What the buffers of a round contain after Take, and what the caller's arrays contain.
#include "lib/train/acco/channel_buffers.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int64_t kCount = 5;

class ChannelBuffersTest : public testing::Test {
 protected:
  ChannelBuffersTest() {
    options_.count = kCount;
    options_.params = params_.data();
    accumulator_ = *OwnedBuffer::Allocate(kCount * static_cast<int64_t>(sizeof(float)));
    std::fill_n(sums(), kCount, 3.0f);
  }
  float* sums() { return reinterpret_cast<float*>(accumulator_.data()); }
  static std::vector<float> Values(const std::byte* array, int64_t count) {
    const auto* const values = reinterpret_cast<const float*>(array);
    return {values, values + count};
  }
  // Returns the layer of rank 0 of `ranks`.
  static Slab Cut(int ranks) { return *Slab::Make(std::vector<int64_t>{kCount}, ranks, 0); }

  std::vector<float> params_ = std::vector<float>(kCount, 8);
  ChannelOptions options_;
  OwnedBuffer accumulator_;
};

TEST_F(ChannelBuffersTest, TakesGradientsWithZerosAsPadding) {
  ChannelBuffers buffers(options_);
  ASSERT_EQ(buffers.Allocate(4), absl::OkStatus());
  EXPECT_EQ(buffers.bytes(), 8 * 4);
  EXPECT_EQ(buffers.taken(), buffers.com());
  std::fill_n(reinterpret_cast<float*>(buffers.com()), 8, -1.0f);
  buffers.Take(accumulator_, false, Cut(4).layer(0));
  EXPECT_THAT(Values(buffers.com(), 8), ElementsAre(3, 3, 3, 3, 3, 0, 0, 0));
  EXPECT_THAT(Values(accumulator_.data(), kCount), Each(3.0f));
}

TEST_F(ChannelBuffersTest, ClearsAnAccumulatorThatIsSpent) {
  ChannelBuffers buffers(options_);
  ASSERT_EQ(buffers.Allocate(1), absl::OkStatus());
  buffers.Take(accumulator_, true, Cut(1).layer(0));
  EXPECT_THAT(Values(buffers.com(), kCount), Each(3.0f));
  EXPECT_THAT(Values(accumulator_.data(), kCount), Each(0.0f));
}

// com is left to the sums and the parameters.
TEST_F(ChannelBuffersTest, KeepsGradientsIfTheRoundMayBeRepeated) {
  options_.on_loss = OnLoss::kFinish;
  ChannelBuffers buffers(options_);
  ASSERT_EQ(buffers.Allocate(4), absl::OkStatus());
  EXPECT_EQ(buffers.bytes(), 2 * (kCount + 3) * 4);
  ASSERT_NE(buffers.taken(), buffers.com());
  buffers.Take(accumulator_, true, Cut(4).layer(0));
  EXPECT_THAT(Values(buffers.taken(), 8), ElementsAre(3, 3, 3, 3, 3, 0, 0, 0));
}

TEST_F(ChannelBuffersTest, ClearsThePaddingOfANewCut) {
  options_.admit = Admit::kExchange;
  ChannelBuffers buffers(options_);
  ASSERT_EQ(buffers.Allocate(1), absl::OkStatus());
  EXPECT_EQ(buffers.bytes(), (kCount + kMostChannelRanks - 1) * 4);
  buffers.Take(accumulator_, true, Cut(1).layer(0));
  std::fill_n(reinterpret_cast<float*>(buffers.com()) + kCount, 2, -1.0f);
  buffers.ClearPadding(Cut(2).layer(0));
  EXPECT_THAT(Values(buffers.com(), 7), ElementsAre(3, 3, 3, 3, 3, 0, -1));
}

TEST_F(ChannelBuffersTest, PublishesOnlyTheParameters) {
  ChannelBuffers buffers(options_);
  ASSERT_EQ(buffers.Allocate(2), absl::OkStatus());
  for (int round = 0; round < 2; ++round) {
    std::fill_n(reinterpret_cast<float*>(buffers.com()), 6, static_cast<float>(round));
    buffers.Publish();
    EXPECT_THAT(params_, Each(static_cast<float>(round)));
  }
  EXPECT_EQ(buffers.params().data(), reinterpret_cast<std::byte*>(params_.data()));
  EXPECT_EQ(buffers.params().size(), kCount * sizeof(float));
}

TEST(ChannelBuffersCalls, SumAShardAndGatherAllShards) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    constexpr int64_t kElements = 3;  // shards of 2 and 1
    const Slab slab = *Slab::Make(std::vector<int64_t>{kElements}, 2, comm->rank());
    const SlabLayer& layer = slab.layer(0);
    ChannelOptions options;
    options.count = kElements;
    ChannelBuffers buffers(options);
    ASSERT_EQ(buffers.Allocate(2), absl::OkStatus());
    const auto ones = *OwnedBuffer::Allocate(kElements * static_cast<int64_t>(sizeof(float)));
    std::fill_n(reinterpret_cast<float*>(ones.data()), kElements,
                static_cast<float>(comm->rank() + 1));
    buffers.Take(ones, false, layer);
    ASSERT_EQ(comm->Run(buffers.Gradients(layer)), absl::OkStatus());
    // The first element of the shard.
    EXPECT_EQ(reinterpret_cast<const float*>(buffers.com())[comm->rank() == 0 ? 0 : 2], 3);
    ASSERT_EQ(comm->Run(buffers.Parameters(layer)), absl::OkStatus());
    const auto* const com = reinterpret_cast<const float*>(buffers.com());
    EXPECT_THAT(std::vector<float>(com, com + layer.padded), ElementsAre(3, 3, 3, 0));
  });
}

}  // namespace
}  // namespace entrain
