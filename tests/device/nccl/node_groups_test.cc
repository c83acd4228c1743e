// Collectives on device memory of ranks on several hosts: NCCL inside a host, our transports
// between hosts. Uses the fakes of NCCL and of the driver, one device per rank, and hosts that
// exist only by name.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/device/nccl/communicator_handle.h"
#include "tests/device/cuda/device_trial.h"
#include "tests/device/cuda/on_device.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;

int OfFakeNccl(const char* name) {
  void* const library = dlopen(FAKE_NCCL_LIBRARY, RTLD_NOW);
  return reinterpret_cast<int (*)()>(dlsym(library, name))();
}
int Launches() {
  return OfFakeNccl("FakeNcclLaunches");
}

// Number of ranks, and of consecutive ranks on a host. 0: hosts alternate.
struct Shape {
  const char* name;
  int ranks, node_groups;
  bool consecutive;
};

class NodeGroupsTest : public testing::Test {
 protected:
  NodeGroupsTest() {
    setenv("FAKE_CUDA_DEVICES", "6", 1);
    setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
    TestDevices();
  }
  void TearDown() override {
    unsetenv("FAKE_NCCL_FAIL");
    EXPECT_TRUE(nccl::CommunicatorHandle::AwaitEnds(Deadline::After(20 * kSecond)));
    EXPECT_EQ(OfFakeNccl("FakeNcclOperators"), 0);
  }
  static RanksOptions OnHosts(const Shape& shape, const char* transports = "inproc,node_groups") {
    RanksOptions options;
    options.transports = transports;
    options.host_id = [shape](int rank) {
      return absl::StrCat("host", shape.consecutive ? rank / (shape.ranks / shape.node_groups)
                                                    : rank % shape.node_groups);
    };
    return options;
  }
};

constexpr Shape kTwoOfTwo{"two_of_two", 4, 2, true};
constexpr Shape kThreeOfTwo{"three_of_two", 6, 3, true};

Call CallOn(CallKind kind, const TestMemory& memory, int64_t count, StreamHandle stream) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kF32;
  call.count = count;
  call.in = call.out = {memory.get(), count * 4, MemoryKind::kDevice};
  call.options.device = call.options.on_stream = true;
  call.options.stream = stream;
  return call;
}

class NodeGroupsOf : public NodeGroupsTest, public testing::WithParamInterface<Shape> {};
INSTANTIATE_TEST_SUITE_P(, NodeGroupsOf,
                         testing::Values(kTwoOfTwo, kThreeOfTwo, Shape{"two_of_three", 6, 2, true},
                                         Shape{"two_in_turns", 4, 2, false},
                                         Shape{"three_in_turns", 6, 3, false}),
                         [](const auto& one) { return one.param.name; });

TEST_P(NodeGroupsOf, GiveWhatTheReferenceGives) {
  const Shape shape = GetParam();
  const int before = Launches();
  RunRanks(shape.ranks, OnHosts(shape), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    uint32_t number = 0;
    // Counts: staged, one piece, and several pieces with a rest that the node groups do not divide.
    for (const int64_t count : {int64_t{1001}, int64_t{40'007}, int64_t{1'400'009}}) {
      for (const CallKind kind :
           {CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
            CallKind::kBroadcast, CallKind::kReduce, CallKind::kGather, CallKind::kScan}) {
        for (const bool in_place : {false, true}) {
          const TrialSpec spec{kind,
                               HasParts(kind) && count > 100'000 ? count / 2 : count,
                               static_cast<int>(number) % shape.ranks,
                               in_place,
                               false,
                               number};
          ++number;
          SCOPED_TRACE(absl::StrCat(NameOf(kind), " of ", spec.count, in_place ? " in place" : ""));
          DeviceTrial trial(device, spec, comm->rank(), shape.ranks, stream.get());
          ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
          trial.Check();
        }
      }
    }
  });
  EXPECT_GT(Launches() - before, shape.ranks * 10);
}

// The host starts everything and waits only for the stream.
TEST_P(NodeGroupsOf, FollowEachOtherOnAStream) {
  const Shape shape = GetParam();
  RunRanks(shape.ranks, OnHosts(shape), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device), other(device);
    constexpr int64_t kCount = 100'003;
    const TestMemory memory(device, kCount * 4), tagged(device, kCount * 4);
    std::vector<float> host(kCount, static_cast<float>(comm->rank() + 1)), got(kCount);
    ASSERT_TRUE(device.Copy(memory.get(), host.data(), kCount * 4, stream.get()).ok());
    ASSERT_TRUE(device.Copy(tagged.get(), host.data(), kCount * 4, other.get()).ok());
    std::vector<RefPtr<Work>> works;
    const auto start = [&](const Call& call) {
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    };
    Call call = CallOn(CallKind::kAllReduce, memory, kCount, stream.get());
    start(call);
    call.kind = CallKind::kBroadcast;
    call.root = shape.ranks - 1;
    start(call);
    Call beside = CallOn(CallKind::kAllReduce, tagged, kCount, other.get());
    beside.options.user_tag = 7;
    start(beside);
    call = CallOn(CallKind::kAllReduce, memory, kCount, stream.get());
    call.reduction.op = ReduceOp::kAvg;
    start(call);
    call.reduction.op = ReduceOp::kPreMultipliedSum;
    call.reduction.factor = 0.5;
    start(call);
    for (const auto& work : works) {
      ASSERT_TRUE(work->Wait(Deadline::After(20 * kSecond)));
      ASSERT_EQ(work->status(), absl::OkStatus());
    }
    const auto n = static_cast<float>(shape.ranks);
    for (const auto& [from, on, want] : {std::tuple(&memory, &stream, n * (n + 1) / 2 * 0.5f * n),
                                         std::tuple(&tagged, &other, n * (n + 1) / 2)}) {
      ASSERT_TRUE(device.Copy(got.data(), from->get(), kCount * 4, on->get()).ok());
      on->Finish();
      for (const float one : got) {
        ASSERT_NEAR(one, want, want * 1e-6);
      }
    }
  });
}

