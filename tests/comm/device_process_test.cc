// Calls on device memory between processes, which open each other's memory. On the fake driver, or, where TEST_GPU=1 is
// set, with one device for all.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/comm/communicator.h"
#include "lib/comm/runtime.h"
#include "lib/store/store.h"
#include "tests/cuda/on_device.h"

namespace entrain {
namespace {

using Body = std::function<bool(Communicator& comm)>;

#define REQUIRE(condition)                                         \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: " #condition "\n", __LINE__); \
      return false;                                                \
    }                                                              \
  } while (false)

bool RunRank(const std::string& url, int rank, int size, const char* transports, const Body& body) {
  auto store = OpenStore(url, "", {Deadline::After(5 * kSecond)});
  RuntimeOptions runtime_options;
  runtime_options.transports = transports;
  auto runtime = Runtime::Create(runtime_options);
  REQUIRE(store.ok() && runtime.ok());
  CommOptions options;
  options.runtime = *runtime;
  options.store = *store;
  options.rank = rank;
  options.size = size;
  options.timeout_ns = 30 * kSecond;
  const auto comm = Communicator::Create(options);
  REQUIRE(comm.ok());
  return body(**comm);
}

// Every rank a process that has not known the driver before: it does not survive a fork.
void RunProcesses(int size, const char* transports, const Body& body) {
  char directory[] = "/tmp/entrain_device_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string url = absl::StrCat("file:", directory);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(RunRank(url, rank, size, transports, body) ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  [[maybe_unused]] const int gone = std::system(absl::StrCat("rm -r ", directory).c_str());
}

// As cudaMallocAsync gives it: nobody else can open it.
void* AllocateOfPool(int64_t bytes) {
  uintptr_t memory = 0;
  EXPECT_TRUE(TestDevice().Enter().ok());
  EXPECT_EQ(OfFake<int(uintptr_t*, size_t, void*)>("cuMemAllocAsync")(
                &memory, static_cast<size_t>(bytes), nullptr),
            0);
  TestDevice().Leave();
  return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr)
}

struct Memory {
  explicit Memory(int64_t bytes, bool of_pool = false)
      : bytes_(bytes),
        data(of_pool ? AllocateOfPool(bytes) : TestDevice().Allocate(bytes).value()) {}
  ~Memory() { TestDevice().Free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void Put(const std::vector<int64_t>& values) const {
    TestStream stream(TestDevice());
    EXPECT_TRUE(TestDevice().Copy(data, values.data(), bytes_, stream.get()).ok());
  }
  std::vector<int64_t> Get() const {
    std::vector<int64_t> values(static_cast<size_t>(bytes_) / 8);
    TestStream stream(TestDevice());
    EXPECT_TRUE(TestDevice().Copy(values.data(), data, bytes_, stream.get()).ok());
    stream.Finish();
    return values;
  }
  const int64_t bytes_;
  void* const data;
};

Call CallOn(CallKind kind, const Memory& in, const Memory& out, int64_t count) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kI64;
  call.count = count;
  call.in = {in.data, in.bytes_, MemoryKind::kDevice};
  call.out = {out.data, out.bytes_, MemoryKind::kDevice};
  call.options.device = call.options.on_stream = true;
  return call;
}

constexpr int64_t kCount = 300'000;

// What is written where others still read is kept aside first.
bool ExchangesInPlace(Communicator& comm) {
  const int size = comm.size();
  const Memory parts(kCount * 8 * size), sums(kCount * 8);
  std::vector<int64_t> mine(static_cast<size_t>(kCount * size));
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i] = static_cast<int64_t>(i) * (comm.rank() + 1);
  }
  parts.Put(mine);
  sums.Put(std::vector<int64_t>(kCount, comm.rank() + 1));
  REQUIRE(comm.Run(CallOn(CallKind::kAllToAll, parts, parts, kCount)).ok());
  REQUIRE(comm.Run(CallOn(CallKind::kScan, sums, sums, kCount)).ok());
  const std::vector<int64_t> got = parts.Get(), scanned = sums.Get();
  const int64_t upto = (comm.rank() + 1) * (comm.rank() + 2) / 2;
  for (int64_t i = 0; i < kCount; ++i) {
    REQUIRE(scanned[static_cast<size_t>(i)] == upto);
    for (int r = 0; r < size; ++r) {
      REQUIRE(got[static_cast<size_t>(r * kCount + i)] == (comm.rank() * kCount + i) * (r + 1));
    }
  }
  return true;
}

