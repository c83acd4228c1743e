// Calls on device memory between processes. Uses the fake driver, or one device for all if
// TEST_GPU=1 is set.

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/device/cuda/on_device.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

// Runs one process per rank. All must end without error.
void RunProcesses(int size, const char* transports, const RankBody& body) {
  RanksOptions options;
  options.transports = transports;
  options.timeout_ns = 30 * kSecond;
  EXPECT_EQ(RunRankProcesses(size, options, body), std::vector<int>(static_cast<size_t>(size)));
}

// Words in the rank's own memory on the device.
class Words {
 public:
  explicit Words(int64_t count) : count_(count), data_(TestDevice().Allocate(count * 8).value()) {}
  ~Words() { TestDevice().Free(data_); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  BufferView buffer() const { return {data_, count_ * 8, MemoryKind::kDevice}; }
  void Put(const std::vector<int64_t>& values) const {
    TestStream stream(TestDevice());
    EXPECT_TRUE(TestDevice().Copy(data_, values.data(), count_ * 8, stream.get()).ok());
  }
  std::vector<int64_t> Get() const {
    std::vector<int64_t> values(static_cast<size_t>(count_));
    TestStream stream(TestDevice());
    EXPECT_TRUE(TestDevice().Copy(values.data(), data_, count_ * 8, stream.get()).ok());
    stream.Finish();
    return values;
  }

 private:
  const int64_t count_;
  void* const data_;
};

Call CallOn(CallKind kind, const Words& in, const Words& out, int64_t count) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kI64;
  call.count = count;
  call.in = in.buffer();
  call.out = out.buffer();
  call.options.device = call.options.on_stream = true;
  return call;
}

constexpr int64_t kCount = 300'000;

void ReduceAndGather(Communicator& comm) {
  const int size = comm.size();
  const Words in(kCount), reduced(kCount), gathered(kCount * size);
  std::vector<int64_t> mine(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    mine[static_cast<size_t>(i)] = i * (comm.rank() + 1);
  }
  for (int round = 0; round < 3; ++round) {
    in.Put(mine);
    ASSERT_TRUE(comm.Run(CallOn(CallKind::kAllReduce, in, reduced, kCount)).ok());
    ASSERT_TRUE(comm.Run(CallOn(CallKind::kAllGather, in, gathered, kCount)).ok());
    ASSERT_TRUE(comm.Run(CallOn(CallKind::kAllReduce, in, in, kCount)).ok());
  }
  const std::vector<int64_t> sum = reduced.Get(), all = gathered.Get(), in_place = in.Get();
  for (int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_EQ(sum[at], i * size * (size + 1) / 2) << i;
    ASSERT_EQ(in_place[at], sum[at]) << i;
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(all[at + static_cast<size_t>(r * kCount)], i * (r + 1)) << i;
    }
  }
}

class DeviceProcesses : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, DeviceProcesses, testing::Values(2, 4));

TEST_P(DeviceProcesses, GoThroughTheHost) {
  RunProcesses(GetParam(), "shm", [](const std::shared_ptr<Communicator>& comm) {
    ReduceAndGather(*comm);
    EXPECT_TRUE(comm->Barrier().ok());
  });
}

// Staged calls and calls of NCCL alternate on one stream, with one device per rank.
TEST_P(DeviceProcesses, MixStagedCallsAndThoseOfNccl) {
  if (OnRealDevice()) {
    GTEST_SKIP() << "wants a device for each rank";
  }
  setenv("FAKE_CUDA_DEVICES", "4", 1);
  setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  RunProcesses(GetParam(), "shm,nccl", [](const std::shared_ptr<Communicator>& comm) {
    constexpr int64_t kFloats = 100'000;
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory memory(device, kFloats * 4);
    std::vector<float> values(kFloats, static_cast<float>(comm->rank() + 1));
    ASSERT_TRUE(device.Copy(memory.get(), values.data(), kFloats * 4, stream.get()).ok());
    std::vector<RefPtr<Work>> works;
    for (int i = 0; i < 12; ++i) {
      Call call;
      call.kind = CallKind::kAllReduce;
      call.dtype = DType::kF32;
      // NCCL does not get the minimum of floats.
      call.reduction.op = i % 3 == 2 ? ReduceOp::kSum : ReduceOp::kMin;
      call.count = kFloats;
      call.in = call.out = {memory.get(), kFloats * 4, MemoryKind::kDevice};
      call.options.device = call.options.on_stream = true;
      call.options.stream = stream.get();
      if (i == 0) {
        ASSERT_TRUE(comm->Run(call).ok());  // joins NCCL, which may wait for all streams
        continue;
      }
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (const auto& work : works) {
      ASSERT_TRUE(work->Wait(Deadline::After(20 * kSecond)));
      ASSERT_TRUE(work->status().ok()) << work->status();
    }
    ASSERT_TRUE(device.Copy(values.data(), memory.get(), kFloats * 4, stream.get()).ok());
    stream.Finish();
    float want = 1;
    for (int i = 0; i < 4; ++i) {
      want *= static_cast<float>(comm->size());
    }
    EXPECT_EQ(values, std::vector<float>(kFloats, want));
    EXPECT_TRUE(comm->Barrier().ok());
  });
  unsetenv("FAKE_CUDA_DEVICES");
}

// A rank is killed in the middle. The others' calls and streams end, and the error names the rank.
void AKilledRankEndsTheCallsOfTheOthers(int size, bool by_nccl) {
  const int last = size - 1;
  RanksOptions options;
  options.transports = by_nccl ? "shm,nccl" : "shm";
  options.timeout_ns = 30 * kSecond;
  const std::vector<int> ends =
      RunRankProcesses(size, options, [&](const std::shared_ptr<Communicator>& comm) {
        Device& device = TestDevice(by_nccl ? comm->rank() : 0);
        TestStream stream(device);
        const TestMemory memory(device, kCount * 8);
        ASSERT_TRUE(device.Fill(memory.get(), 0, kCount * 8, stream.get()).ok());
        Call call;
        call.kind = CallKind::kAllReduce;
        call.dtype = DType::kI64;
        call.count = kCount;
        call.in = call.out = {memory.get(), kCount * 8, MemoryKind::kDevice};
        call.options.device = call.options.on_stream = true;
        call.options.stream = stream.get();
        ASSERT_TRUE(comm->Run(call).ok());
        if (comm->rank() == last) {
          std::abort();
        }
        const absl::Status status = comm->Run(call);
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("rank ", last)) ||
                    (by_nccl && absl::StrContains(status.message(), "NCCL")))
            << status;
        stream.Finish();
      });
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(ends[static_cast<size_t>(rank)] == 0, rank != last) << rank;
  }
}

TEST_P(DeviceProcesses, AKilledRankEndsTheCallsOfTheOthers) {
  AKilledRankEndsTheCallsOfTheOthers(GetParam(), /*by_nccl=*/false);
}

TEST_P(DeviceProcesses, AKilledRankEndsTheCallsOfTheOthersInNccl) {
  if (OnRealDevice()) {
    GTEST_SKIP() << "wants a device for each rank";
  }
  setenv("FAKE_CUDA_DEVICES", "4", 1);
  setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  AKilledRankEndsTheCallsOfTheOthers(GetParam(), /*by_nccl=*/true);
  unsetenv("FAKE_CUDA_DEVICES");
}

}  // namespace
}  // namespace entrain
