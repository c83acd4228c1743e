// Calls on device memory: every collective by every path, compared with the scalar reference, on
// streams, in any mixture, and with errors. Uses the fake driver (tests/support/fake_cuda), whose
// device memory the host cannot access, or the machine's first device if TEST_GPU=1 is set.

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/merging.h"
#include "lib/base/status.h"
#include "lib/comm/merge_state.h"
#include "lib/device/calls/device_call.h"
#include "lib/device/nccl/communicator_handle.h"
#include "tests/comm/merging_calls.h"
#include "tests/device/cuda/device_trial.h"
#include "tests/device/cuda/on_device.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// Must run before the libraries are looked for.
const bool kFakes = [] {
  if (!OnRealDevice()) {
    setenv("FAKE_CUDA_DEVICES", "4", 1);                   // NOLINT(concurrency-mt-unsafe)
    setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
  }
  return !OnRealDevice();
}();

bool AllocatingWaits() {
  const char* const waits = std::getenv("FAKE_CUDA_ALLOC_WAITS");  // NOLINT(concurrency-mt-unsafe)
  return waits != nullptr && std::string(waits) == "1";
}

constexpr CallKind kKinds[] = {
    CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather, CallKind::kBroadcast,
    CallKind::kReduce,    CallKind::kGather,        CallKind::kScatter,   CallKind::kAllToAll,
    CallKind::kScan,      CallKind::kExclusiveScan};

class EveryWay : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (offloaded() && size() > TestDevices().count()) {
      GTEST_SKIP() << "NCCL wants a device for each of " << size() << " ranks";
    }
  }
  RanksOptions options() const { return {.transports = std::get<0>(GetParam())}; }
  int size() const { return std::get<1>(GetParam()); }
  bool offloaded() const { return options().transports.find("nccl") != std::string::npos; }
  Device& DeviceOf(const Comm& comm) const { return TestDevice(offloaded() ? comm->rank() : 0); }
  // The first call joins NCCL. If allocating waits for the device, this call must not hold a
  // stream.
  void MeetFirst(const Comm& comm, Device& device, StreamHandle stream) const {
    if (!offloaded() || !AllocatingWaits()) {
      return;
    }
    TestMemory memory(device, 400);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 400, stream).ok());
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    call.in = call.out = {memory.get(), 400, MemoryKind::kDevice};
    call.options.device = call.options.on_stream = true;
    call.options.stream = stream;
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
  }
};

