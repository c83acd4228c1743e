// Calls on device memory between processes, which open each other's memory. Uses the fake driver,
// or one device for all if TEST_GPU=1 is set.

#include <algorithm>
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

// Allocates like cudaMallocAsync: no other process can open the memory.
void* AllocateOfPool(int64_t bytes) {
  uintptr_t memory = 0;
  EXPECT_TRUE(TestDevice().Enter().ok());
  EXPECT_EQ(OfFake<int(uintptr_t*, size_t, void*)>("cuMemAllocAsync")(
                &memory, static_cast<size_t>(bytes), nullptr),
            0);
  TestDevice().Leave();
  return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr)
}

// Words in the rank's own memory on the device.
class Words {
 public:
  explicit Words(int64_t count, bool of_pool = false)
      : count_(count),
        data_(of_pool ? AllocateOfPool(count * 8) : TestDevice().Allocate(count * 8).value()) {}
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

// Data that is overwritten while others still read it is copied first.
void ExchangeInPlace(Communicator& comm) {
  const int size = comm.size();
  const Words parts(kCount * size), sums(kCount);
  std::vector<int64_t> mine(static_cast<size_t>(kCount * size));
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i] = static_cast<int64_t>(i) * (comm.rank() + 1);
  }
  parts.Put(mine);
  sums.Put(std::vector<int64_t>(kCount, comm.rank() + 1));
  ASSERT_TRUE(comm.Run(CallOn(CallKind::kAllToAll, parts, parts, kCount)).ok());
  ASSERT_TRUE(comm.Run(CallOn(CallKind::kScan, sums, sums, kCount)).ok());
  const std::vector<int64_t> got = parts.Get(), scanned = sums.Get();
  const int64_t upto = (comm.rank() + 1) * (comm.rank() + 2) / 2;
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(scanned[static_cast<size_t>(i)], upto) << i;
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(got[static_cast<size_t>(r * kCount + i)], (comm.rank() * kCount + i) * (r + 1))
          << i;
    }
  }
}

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

TEST_P(DeviceProcesses, OpenEachOthersMemoryAndNeedNoPageLockedCopies) {
  RunProcesses(GetParam(), "shm,cuda", [](const std::shared_ptr<Communicator>& comm) {
    ReduceAndGather(*comm);
    ExchangeInPlace(*comm);
    // Memory that was exchanged directly was opened once, whatever the number of calls. Before
    // that, opening failed once if older memory was at the same address.
    EXPECT_TRUE(OnRealDevice() || CallsOf("cuIpcOpenMemHandle_v2") > 0);
    EXPECT_TRUE(OnRealDevice() || CallsOf("cuIpcOpenMemHandle_v2") <= 8 * (comm->size() - 1));
    EXPECT_TRUE(OnRealDevice() || CallsOf("cuLaunchKernel") > 0);
    // All ranks are done before any rank frees memory that others have open.
    EXPECT_TRUE(comm->Barrier().ok());
  });
}

TEST_P(DeviceProcesses, WithoutThatGoThroughTheHost) {
  RunProcesses(GetParam(), "shm", [](const std::shared_ptr<Communicator>& comm) {
    ReduceAndGather(*comm);
    EXPECT_TRUE(OnRealDevice() || CallsOf("cuIpcOpenMemHandle_v2") == 0);
    EXPECT_TRUE(OnRealDevice() || CallsOf("cuLaunchKernel") == 0);
    EXPECT_TRUE(comm->Barrier().ok());
  });
}

// If one rank cannot open the others' memory, all ranks take the other path.
TEST_P(DeviceProcesses, GoThroughTheHostWhenOneCannotOpenMemory) {
  ENTRAIN_NEEDS_FAKE();
  RunProcesses(GetParam(), "shm,cuda", [](const std::shared_ptr<Communicator>& comm) {
    TestDevices();
    if (comm->rank() == 1) {
      FailCall("cuIpcOpenMemHandle_v2", 1, 201);
    }
    ReduceAndGather(*comm);
    EXPECT_EQ(CallsOf("cuLaunchKernel"), 0);
    EXPECT_TRUE(comm->Barrier().ok());
  });
}

void SumsUp(Communicator& comm, const Words& words) {
  words.Put(std::vector<int64_t>(kCount, comm.rank() + 1));
  ASSERT_TRUE(comm.Run(CallOn(CallKind::kAllReduce, words, words, kCount)).ok());
  EXPECT_EQ(words.Get(), std::vector<int64_t>(kCount, comm.size() * (comm.size() + 1) / 2));
}

