// Collectives on device memory of ranks on two hosts, each a process. A rank that is killed ends
// the calls of the others, in its node group and in the other one.
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/device/cuda/on_device.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

constexpr int kRanks = 4, kDies = 3;
constexpr int64_t kCount = 300'000;

void SumTwice(const std::shared_ptr<Communicator>& comm) {
  const int rank = comm->rank();
  Device& device = TestDevice(rank);
  TestStream stream(device);
  const TestMemory memory(device, kCount * 8);
  std::vector<int64_t> host(kCount, rank + 1);
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kI64;
  call.count = kCount;
  call.in = call.out = {memory.get(), kCount * 8, MemoryKind::kDevice};
  call.options.device = call.options.on_stream = true;
  call.options.stream = stream.get();
  ASSERT_TRUE(device.Copy(memory.get(), host.data(), kCount * 8, stream.get()).ok());
  ASSERT_TRUE(comm->Run(call).ok());
  ASSERT_TRUE(device.Copy(host.data(), memory.get(), kCount * 8, stream.get()).ok());
  stream.Finish();
  EXPECT_EQ(host, std::vector<int64_t>(kCount, 10));
  // A slice is half of a node group's data. No host has sent all of the data.
  EXPECT_LT(comm->stats().bytes_sent, kCount * 8);
  if (rank == kDies) {
    std::abort();
  }
  const int64_t begun = Clock::Real().Now();
  const absl::Status status = comm->Run(call);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("rank ", kDies)) ||
              absl::StrContains(status.message(), "NCCL"))
      << status;
  EXPECT_LT(Clock::Real().Now() - begun, 10 * kSecond);
  stream.Finish();
}

TEST(NodeGroupsOfProcesses, AKilledRankEndsTheCallsOfTheOthers) {
  setenv("FAKE_CUDA_DEVICES", "4", 1);
  setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  RanksOptions options;
  options.transports = "shm,tcp,node_groups";
  options.host_id = [](int rank) { return rank < kRanks / 2 ? "left" : "right"; };
  options.timeout_ns = 30 * kSecond;
  const std::vector<int> ends = RunRankProcesses(kRanks, options, SumTwice);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ends[static_cast<size_t>(rank)] == 0, rank != kDies) << rank;
  }
}

}  // namespace
}  // namespace entrain