// Holds also for numbers whose sum depends on the order.
TEST_F(NodeGroupsTest, AllRanksHaveTheSameBits) {
  constexpr int64_t kCount = 70'001;
  std::vector<std::vector<float>> results(12);
  for (const int round : {0, 1}) {
    RunRanks(6, OnHosts(kThreeOfTwo), [&](const Comm& comm) {
      Device& device = TestDevice(comm->rank());
      TestStream stream(device);
      const TestMemory memory(device, kCount * 4);
      std::vector<float> host(kCount);
      for (size_t i = 0; i < host.size(); ++i) {
        host[i] = 1.f / static_cast<float>(i % 97 + 1 + static_cast<size_t>(comm->rank() * 13));
      }
      ASSERT_TRUE(device.Copy(memory.get(), host.data(), kCount * 4, stream.get()).ok());
      ASSERT_EQ(comm->Run(CallOn(CallKind::kAllReduce, memory, kCount, stream.get())),
                absl::OkStatus());
      ASSERT_TRUE(device.Copy(host.data(), memory.get(), kCount * 4, stream.get()).ok());
      stream.Finish();
      results[static_cast<size_t>(6 * round + comm->rank())] = host;
    });
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(std::memcmp(results[i].data(), results[0].data(), kCount * 4), 0) << i;
  }
}

double SentBy(const Comm& comm, const Call& call) {
  const uint64_t before = comm->stats().bytes_sent;
  EXPECT_EQ(comm->Run(call), absl::OkStatus());
  return static_cast<double>(comm->stats().bytes_sent - before);
}