// The buffers of all ranks also determine whether a call is direct.
TEST_P(DeviceProcesses, WhatOneCannotExportAllSendThroughTheHost) {
  ENTRAIN_NEEDS_FAKE();
  RunProcesses(GetParam(), "shm,cuda", [](const std::shared_ptr<Communicator>& comm) {
    const Words words(kCount), of_pool(kCount, comm->rank() == 1);
    for (int round = 0; round < 3; ++round) {
      const int before = CallsOf("cuLaunchKernel");
      SumsUp(*comm, of_pool);
      EXPECT_EQ(CallsOf("cuLaunchKernel"), before);
      SumsUp(*comm, words);
      EXPECT_GT(CallsOf("cuLaunchKernel"), before);
    }
    EXPECT_TRUE(comm->Barrier().ok());
  });
}

TEST_P(DeviceProcesses, WhatOneCannotOpenAllSendThroughTheHost) {
  ENTRAIN_NEEDS_FAKE();
  RunProcesses(GetParam(), "shm,cuda", [](const std::shared_ptr<Communicator>& comm) {
    const Words known(kCount), words(kCount);
    SumsUp(*comm, known);
    const int before = CallsOf("cuLaunchKernel");
    if (comm->rank() == 1) {
      FailCall("cuIpcOpenMemHandle_v2", 1, 2);
    }
    SumsUp(*comm, words);
    EXPECT_EQ(CallsOf("cuLaunchKernel"), before);
    SumsUp(*comm, words);
    EXPECT_GT(CallsOf("cuLaunchKernel"), before);
    EXPECT_TRUE(comm->Barrier().ok());
  });
}

// Memory that one rank has freed is closed by the others once they see new memory in its place.
TEST_P(DeviceProcesses, OpenNoMoreThanThereIs) {
  ENTRAIN_NEEDS_FAKE();
  RunProcesses(GetParam(), "shm,cuda", [](const std::shared_ptr<Communicator>& comm) {
    int most = 0;
    for (int round = 0; round < 20; ++round) {
      const Words words(kCount);
      SumsUp(*comm, words);
      SumsUp(*comm, words);
      ASSERT_TRUE(comm->Barrier().ok());
      most = std::max(most, LiveOnFake().back());
    }
    EXPECT_GE(CallsOf("cuLaunchKernel"), 20);
    // The attempt, the memory itself, and older memory at its address.
    EXPECT_LE(most, 3 * (comm->size() - 1));
  });
}

// Direct calls and calls of NCCL alternate on one stream, with one device per rank. No call is
// offloaded behind a call that has more to enqueue.
TEST_P(DeviceProcesses, MixDirectCallsAndThoseOfNccl) {
  if (OnRealDevice()) {
    GTEST_SKIP() << "wants a device for each rank";
  }
  setenv("FAKE_CUDA_DEVICES", "4", 1);
  setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  RunProcesses(GetParam(), "shm,cuda,nccl", [](const std::shared_ptr<Communicator>& comm) {
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
    EXPECT_GT(CallsOf("cuIpcOpenMemHandle_v2"), 0);
    EXPECT_LT(comm->stats().bytes_sent, kFloats);
    EXPECT_TRUE(comm->Barrier().ok());
  });
  unsetenv("FAKE_CUDA_DEVICES");
}

// A rank is killed in the middle. The others' calls and streams end, and the error names the rank.
TEST_P(DeviceProcesses, AKilledRankEndsTheCallsOfTheOthers) {
  const int last = GetParam() - 1;
  RanksOptions options;
  options.transports = "shm,cuda";
  options.timeout_ns = 30 * kSecond;
  const std::vector<int> ends =
      RunRankProcesses(last + 1, options, [&](const std::shared_ptr<Communicator>& comm) {
        const Words in(kCount), out(kCount);
        in.Put(std::vector<int64_t>(kCount, 1));
        ASSERT_TRUE(comm->Run(CallOn(CallKind::kAllReduce, in, out, kCount)).ok());
        if (comm->rank() == last) {
          std::abort();
        }
        TestStream stream(TestDevice());
        Call call = CallOn(CallKind::kAllReduce, in, out, kCount);
        call.options.stream = stream.get();
        const absl::Status status = comm->Run(call);
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("rank ", last))) << status;
        stream.Finish();
      });
  for (int rank = 0; rank <= last; ++rank) {
    EXPECT_EQ(ends[static_cast<size_t>(rank)] == 0, rank != last) << rank;
  }
}

}  // namespace
}  // namespace entrain
