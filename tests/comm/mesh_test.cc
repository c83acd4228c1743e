#include "lib/comm/mesh.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::HasSubstr;

// Returns the ranks of `whole` that are in `part`, in the order of `part`.
std::vector<int32_t> Members(Communicator& part, int rank) {
  std::vector<int32_t> members(static_cast<size_t>(part.size()));
  const int32_t mine = rank;
  EXPECT_EQ(part.AllGather(&mine, members.data(), 1, DType::kI32), absl::OkStatus());
  return members;
}

MeshConfig Lengths(int tensor, int pipeline, int context, int shard, int sync) {
  MeshConfig config;
  config.lengths = {tensor, pipeline, context, shard, sync};
  return config;
}

TEST(Mesh, ShardGroupsAreNeighboursAndSyncGroupsStrided) {
  RunRanks(6, [](const Comm& comm) {
    const auto mesh = Mesh::Create(comm, Lengths(1, 1, 1, 2, 0));
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    const int r = comm->rank();
    EXPECT_EQ((*mesh)->length(Axis::kShard), 2);
    EXPECT_EQ((*mesh)->length(Axis::kSync), 3);
    EXPECT_EQ((*mesh)->coordinate(Axis::kShard), r % 2);
    EXPECT_EQ((*mesh)->coordinate(Axis::kSync), r / 2);
    EXPECT_EQ((*mesh)->length(Axis::kTensor), 1);
    EXPECT_EQ((*mesh)->comm(Axis::kTensor)->size(), 1);
    EXPECT_THAT(Members(*(*mesh)->comm(Axis::kShard), r),
                testing::ElementsAre(r / 2 * 2, r / 2 * 2 + 1));
    EXPECT_THAT(Members(*(*mesh)->comm(Axis::kSync), r),
                testing::ElementsAre(r % 2, r % 2 + 2, r % 2 + 4));
    EXPECT_THAT(Members(*(*mesh)->comm(Axis::kModel), r),
                testing::ElementsAre(r / 2 * 2, r / 2 * 2 + 1));
  });
}

TEST(Mesh, AllAxesAndAnotherOrder) {
  RunRanks(8, [](const Comm& comm) {
    MeshConfig config = Lengths(2, 1, 1, 2, 2);
    config.order = "sync,shard,tensor,pipeline,context";
    const auto mesh = Mesh::Create(comm, config);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    const int r = comm->rank();
    EXPECT_EQ((*mesh)->coordinate(Axis::kSync), r % 2);
    EXPECT_EQ((*mesh)->coordinate(Axis::kShard), r / 2 % 2);
    EXPECT_EQ((*mesh)->coordinate(Axis::kTensor), r / 4);
    EXPECT_EQ((*mesh)->length(Axis::kModel), 4);
    EXPECT_THAT(Members(*(*mesh)->comm(Axis::kModel), r),
                testing::ElementsAre(r % 2, r % 2 + 2, r % 2 + 4, r % 2 + 6));
    EXPECT_THAT(Members(*(*mesh)->comm(Axis::kTensor), r), testing::ElementsAre(r % 4, r % 4 + 4));
  });
}

TEST(Mesh, RefusesLengthsThatDoNotMakeTheRanks) {
  RunRanks(6, [](const Comm& comm) {
    const auto says = [&](const MeshConfig& config) {
      const absl::Status status = Mesh::Create(comm, config).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      return std::string(status.message());
    };
    EXPECT_THAT(says(Lengths(1, 1, 1, 4, 0)), HasSubstr("shard 4 x sync 0 (what remains)"));
    EXPECT_THAT(says(Lengths(1, 1, 1, 2, 4)), HasSubstr("shard 2 x sync 4 does not make the 6"));
    EXPECT_THAT(says(Lengths(1, 0, 1, 2, 3)), HasSubstr("pipeline: 0 is not positive"));
    MeshConfig config = Lengths(1, 1, 1, 2, 3);
    config.order = "tensor,context,shard,pipeline,shard";
    EXPECT_THAT(says(config), HasSubstr("names shard twice"));
    config.order = "tensor,context,shard,pipeline,data";
    EXPECT_THAT(says(config), HasSubstr("names \"data\""));
  });
}

TEST(Mesh, DifferentConfigsAreAMismatchOnAllRanks) {
  RunRanks(4, [](const Comm& comm) {
    const auto mesh = Mesh::Create(comm, Lengths(1, 1, 1, comm->rank() == 2 ? 4 : 2, 0));
    EXPECT_TRUE(absl::IsDataLoss(mesh.status())) << mesh.status();
    EXPECT_THAT(std::string(mesh.status().message()),
                HasSubstr("mesh: shard: 2 on rank 0, 4 on rank 2"));
  });
}

TEST(Mesh, OfTwoCommunicatorsThatExist) {
  RunRanks(6, [](const Comm& comm) {
    const int r = comm->rank();
    const auto shard = comm->Split(r / 2, r), sync = comm->Split(r % 2, r);
    ASSERT_TRUE(shard.ok() && sync.ok());
    const auto mesh = Mesh::CreateFrom(*shard, *sync);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    EXPECT_EQ((*mesh)->comm(Axis::kShard), *shard);
    EXPECT_EQ((*mesh)->comm(Axis::kSync), *sync);
    EXPECT_EQ((*mesh)->comm(Axis::kModel), *shard);
    EXPECT_EQ((*mesh)->coordinate(Axis::kSync), r / 2);
    EXPECT_EQ((*mesh)->length(Axis::kContext), 1);
    EXPECT_EQ((*mesh)->comm(Axis::kContext)->size(), 1);
  });
}

TEST(Mesh, RefusesCommunicatorsThatFormNone) {
  RunRanks(4, [](const Comm& comm) {
    const int r = comm->rank();
    // The second replica has its ranks in reversed order.
    const auto shard = comm->Split(r / 2, r < 2 ? r : -r);
    const auto sync = comm->Split(r % 2, r);
    ASSERT_TRUE(shard.ok() && sync.ok());
    const auto mesh = Mesh::CreateFrom(*shard, *sync);
    EXPECT_TRUE(absl::IsDataLoss(mesh.status())) << mesh.status();
  });
}

}  // namespace
}  // namespace entrain