INSTANTIATE_TEST_SUITE_P(, EveryWay,
                         testing::Combine(testing::Values("inproc", "inproc,nccl"),
                                          testing::Values(1, 2, 4)),
                         [](const auto& one) {
                           std::string name =
                               absl::StrCat(std::get<0>(one.param), "_", std::get<1>(one.param));
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

TEST_P(EveryWay, GivesWhatTheReferenceGives) {
  RunRanks(size(), options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    uint32_t number = 0;
    // Freeing device memory waits for all streams of the process, which are those of all ranks
    // here. So memory is freed only while no rank is in a call.
    std::vector<std::unique_ptr<DeviceTrial>> trials;
    // Counts: nothing, few, odd, many, and several pieces.
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{1001}, int64_t{40'000}, int64_t{1'300'007} / size()}) {
      for (const CallKind kind : kKinds) {
        for (const bool in_place : {false, true}) {
          for (const bool uneven : {false, true}) {
            if ((uneven && (!HasParts(kind) || count > 40'000)) || (in_place && count == 0)) {
              continue;
            }
            const TrialSpec spec{kind,     count,  static_cast<int>(number) % size(),
                                 in_place, uneven, number};
            ++number;
            SCOPED_TRACE(absl::StrCat(NameOf(kind), " of ", count, in_place ? " in place" : "",
                                      uneven ? " uneven" : ""));
            trials.push_back(
                std::make_unique<DeviceTrial>(device, spec, comm->rank(), size(), stream.get()));
            ASSERT_EQ(comm->Run(trials.back()->call), absl::OkStatus());
            trials.back()->Check();
          }
        }
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      trials.clear();
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    }
  });
}

// The host starts everything and waits only for its stream.
TEST_P(EveryWay, StreamsWaitForCallsAndCallsForStreams) {
  RunRanks(size(), options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    constexpr int64_t kCount = 50'000;
    const auto bytes = static_cast<int64_t>(kCount * sizeof(int64_t));
    TestMemory buffer(device, bytes);
    std::vector<int64_t> values(kCount, comm->rank() + 1);
    ASSERT_TRUE(device.Copy(buffer.get(), values.data(), bytes, stream.get()).ok());
    MeetFirst(comm, device, stream.get());
    constexpr int kRounds = 5;
    std::vector<RefPtr<Work>> works;
    for (int i = 0; i < kRounds; ++i) {
      Call call;
      call.kind = CallKind::kAllReduce;
      call.dtype = DType::kI64;
      call.in = call.out = {buffer.get(), bytes, MemoryKind::kDevice};
      call.count = kCount;
      call.options.device = call.options.on_stream = true;
      call.options.stream = stream.get();
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    int64_t want = size() * (size() + 1) / 2;
    for (int i = 1; i < kRounds; ++i) {
      want *= size();
    }
    std::vector<int64_t> result(kCount);
    // Page-locked, so that the copy is enqueued and the host does not wait for it.
    const auto pinned = device.AllocatePinned(bytes);
    ASSERT_TRUE(pinned.ok());
    ASSERT_TRUE(device.Copy(*pinned, buffer.get(), bytes, stream.get()).ok());
    stream.Finish();
    std::memcpy(result.data(), *pinned, static_cast<size_t>(bytes));
    device.FreePinned(*pinned);
    EXPECT_THAT(result, testing::Each(want));
    for (const auto& work : works) {
      EXPECT_TRUE(work->Wait(Deadline::After(10 * kSecond)));
      EXPECT_EQ(work->status(), absl::OkStatus());
    }
  });
}

TEST_P(EveryWay, ManyAtOnceWithTagsInAnyOrderAndSendsBetweenThem) {
  if (size() == 1) {
    GTEST_SKIP() << "nobody to send to";
  }
  RunRanks(size(), options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    const int rank = comm->rank();
    MeetFirst(comm, device, stream.get());
    std::vector<std::unique_ptr<DeviceTrial>> trials;
    std::vector<RefPtr<Work>> works;
    const auto start = [&](const TrialSpec& spec) {
      trials.push_back(std::make_unique<DeviceTrial>(device, spec, rank, size(), stream.get()));
      auto work = comm->Start(trials.back()->call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    };
    constexpr int64_t kLarge = 700'000;  // more than one piece
    // Not on the stream of the others: calls that wait for each other's stream could not be made in
    // any order.
    for (int i = 0; i < 6; ++i) {
      const int tag = rank % 2 == 0 ? i : 5 - i;
      TrialSpec spec{CallKind::kAllReduce,      tag % 2 == 0 ? kLarge : 100, 0, false, false,
                     static_cast<uint32_t>(tag)};
      trials.push_back(std::make_unique<DeviceTrial>(device, spec, rank, size(), stream.get()));
      stream.Finish();
      Call& call = trials.back()->call;
      call.options.user_tag = tag;
      call.options.on_stream = false;
      call.options.stream = nullptr;
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    start({CallKind::kAllReduce, kLarge, 0, true, false, 7});
    start({CallKind::kAllGather, 30'000, 0, false, false, 8});
    for (const auto& work : works) {
      ASSERT_TRUE(work->Wait(Deadline::After(20 * kSecond)));
      ASSERT_EQ(work->status(), absl::OkStatus());
    }
    stream.Finish();
    for (const auto& trial : trials) {
      trial->Check();
    }

    // Around a ring, with more bytes than are sent before the receive is posted.
    TestMemory out(device, kLarge * 8), in(device, kLarge * 8);
    ASSERT_TRUE(
        device.Fill(out.get(), static_cast<uint8_t>(rank + 1), kLarge * 8, stream.get()).ok());
    std::vector<RefPtr<Work>> messages;
    for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
      Call call;
      call.kind = kind;
      call.count = kLarge * 8;
      call.options.device = true;
      call.root = (rank + (kind == CallKind::kSend ? 1 : size() - 1)) % size();
      BufferView& buffer = kind == CallKind::kSend ? call.in : call.out;
      buffer = {kind == CallKind::kSend ? out.get() : in.get(), kLarge * 8, MemoryKind::kDevice};
      if (kind == CallKind::kSend) {
        stream.Finish();
      }
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      messages.push_back(*std::move(work));
    }
    for (const auto& work : messages) {
      ASSERT_TRUE(work->Wait(Deadline::After(20 * kSecond)));
      ASSERT_EQ(work->status(), absl::OkStatus());
    }
    std::vector<uint8_t> got(kLarge * 8);
    ASSERT_TRUE(device.Copy(got.data(), in.get(), kLarge * 8, stream.get()).ok());
    stream.Finish();
    const auto from = static_cast<uint8_t>((rank + size() - 1) % size() + 1);
    EXPECT_THAT(got, testing::Each(from));
  });
}

// Reductions other than the built-in ones give the same bits on the device as on the host.
TEST_P(EveryWay, WeightsFactorsAndPackedReductionsGiveTheHostsBits) {
  const int n = size();
  RunRanks(n, options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    constexpr int64_t kCount = 60'001;
    std::vector<float> values(kCount);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>((static_cast<int>(i) * 37 + comm->rank() * 11) % 201 - 100) / 7;
    }
    auto weighted = std::make_shared<Merging>();
    for (int r = 0; r < n; ++r) {
      weighted->weights.push_back(1 + r * 0.5);
    }
    Merging none;
    none.weights.assign(static_cast<size_t>(n), 0);
    Reduction mean, factor, nothing;
    mean.op = nothing.op = ReduceOp::kWeightedMean;
    mean.merging = weighted;
    nothing.merging = std::make_shared<const Merging>(none);
    factor.op = ReduceOp::kPreMultipliedSum;
    factor.factor = 0.25 * (comm->rank() + 1);
    // Made separately for host and device, because they remember earlier calls.
    const auto packed = [] { return Gta(Sparsified(Merging(), Sparsification::kMagnitude, 0.1)); };
    const auto encoded = [] { return Gta(Encoded(WireFormat::kInt8)); };
    const std::vector<std::pair<Reduction, Reduction>> pairs = {
        {mean, mean},           {factor, factor},   {packed(), packed()},
        {encoded(), encoded()}, {nothing, nothing}, {Gta(none), Gta(none)}};
    for (const auto& [for_host, for_device] : pairs) {
      std::vector<float> on_host(kCount), on_device(kCount);
      const auto bytes = static_cast<int64_t>(kCount * sizeof(float));
      TestMemory in(device, bytes), out(device, bytes);
      ASSERT_TRUE(device.Copy(in.get(), values.data(), bytes, stream.get()).ok());
      Call call;
      call.kind = CallKind::kAllReduce;
      call.dtype = DType::kF32;
      call.reduction = for_host;
      call.count = kCount;
      call.in = {values.data(), bytes, MemoryKind::kHost};
      call.out = {on_host.data(), bytes, MemoryKind::kHost};
      call.options.determinism = Determinism::kRankOrder;
      ASSERT_EQ(comm->Run(call), absl::OkStatus());
      call.in = {in.get(), bytes, MemoryKind::kDevice};
      call.out = {out.get(), bytes, MemoryKind::kDevice};
      call.reduction = for_device;
      call.options.device = call.options.on_stream = true;
      call.options.stream = stream.get();
      ASSERT_EQ(comm->Run(call), absl::OkStatus());
      ASSERT_TRUE(device.Copy(on_device.data(), out.get(), bytes, stream.get()).ok());
      stream.Finish();
      EXPECT_EQ(std::memcmp(on_host.data(), on_device.data(), static_cast<size_t>(bytes)), 0)
          << NameOf(for_host.op);
    }
  });
}

// Sparsified contributions go through the host. The same elements are kept, call after call.
TEST_P(EveryWay, SparsifiedReductionsKeepWhatTheHostKeeps) {
  const int n = size();
  RunRanks(n, options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    std::vector<Merging> settings = {
        Sparsified(Merging(), Sparsification::kMagnitude, 0.07),
        Sparsified(Merging(), Sparsification::kRandom, 0.2, 11),
        Sparsified(Merging(), Sparsification::kRescaledRandom, 0.2, 12),
        Sparsified(Encoded(WireFormat::kInt8), Sparsification::kMagnitude, 0.3),
        Sparsified(Merging(), Sparsification::kMagnitude, 0.1)};
    settings.back().error_feedback = true;
    if (n > 1) {
      settings.push_back(Sparsified(Merging(), Sparsification::kRandom, 0.5));
      settings.back().weights.assign(static_cast<size_t>(n), 1);
      settings.back().weights[0] = 0;
    }
    for (const Merging& merging : settings) {
      for (const CallKind kind : {CallKind::kAllReduce, CallKind::kReduceScatter}) {
        const Reduction for_host = Gta(merging), for_device = Gta(merging);
        const int64_t count = 10'007, in_count = kind == CallKind::kAllReduce ? count : count * n;
        const auto in_bytes = static_cast<int64_t>(sizeof(float)) * in_count,
                   out_bytes = static_cast<int64_t>(sizeof(float)) * count;
        TestMemory in(device, in_bytes), out(device, out_bytes);
        for (int round = 0; round < 3; ++round) {
          std::vector<float> values(static_cast<size_t>(in_count)),
              on_host(static_cast<size_t>(count)), on_device(on_host.size());
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(
                            (static_cast<int>(i) * 37 + comm->rank() * 11 + round) % 201 - 100) /
                        8;
          }
          ASSERT_TRUE(device.Copy(in.get(), values.data(), in_bytes, stream.get()).ok());
          Call call;
          call.kind = kind;
          call.dtype = DType::kF32;
          call.count = count;
          call.reduction = for_host;
          call.in = {values.data(), in_bytes, MemoryKind::kHost};
          call.out = {on_host.data(), out_bytes, MemoryKind::kHost};
          ASSERT_EQ(comm->Run(call), absl::OkStatus());
          call.reduction = for_device;
          call.in = {in.get(), in_bytes, MemoryKind::kDevice};
          call.out = {out.get(), out_bytes, MemoryKind::kDevice};
          call.options.device = call.options.on_stream = true;
          call.options.stream = stream.get();
          ASSERT_EQ(comm->Run(call), absl::OkStatus());
          ASSERT_TRUE(device.Copy(on_device.data(), out.get(), out_bytes, stream.get()).ok());
          stream.Finish();
          ASSERT_EQ(std::memcmp(on_host.data(), on_device.data(), static_cast<size_t>(out_bytes)),
                    0)
              << Describe(merging, DType::kF32, n, static_cast<size_t>(count)) << ", round "
              << round;
        }
        EXPECT_EQ(for_host.merge_state->Save(), for_device.merge_state->Save());
      }
    }
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST(DeviceCalls, ADensityThatKeepsNothingHarmsNobody) {
  TestDevices();
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    TestStream stream(TestDevice());
    TestMemory memory(TestDevice(), 400);
    ASSERT_TRUE(TestDevice().Fill(memory.get(), 0, 400, stream.get()).ok());
    stream.Finish();
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    call.in = call.out = {memory.get(), 400, MemoryKind::kDevice};
    call.options.device = true;
    call.reduction = Gta(Sparsified(Merging(), Sparsification::kMagnitude, 0.001));
    const absl::Status refused = comm->Run(call);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    call.reduction = {};
    EXPECT_EQ(comm->Run(call), absl::OkStatus());
  });
}

// Checks which path has run, by the bytes that the transports send.
TEST_P(EveryWay, IsTheWayThatIsTaken) {
  ASSERT_EQ(kFakes, !OnRealDevice());
  ENTRAIN_NEEDS_FAKE();
  RunRanks(size(), options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    const TrialSpec spec{CallKind::kAllReduce, 40'000, 0, false, false, 1};
    DeviceTrial trial(device, spec, comm->rank(), size(), stream.get());
    ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
    trial.Check();
    const int64_t sent = static_cast<int64_t>(comm->stats().bytes_sent);
    EXPECT_EQ(!offloaded() && size() > 1, sent > 40'000 * 4) << sent;
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// All memory that the process keeps is there after the first round.
TEST_P(EveryWay, LeavesNothingBehind) {
  ENTRAIN_NEEDS_FAKE();
  std::vector<int> live[2];
  for (std::vector<int>& after : live) {
    RunRanks(size(), options(), [&](const Comm& comm) {
      Device& device = DeviceOf(comm);
      TestStream stream(device);
      std::vector<std::unique_ptr<DeviceTrial>> trials;
      for (const CallKind kind :
           {CallKind::kAllReduce, CallKind::kScan, CallKind::kAllToAll, CallKind::kBroadcast}) {
        const TrialSpec spec{kind, 40'000, 0, true, false, 1};
        trials.push_back(
            std::make_unique<DeviceTrial>(device, spec, comm->rank(), size(), stream.get()));
        ASSERT_EQ(comm->Run(trials.back()->call), absl::OkStatus());
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      trials.clear();
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    });
    ASSERT_TRUE(nccl::CommunicatorHandle::AwaitEnds(Deadline::After(20 * kSecond)));
    after = LiveOnFake();
  }
  EXPECT_EQ(live[0], live[1]);
}

// Shows also that no call after the first of its size allocates memory.
TEST_P(EveryWay, CallsOfOneSizeFindTheirMemoryOnce) {
  ENTRAIN_NEEDS_FAKE();
  RunRanks(size(), options(), [&](const Comm& comm) {
    Device& device = DeviceOf(comm);
    TestStream stream(device);
    std::vector<std::unique_ptr<DeviceTrial>> trials;
    for (const int64_t count : {1, 100, 40'000}) {
      for (const CallKind kind : {CallKind::kAllReduce, CallKind::kScan, CallKind::kAllToAll}) {
        const TrialSpec spec{kind, count, 0, true, false, 1};
        trials.push_back(
            std::make_unique<DeviceTrial>(device, spec, comm->rank(), size(), stream.get()));
      }
    }
    std::vector<int> found;
    for (int round = 0; round < 3; ++round) {
      for (const auto& trial : trials) {
        ASSERT_EQ(comm->Run(trial->call), absl::OkStatus());
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      found.push_back(CallsOf("cuMemAlloc_v2") + CallsOf("cuMemHostAlloc"));
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    }
    EXPECT_EQ(found[1], found[2]);
  });
}

// ---- Errors

TEST(DeviceCalls, RefuseWhatIsNotWhereTheCallSays) {
  TestDevices();
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    std::vector<float> host(100);
    TestMemory memory(TestDevice(), 400);
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    call.in = {host.data(), 400, MemoryKind::kHost};
    call.out = {memory.get(), 400, MemoryKind::kDevice};
    call.options.device = true;
    const absl::Status refused = comm->Run(call);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("in: "));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("ordinary host memory"));
    // The communicator still works.
    call.in = call.out;
    TestStream stream(TestDevice());
    ASSERT_TRUE(TestDevice().Fill(memory.get(), 0, 400, stream.get()).ok());
    stream.Finish();
    EXPECT_EQ(comm->Run(call), absl::OkStatus());
    if (!OnRealDevice()) {
      TestMemory other(TestDevice(1), 400);
      call.in = call.out = {other.get(), 400, MemoryKind::kDevice};
      EXPECT_THAT(std::string(comm->Run(call).message()), HasSubstr("on device 1"));
    }
  });
}

TEST(DeviceCalls, HostAndDeviceRanksAreAMismatch) {
  TestDevices();
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    std::vector<float> host(100);
    TestMemory memory(TestDevice(), 400);
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    const bool device = comm->rank() == 0;
    call.in = call.out = {device ? static_cast<void*>(memory.get()) : host.data(), 400};
    call.options.device = device;
    const absl::Status status = comm->Run(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("in device memory"));
  });
}

// A stream never reaches the call. The call's timeout limits this wait too, and all ranks learn of
// it. This must not be the first call of its kind, because that call allocates memory, for which
// the driver may wait for all streams.
TEST(DeviceCalls, WaitForAStreamNoLongerThanTheirTime) {
  TestDevices();
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    Device& device = TestDevice(OnRealDevice() ? 0 : comm->rank());
    TestStream stream(device);
    const auto word = device.AllocatePinned(64);
    ASSERT_TRUE(word.ok());
    auto* const open = static_cast<uint32_t*>(*word);
    *open = 0;
    TestMemory memory(device, 400);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 400, stream.get()).ok());
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    call.in = call.out = {memory.get(), 400, MemoryKind::kDevice};
    call.options.device = call.options.on_stream = true;
    call.options.stream = stream.get();
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 0) {
      ASSERT_TRUE(device.AwaitWord(stream.get(), open, 1).ok());
    }
    const int64_t timeout = (comm->rank() == 0 ? 200 : 2000) * kMillisecond;
    call.options = {.deadline = Deadline::After(timeout),
                    .timeout_ns = timeout,
                    .device = true,
                    .on_stream = true,
                    .stream = stream.get()};
    const int64_t begun = Clock::Real().Now();
    const absl::Status status = comm->Run(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_LT(Clock::Real().Now() - begun, 5 * kSecond);
    EXPECT_THAT(std::string(status.message()), HasSubstr("waiting for what its stream had to do"));
    std::atomic_ref<uint32_t>(*open).store(1);
    stream.Finish();  // nothing waits for the call any more
    device.FreePinned(*word);
  });
}

// The longer no event comes, the longer are the naps of the runner. A time without calls must not
// count: otherwise 40 naps would take the full millisecond each, together 40 ms.
TEST(DeviceCalls, BeginWithShortNapsAfterATimeWithoutCalls) {
  ENTRAIN_NEEDS_FAKE();
  TestDevices();
  RunRanks(1, [&](const Comm& comm) {
    Device& device = TestDevice();
    TestStream stream(device);
    const auto word = device.AllocatePinned(64);
    ASSERT_TRUE(word.ok());
    auto* const open = static_cast<uint32_t*>(*word);
    *open = 0;
    TestMemory memory(device, 400);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 400, stream.get()).ok());
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    call.in = call.out = {memory.get(), 400, MemoryKind::kDevice};
    call.options.device = call.options.on_stream = true;
    call.options.stream = stream.get();
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
    // Other load may delay the runner, but not every time.
    bool quick = false;
    for (uint32_t round = 1; round <= 100 && !quick; ++round) {
      // The time without calls.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ASSERT_TRUE(device.AwaitWord(stream.get(), open, round).ok());
      const auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      const auto time_of_looks = [&](int count) {
        const int looks = CallsOf("cuEventQuery") + count;
        const int64_t begun = Clock::Real().Now();
        while (CallsOf("cuEventQuery") < looks && !(*work)->done()) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        return Clock::Real().Now() - begun;
      };
      // Naps grow by a tenth of the wait, up to 1 ms: after the first 40 they are long.
      const int64_t first = time_of_looks(40), later = time_of_looks(40);
      quick = !(*work)->done() && 2 * first < later;
      std::atomic_ref<uint32_t>(*open).store(round);
      EXPECT_TRUE((*work)->Wait(Deadline::After(20 * kSecond)));
      EXPECT_EQ((*work)->status(), absl::OkStatus());
    }
    EXPECT_TRUE(quick);
    stream.Finish();
    device.FreePinned(*word);
  });
}

