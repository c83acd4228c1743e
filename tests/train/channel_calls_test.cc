// The calls of a round without its step: what they leave in the buffers.
#include "lib/train/channel_calls.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kCount = 3;  // shards of 2 and 1

// A rank's buffers and calls. Each element of its gradients is its rank + 1.
struct Rank {
  explicit Rank(const Communicator& comm)
      : slab(*Slab::Make(std::vector<int64_t>{kCount}, comm.size(), comm.rank())),
        buffers(options),
        progress(ProgressUnit::kCommits, 0),
        calls(options, buffers, progress) {
    options.count = kCount;
    EXPECT_EQ(buffers.Allocate(comm.size()), absl::OkStatus());
    const auto ones = *OwnedBuffer::Allocate(kCount * static_cast<int64_t>(sizeof(float)));
    std::fill_n(reinterpret_cast<float*>(ones.data()), kCount, static_cast<float>(comm.rank() + 1));
    buffers.Take(ones, false, layer());
  }
  const SlabLayer& layer() const { return slab.layer(0); }
  std::vector<float> com() const {
    const auto* const values = reinterpret_cast<const float*>(buffers.com());
    return {values, values + layer().padded};
  }

  const Slab slab;
  ChannelOptions options;
  ChannelBuffers buffers;
  ChannelProgress progress;
  ChannelCalls calls;
};

TEST(ChannelCalls, SumAShardAndGatherAllShards) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Rank rank(*comm);
    ASSERT_EQ(rank.calls.Run("gradients", *comm, rank.calls.Gradients(rank.layer())),
              absl::OkStatus());
    const std::vector<float> sums = rank.com();
    EXPECT_EQ(sums[comm->rank() == 0 ? 0 : 2], 3);  // the first element of the shard
    ASSERT_EQ(rank.calls.Run("parameters", *comm, rank.calls.Parameters(rank.layer())),
              absl::OkStatus());
    EXPECT_THAT(rank.com(), ElementsAre(3, 3, 3, 0));
  });
}

TEST(ChannelCalls, HaveATag) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(*comm);
    EXPECT_EQ(rank.calls.Options().user_tag, ChannelCalls::kDataTag);
  });
}

TEST(ChannelCalls, AnErrorNamesTheCall) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    const auto comm = *world->Split(0, world->rank());
    Rank rank(*comm);
    comm->Abort("gives up");
    EXPECT_THAT(
        std::string(
            rank.calls.Run("gradients", *comm, rank.calls.Gradients(rank.layer())).message()),
        HasSubstr("gradients: "));
    ASSERT_EQ(world->Barrier(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace entrain