bool ReducesAndGathers(Communicator& comm) {
  const int size = comm.size();
  const Memory in(kCount * 8), reduced(kCount * 8), gathered(kCount * 8 * size);
  std::vector<int64_t> mine(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    mine[static_cast<size_t>(i)] = i * (comm.rank() + 1);
  }
  for (int round = 0; round < 3; ++round) {
    in.Put(mine);
    REQUIRE(comm.Run(CallOn(CallKind::kAllReduce, in, reduced, kCount)).ok());
    REQUIRE(comm.Run(CallOn(CallKind::kAllGather, in, gathered, kCount)).ok());
    REQUIRE(comm.Run(CallOn(CallKind::kAllReduce, in, in, kCount)).ok());
  }
  const std::vector<int64_t> sum = reduced.Get(), all = gathered.Get(), in_place = in.Get();
  for (int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    REQUIRE(sum[at] == i * size * (size + 1) / 2 && in_place[at] == sum[at]);
    for (int r = 0; r < size; ++r) {
      REQUIRE(all[at + static_cast<size_t>(r * kCount)] == i * (r + 1));
    }
  }
  return true;
}

class DeviceProcesses : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, DeviceProcesses, testing::Values(2, 4));

TEST_P(DeviceProcesses, OpenEachOthersMemoryAndNeedNoPageLockedCopies) {
  RunProcesses(GetParam(), "shm,cuda", [](Communicator& comm) {
    if (!ReducesAndGathers(comm) || !ExchangesInPlace(comm)) {
      return false;
    }
    // What was exchanged directly was opened once, whatever the number of calls; and before that tried in vain, where
    // what had been there was in the way.
    REQUIRE(OnRealDevice() || CallsOf("cuIpcOpenMemHandle_v2") > 0);
    REQUIRE(OnRealDevice() || CallsOf("cuIpcOpenMemHandle_v2") <= 8 * (comm.size() - 1));
    REQUIRE(OnRealDevice() || CallsOf("cuLaunchKernel") > 0);
    // All have done with it before anybody frees what is open elsewhere.
    return comm.Barrier().ok();
  });
}

TEST_P(DeviceProcesses, WithoutThatGoThroughTheHost) {
  RunProcesses(GetParam(), "shm", [](Communicator& comm) {
    if (!ReducesAndGathers(comm)) {
      return false;
    }
    REQUIRE(OnRealDevice() || CallsOf("cuIpcOpenMemHandle_v2") == 0);
    REQUIRE(OnRealDevice() || CallsOf("cuLaunchKernel") == 0);
    return comm.Barrier().ok();
  });
}

// One that cannot open the others' memory decides for all.
TEST_P(DeviceProcesses, GoThroughTheHostWhenOneCannotOpenMemory) {
  RunProcesses(GetParam(), "shm,cuda", [](Communicator& comm) {
    if (OnRealDevice()) {
      return true;
    }
    TestDevices();
    if (comm.rank() == 1) {
      FailCall("cuIpcOpenMemHandle_v2", 1, 201);
    }
    if (!ReducesAndGathers(comm)) {
      return false;
    }
    REQUIRE(CallsOf("cuLaunchKernel") == 0);
    return comm.Barrier().ok();
  });
}

bool SumsUp(Communicator& comm, const Memory& memory) {
  memory.Put(std::vector<int64_t>(kCount, comm.rank() + 1));
  REQUIRE(comm.Run(CallOn(CallKind::kAllReduce, memory, memory, kCount)).ok());
  REQUIRE(memory.Get() == std::vector<int64_t>(kCount, comm.size() * (comm.size() + 1) / 2));
  return true;
}

// Whether a call is direct depends on its buffers too, those of all ranks.
TEST_P(DeviceProcesses, WhatOneCannotExportAllSendThroughTheHost) {
  RunProcesses(GetParam(), "shm,cuda", [](Communicator& comm) {
    if (OnRealDevice()) {
      return true;
    }
    const Memory memory(kCount * 8), of_pool(kCount * 8, comm.rank() == 1);
    for (int round = 0; round < 3; ++round) {
      int before = CallsOf("cuLaunchKernel");
      REQUIRE(SumsUp(comm, of_pool));
      REQUIRE(CallsOf("cuLaunchKernel") == before);
      REQUIRE(SumsUp(comm, memory));
      REQUIRE(CallsOf("cuLaunchKernel") > before);
    }
    return comm.Barrier().ok();
  });
}

TEST_P(DeviceProcesses, WhatOneCannotOpenAllSendThroughTheHost) {
  RunProcesses(GetParam(), "shm,cuda", [](Communicator& comm) {
    if (OnRealDevice()) {
      return true;
    }
    const Memory known(kCount * 8), memory(kCount * 8);
    REQUIRE(SumsUp(comm, known));
    const int before = CallsOf("cuLaunchKernel");
    if (comm.rank() == 1) {
      FailCall("cuIpcOpenMemHandle_v2", 1, 2);
    }
    REQUIRE(SumsUp(comm, memory));
    REQUIRE(CallsOf("cuLaunchKernel") == before);
    REQUIRE(SumsUp(comm, memory));
    REQUIRE(CallsOf("cuLaunchKernel") > before);
    return comm.Barrier().ok();
  });
}