// The fewest bytes that each of m ranks of a node group can send for I node groups: 2 S (I - 1) /
// (I m) for all_reduce.
TEST_F(NodeGroupsTest, SendNoMoreThanTheirShare) {
  auto options = OnHosts(kThreeOfTwo);
  options.algorithms = "all_reduce:ring,reduce_scatter:ring,all_gather:ring";
  RunRanks(6, options, [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    constexpr int64_t kCount = int64_t{3} << 20, kBytes = kCount * 4;
    const TestMemory memory(device, kBytes), parts(device, kBytes);
    ASSERT_TRUE(device.Fill(memory.get(), 0, kBytes, stream.get()).ok());
    ASSERT_TRUE(device.Fill(parts.get(), 0, kBytes, stream.get()).ok());
    Call all = CallOn(CallKind::kAllReduce, memory, kCount, stream.get());
    ASSERT_EQ(comm->Run(all), absl::OkStatus());  // afterwards the ranks have met
    EXPECT_NEAR(SentBy(comm, all), kBytes * 2. / 3, kBytes / 1000.);
    Call scatter = CallOn(CallKind::kReduceScatter, memory, kCount / 6, stream.get());
    scatter.in.bytes = kBytes;
    scatter.out.data = parts.get();
    EXPECT_NEAR(SentBy(comm, scatter), kBytes / 3., kBytes / 1000.);
    Call gather = CallOn(CallKind::kAllGather, memory, kCount / 6, stream.get());
    gather.in.data = parts.get();
    gather.out.bytes = kBytes;
    EXPECT_NEAR(SentBy(comm, gather), kBytes / 3., kBytes / 1000.);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// Values that all ranks know decide: hosts of different sizes, ranks on different devices,
// different versions.
TEST_F(NodeGroupsTest, OfDifferentSizesGoThroughTheHost) {
  const int before = Launches();
  auto options = OnHosts(kTwoOfTwo);
  options.host_id = [](int rank) { return rank < 3 ? "left" : "right"; };
  RunRanks(5, options, [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    DeviceTrial trial(device, {CallKind::kAllReduce, 40'000, 0, true, false, 1}, comm->rank(), 5,
                      stream.get());
    EXPECT_GT(SentBy(comm, trial.call), 40'000 * 8);
    trial.Check();
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_EQ(Launches(), before);
}

TEST_F(NodeGroupsTest, OfRanksThatShareADeviceGoThroughTheHost) {
  const int before = Launches();
  RunRanks(4, OnHosts(kTwoOfTwo), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank() == 3 ? 2 : comm->rank());
    TestStream stream(device);
    DeviceTrial trial(device, {CallKind::kAllReduce, 40'000, 0, true, false, 1}, comm->rank(), 4,
                      stream.get());
    ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
    trial.Check();
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_EQ(Launches(), before);
}

// NCCL among all ranks takes precedence.
TEST_F(NodeGroupsTest, AreNotAskedWhereNcclHasAllRanks) {
  RunRanks(4, OnHosts(kTwoOfTwo, "inproc,nccl,node_groups"), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    DeviceTrial trial(device, {CallKind::kAllReduce, int64_t{1} << 18, 0, true, false, 1},
                      comm->rank(), 4, stream.get());
    EXPECT_LT(SentBy(comm, trial.call), 1 << 19);
    trial.Check();
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// A group inside a node group offloads its calls completely. A group across node groups has no
// library.
TEST_F(NodeGroupsTest, PartsOfACommunicatorHaveTheirOwn) {
  RunRanks(4, OnHosts(kTwoOfTwo, "inproc,nccl"), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    for (const bool inside : {true, false}) {
      const auto part =
          comm->Split(inside ? comm->rank() / 2 : comm->rank() % 2, comm->rank()).value();
      for (int i = 0; i < 2; ++i) {
        DeviceTrial trial(device, {CallKind::kAllReduce, 40'000, 0, true, false, 1}, part->rank(),
                          2, stream.get());
        ASSERT_EQ(part->Run(trial.call), absl::OkStatus());
        trial.Check();
      }
      EXPECT_LT(part->stats().bytes_sent, 40'000u);  // NCCL also sends across hosts
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    }
  });
}

// A call that waits for the ranks of its node group must not delay a call for which those ranks may
// wait first.
TEST_F(NodeGroupsTest, AMessagePassesACallThatOthersHaveNotMade) {
  auto options = OnHosts(kTwoOfTwo);
  options.timeout_ns = 5 * kSecond;
  RunRanks(4, options, [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device), other(device);
    constexpr int64_t kCount = 100'003;
    const TestMemory memory(device, kCount * 4), message(device, 400);
    ASSERT_TRUE(device.Fill(memory.get(), 0, kCount * 4, stream.get()).ok());
    ASSERT_TRUE(device.Fill(message.get(), 0, 400, other.get()).ok());
    const Call all = CallOn(CallKind::kAllReduce, memory, kCount, stream.get());
    ASSERT_EQ(comm->Run(all), absl::OkStatus());
    const bool sends = comm->rank() == 0;
    Call to = CallOn(sends ? CallKind::kSend : CallKind::kRecv, message, 100, other.get());
    to.root = 1 - comm->rank();
    (sends ? to.out : to.in) = {};
    RefPtr<Work> first;
    if (sends) {
      auto started = comm->Start(all);
      ASSERT_TRUE(started.ok()) << started.status();
      first = *std::move(started);
      // The call proceeds as far as it can.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (comm->rank() < 2) {
      ASSERT_EQ(comm->Run(to), absl::OkStatus());
    }
    if (comm->rank() > 0) {
      ASSERT_EQ(comm->Run(all), absl::OkStatus());
    } else {
      ASSERT_TRUE(first->Wait(Deadline::After(10 * kSecond)));
      EXPECT_EQ(first->status(), absl::OkStatus());
    }
  });
}

TEST_F(NodeGroupsTest, AnErrorOfNcclsEndsTheCommunicatorOnAllRanks) {
  setenv("FAKE_NCCL_FAIL", "3:6", 1);
  RunRanks(4, OnHosts(kTwoOfTwo), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    constexpr int64_t kCount = 100'000;
    const TestMemory memory(device, kCount * 4);
    ASSERT_TRUE(device.Fill(memory.get(), 0, kCount * 4, stream.get()).ok());
    const Call call = CallOn(CallKind::kAllReduce, memory, kCount, stream.get());
    ASSERT_EQ(comm->Run(call), absl::OkStatus());  // two calls of NCCL
    const int64_t begun = Clock::Real().Now();
    const absl::Status status = comm->Run(call);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_LT(Clock::Real().Now() - begun, 5 * kSecond);
    stream.Finish();  // is not blocked any more
  });
}

TEST_F(NodeGroupsTest, ACallThatOneRankDoesNotMakeEndsByItsDeadline) {
  auto options = OnHosts(kTwoOfTwo);
  options.timeout_ns = kSecond;
  RunRanks(4, options, [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    constexpr int64_t kCount = 100'000;
    const TestMemory memory(device, kCount * 4);
    ASSERT_TRUE(device.Fill(memory.get(), 0, kCount * 4, stream.get()).ok());
    const Call call = CallOn(CallKind::kAllReduce, memory, kCount, stream.get());
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
    if (comm->rank() == 3) {
      while (comm->status().ok()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return;
    }
    const int64_t begun = Clock::Real().Now();
    const absl::Status status = comm->Run(call);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_LT(Clock::Real().Now() - begun, 4 * kSecond);
    stream.Finish();
  });
}

}  // namespace
}  // namespace entrain