TEST(DeviceCalls, OfADestroyedCommunicatorAreAborted) {
  TestDevices();
  absl::Notification ended;
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    auto part = comm->Split(0, comm->rank());
    ASSERT_TRUE(part.ok()) << part.status();
    if (comm->rank() == 1) {
      EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
      return;
    }
    TestStream stream(TestDevice());
    TestMemory memory(TestDevice(), 400);
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 100;
    call.in = call.out = {memory.get(), 400, MemoryKind::kDevice};
    call.options.device = call.options.on_stream = true;
    call.options.stream = stream.get();
    auto work = (*part)->Start(call);
    ASSERT_TRUE(work.ok());
    part->reset();
    EXPECT_TRUE((*work)->Wait(Deadline::After(5 * kSecond)));
    ended.Notify();
    EXPECT_EQ((*work)->status().code(), absl::StatusCode::kAborted);
    stream.Finish();
  });
}

// An error of the driver ends the communicator on all ranks, with the driver's text.
TEST(DeviceCalls, EndWithWhatTheDriverSaid) {
  ENTRAIN_NEEDS_FAKE();
  TestDevices();
  std::atomic<int> failed{0};
  std::barrier armed(2);  // a library barrier would end with the first error
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    TestMemory memory(TestDevice(), 4 * 40'000);
    TestStream stream(TestDevice());
    ASSERT_TRUE(TestDevice().Fill(memory.get(), 0, 4 * 40'000, stream.get()).ok());
    stream.Finish();
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.count = 40'000;
    call.in = call.out = {memory.get(), 4 * 40'000, MemoryKind::kDevice};
    call.options.device = true;
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
    armed.arrive_and_wait();
    if (comm->rank() == 0) {
      FailCall("cuMemcpyAsync", 1, 719);
    }
    armed.arrive_and_wait();
    const absl::Status status = comm->Run(call);
    failed += status.ok() ? 0 : 1;
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuMemcpyAsync"));
  });
  EXPECT_EQ(failed, 2);
}

// After an error, the call is not over until the device has finished what it was given before.
TEST(DeviceCalls, AreNotOverBeforeCopiesToTheHost) {
  ENTRAIN_NEEDS_FAKE();
  TestDevices();
  std::barrier together(2);
  RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
    Device& device = TestDevice();
    TestStream stream(device);
    const TrialSpec spec{CallKind::kAllToAll, 300'000, 0, false, false, 1};
    DeviceTrial trial(device, spec, comm->rank(), 2, stream.get());
    ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
    stream.Finish();
    trial.call.options.on_stream = false;
    trial.call.options.stream = nullptr;
    together.arrive_and_wait();
    if (comm->rank() == 1) {
      together.arrive_and_wait();
      return;
    }
    FailCall("cuMemcpyAsync", 2, 719);
    PauseFake(true);
    const auto work = comm->Start(trial.call);
    ASSERT_TRUE(work.ok()) << work.status();
    EXPECT_FALSE((*work)->Wait(Deadline::After(300 * kMillisecond)));
    EXPECT_FALSE(comm->status().ok());
    together.arrive_and_wait();
    PauseFake(false);
    EXPECT_TRUE((*work)->Wait(Deadline::After(10 * kSecond)));
    EXPECT_THAT(std::string((*work)->status().message()), HasSubstr("cuMemcpyAsync"));
  });
}

// If a rank has no bytes, its device is known only from the stream or the thread.
TEST(DeviceCalls, WithoutBuffersAreOnTheDeviceOfTheirStream) {
  ENTRAIN_NEEDS_FAKE();
  for (const bool has_stream : {false, true}) {
    TestDevices();
    RunRanks(2, {.transports = "inproc"}, [&](const Comm& comm) {
      Device& device = TestDevice(2 + comm->rank());
      TestStream stream(device);
      Call call;
      call.kind = CallKind::kAllReduce;
      call.dtype = DType::kF32;
      call.options.device = call.options.on_stream = true;
      call.options.stream = has_stream ? stream.get() : nullptr;
      ASSERT_TRUE(has_stream || device.Enter().ok());
      ASSERT_EQ(comm->Run(call), absl::OkStatus());
      if (!has_stream) {
        device.Leave();
      }
      TestMemory memory(device, 400);
      ASSERT_TRUE(device.Fill(memory.get(), 0, 400, stream.get()).ok());
      call.count = 100;
      call.in = call.out = {memory.get(), 400, MemoryKind::kDevice};
      call.options.stream = stream.get();
      EXPECT_EQ(comm->Run(call), absl::OkStatus());
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

// If the caller waits, no stream has to wait: not even the other rank's next call on the default
// stream is delayed.
TEST(DeviceCalls, ThatBlockHoldNoStream) {
  TestDevices();
  RunRanks(2, {.transports = "inproc", .timeout_ns = 5 * kSecond}, [&](const Comm& comm) {
    TestMemory memory(TestDevice(), 400'000);
    ASSERT_TRUE(TestDevice().Fill(memory.get(), 0, 400'000, nullptr).ok());
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.options.device = call.options.on_stream = true;
    for (const int64_t count : {100, 100'000, 100, 100'000}) {
      call.count = count;
      call.in = call.out = {memory.get(), count * 4, MemoryKind::kDevice};
      EXPECT_EQ(comm->Run(call), absl::OkStatus());
    }
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace entrain