// What one has freed is closed by the others once they see what has come to its place.
TEST_P(DeviceProcesses, OpenNoMoreThanThereIs) {
  RunProcesses(GetParam(), "shm,cuda", [](Communicator& comm) {
    if (OnRealDevice()) {
      return true;
    }
    int most = 0;
    for (int round = 0; round < 20; ++round) {
      const Memory memory(kCount * 8);
      REQUIRE(SumsUp(comm, memory));
      REQUIRE(SumsUp(comm, memory));
      REQUIRE(comm.Barrier().ok());
      most = std::max(most, LiveOnFake().back());
    }
    REQUIRE(CallsOf("cuLaunchKernel") >= 20);
    // The one to try, what there is, and what is in its way.
    REQUIRE(most <= 3 * (comm.size() - 1));
    return true;
  });
}

// What is read directly and what NCCL takes, in turns on one stream and with a device for each rank: nothing is handed
// over behind a call that has more to enqueue.
TEST_P(DeviceProcesses, MixDirectCallsAndThoseOfNccl) {
  if (OnRealDevice()) {
    GTEST_SKIP() << "wants a device for each rank";
  }
  setenv("FAKE_CUDA_DEVICES", "4", 1);
  setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  RunProcesses(GetParam(), "shm,cuda,nccl", [](Communicator& comm) {
    constexpr int64_t kFloats = 100'000;
    Device& device = TestDevice(comm.rank());
    TestStream stream(device);
    const TestMemory memory(device, kFloats * 4);
    std::vector<float> values(kFloats, static_cast<float>(comm.rank() + 1));
    REQUIRE(device.Copy(memory.get(), values.data(), kFloats * 4, stream.get()).ok());
    std::vector<RefPtr<Work>> works;
    for (int i = 0; i < 12; ++i) {
      Call call;
      call.kind = CallKind::kAllReduce;
      call.dtype = DType::kF32;
      // NCCL is not given the least of floats.
      call.reduction.op = i % 3 == 2 ? ReduceOp::kSum : ReduceOp::kMin;
      call.count = kFloats;
      call.in = call.out = {memory.get(), kFloats * 4, MemoryKind::kDevice};
      call.options.device = call.options.on_stream = true;
      call.options.stream = stream.get();
      if (i == 0) {
        REQUIRE(comm.Run(call).ok());  // NCCL is joined in it, which may wait for all streams
        continue;
      }
      auto work = comm.Start(call);
      REQUIRE(work.ok());
      works.push_back(*std::move(work));
    }
    for (const auto& work : works) {
      REQUIRE(work->Wait(Deadline::After(20 * kSecond)));
      REQUIRE(work->status().ok());
    }
    REQUIRE(device.Copy(values.data(), memory.get(), kFloats * 4, stream.get()).ok());
    stream.Finish();
    float want = 1;
    for (int i = 0; i < 4; ++i) {
      want *= static_cast<float>(comm.size());
    }
    REQUIRE(values == std::vector<float>(kFloats, want));
    REQUIRE(CallsOf("cuIpcOpenMemHandle_v2") > 0 && comm.stats().bytes_sent < kFloats);
    return comm.Barrier().ok();
  });
  unsetenv("FAKE_CUDA_DEVICES");
}

// A rank that dies in the middle: the others' calls and streams end, with its name.
TEST_P(DeviceProcesses, AKilledRankEndsTheCallsOfTheOthers) {
  const int last = GetParam() - 1;
  char directory[] = "/tmp/entrain_device_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string url = absl::StrCat("file:", directory);
  std::vector<pid_t> children;
  for (int rank = 0; rank <= last; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(RunRank(url, rank, last + 1, "shm,cuda",
                    [&](Communicator& comm) {
                      const Memory in(kCount * 8), out(kCount * 8);
                      in.Put(std::vector<int64_t>(kCount, 1));
                      REQUIRE(comm.Run(CallOn(CallKind::kAllReduce, in, out, kCount)).ok());
                      if (comm.rank() == last) {
                        std::abort();
                      }
                      TestStream stream(TestDevice());
                      Call call = CallOn(CallKind::kAllReduce, in, out, kCount);
                      call.options.stream = stream.get();
                      const absl::Status status = comm.Run(call);
                      REQUIRE(absl::IsUnavailable(status));
                      REQUIRE(status.message().find(absl::StrCat("rank ", last)) !=
                              absl::string_view::npos);
                      stream.Finish();
                      return true;
                    })
                ? 0
                : 1);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank <= last; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &status, 0),
              children[static_cast<size_t>(rank)]);
    EXPECT_EQ(WIFEXITED(status) && WEXITSTATUS(status) == 0, rank != last) << rank;
  }
  [[maybe_unused]] const int gone = std::system(absl::StrCat("rm -r ", directory).c_str());
}

}  // namespace
}  // namespace entrain
