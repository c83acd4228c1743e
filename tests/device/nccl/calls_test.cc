// Communicators that hand collectives on device memory to NCCL: with the fakes of NCCL and of the
// driver, one device per rank, compared with the reference.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
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

constexpr int kRanks = 3;

int OfFakeNccl(const char* name) {
  void* const library = dlopen(FAKE_NCCL_LIBRARY, RTLD_NOW);
  return reinterpret_cast<int (*)()>(dlsym(library, name))();
}

class OffloadedCalls : public testing::Test {
 protected:
  OffloadedCalls() {
    setenv("FAKE_CUDA_DEVICES", absl::StrCat(kRanks).c_str(), 1);
    setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
    TestDevices();
  }
  void TearDown() override {
    for (const char* const name :
         {"FAKE_NCCL_FAIL", "FAKE_NCCL_CONNECT", "FAKE_NCCL_HANG", "FAKE_NCCL_ABORT_MS"}) {
      unsetenv(name);
    }
    EXPECT_TRUE(nccl::CommunicatorHandle::AwaitEnds(Deadline::After(20 * kSecond)));
    EXPECT_EQ(OfFakeNccl("FakeNcclOperators"), 0);
  }
  static RanksOptions options(int64_t timeout_ns = 20 * kSecond) {
    return {.transports = "inproc,nccl", .timeout_ns = timeout_ns};
  }
};

// Calls are offloaded or not, as their kind, operator and type decide.
TEST_F(OffloadedCalls, EveryCollectiveGivesWhatTheReferenceGives) {
  const int before = OfFakeNccl("FakeNcclLaunches");
  RunRanks(kRanks, options(), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    uint32_t number = 0;
    for (const int64_t count : {int64_t{1}, int64_t{1001}, int64_t{40'000}}) {
      for (const CallKind kind :
           {CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
            CallKind::kBroadcast, CallKind::kReduce, CallKind::kGather, CallKind::kScatter,
            CallKind::kAllToAll, CallKind::kScan}) {
        for (const bool in_place : {false, true}) {
          for (const bool uneven : {false, true}) {
            if ((uneven && !HasParts(kind)) || (in_place && count == 0)) {
              continue;
            }
            SCOPED_TRACE(absl::StrCat(NameOf(kind), " of ", count, in_place ? " in place" : "",
                                      uneven ? " uneven" : ""));
            DeviceTrial trial(
                device, {kind, count, static_cast<int>(number) % kRanks, in_place, uneven, number},
                comm->rank(), kRanks, stream.get());
            ++number;
            ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
            trial.Check();
          }
        }
      }
    }
  });
  // Most of about a hundred calls on each rank.
  EXPECT_GT(OfFakeNccl("FakeNcclLaunches") - before, kRanks * 50);
}

Call Sum(const TestMemory& memory, int64_t count, StreamHandle stream) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = count;
  call.in = call.out = {memory.get(), count * 4, MemoryKind::kDevice};
  call.options.device = call.options.on_stream = true;
  call.options.stream = stream;
  return call;
}

TEST_F(OffloadedCalls, RanksOfOneDeviceDoWithoutIt) {
  const int before = OfFakeNccl("FakeNcclLaunches");
  RunRanks(2, options(), [&](const Comm& comm) {
    TestStream stream(TestDevice());
    const TestMemory memory(TestDevice(), 4000);
    std::vector<float> host(1000, 1.5f);
    ASSERT_TRUE(TestDevice().Copy(memory.get(), host.data(), 4000, stream.get()).ok());
    ASSERT_EQ(comm->Run(Sum(memory, 1000, stream.get())), absl::OkStatus());
    ASSERT_TRUE(TestDevice().Copy(host.data(), memory.get(), 4000, stream.get()).ok());
    stream.Finish();
    EXPECT_EQ(host, std::vector<float>(1000, 3.f));
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_EQ(OfFakeNccl("FakeNcclLaunches"), before);
}

// A communicator that was split from another meets anew.
TEST_F(OffloadedCalls, PartsOfACommunicatorHaveTheirOwn) {
  RunRanks(kRanks, options(), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const auto part = comm->Split(comm->rank() / 2, comm->rank()).value();
    for (int i = 0; i < 2; ++i) {
      DeviceTrial trial(device, {CallKind::kAllReduce, 40'000, 0, true, false, 1}, part->rank(),
                        part->size(), stream.get());
      ASSERT_EQ(part->Run(trial.call), absl::OkStatus());
      trial.Check();
    }
    EXPECT_LT(part->stats().bytes_sent, 40'000u);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST_F(OffloadedCalls, AnErrorOfNcclsEndsTheCommunicatorOnAllRanks) {
  setenv("FAKE_NCCL_FAIL", "1:6", 1);
  std::barrier together(2);  // a library barrier would end with the first failure
  RunRanks(2, options(), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory memory(device, 4000);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 4000, stream.get()).ok());
    ASSERT_EQ(comm->Run(Sum(memory, 1000, stream.get())), absl::OkStatus());
    together.arrive_and_wait();
    const int64_t begun = Clock::Real().Now();
    const absl::Status status = comm->Run(Sum(memory, 1000, stream.get()));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_LT(Clock::Real().Now() - begun, 2 * kSecond);
    stream.Finish();  // is not blocked any more
  });
}

Call ScanOf(const TestMemory& memory, int64_t count, StreamHandle stream) {
  Call call = Sum(memory, count, stream);
  call.kind = CallKind::kScan;  // not offloaded
  return call;
}

// NCCL begins when all ranks have come, and one rank comes only when another call is over.
TEST_F(OffloadedCalls, ACallThatHasNotBegunHoldsUpNoOther) {
  setenv("FAKE_NCCL_CONNECT", "1", 1);
  RunRanks(2, options(), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device), other(device);
    const TestMemory memory(device, 4000), tagged(device, 4000);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 4000, stream.get()).ok());
    ASSERT_TRUE(device.Fill(tagged.get(), 0, 4000, other.get()).ok());
    ASSERT_EQ(comm->Run(ScanOf(memory, 1000, stream.get())), absl::OkStatus());
    RefPtr<Work> first;
    if (comm->rank() == 0) {
      const int64_t begun = Clock::Real().Now();
      auto started = comm->Start(Sum(memory, 1000, stream.get()));
      ASSERT_TRUE(started.ok()) << started.status();
      EXPECT_LT(Clock::Real().Now() - begun, 2 * kSecond);
      first = *std::move(started);
    }
    Call call = Sum(tagged, 1000, other.get());
    call.options.user_tag = 3;
    ASSERT_EQ(comm->Run(call), absl::OkStatus());
    if (comm->rank() == 0) {
      ASSERT_TRUE(first->Wait(Deadline::After(10 * kSecond)));
      EXPECT_EQ(first->status(), absl::OkStatus());
    } else {
      ASSERT_EQ(comm->Run(Sum(memory, 1000, stream.get())), absl::OkStatus());
    }
    stream.Finish();
  });
}

// A rank that waits in NCCL for ranks that will not come is released by the end of the
// communicator.
void AbortedWhileOneWaits(const RanksOptions& options, bool meets_first) {
  RunRanks(2, options, [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory memory(device, 4000);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 4000, stream.get()).ok());
    if (meets_first) {
      ASSERT_EQ(comm->Run(ScanOf(memory, 1000, stream.get())), absl::OkStatus());
    }
    if (comm->rank() == 1 && meets_first) {
      // The other rank is in its call by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm->Abort("enough");
      return;
    }
    const int64_t begun = Clock::Real().Now();
    auto work = comm->Start(Sum(memory, 1000, stream.get()));
    ASSERT_TRUE(work.ok()) << work.status();
    if (comm->rank() == 1) {
      EXPECT_FALSE((*work)->Wait(Deadline::After(100 * kMillisecond)));
      comm->Abort("enough");
    }
    ASSERT_TRUE((*work)->Wait(Deadline::After(10 * kSecond)));
    EXPECT_TRUE(absl::IsAborted((*work)->status())) << (*work)->status();
    EXPECT_LT(Clock::Real().Now() - begun, 5 * kSecond);
    stream.Finish();
  });
}

TEST_F(OffloadedCalls, ACallThatHasNotBegunEndsWithTheCommunicator) {
  setenv("FAKE_NCCL_CONNECT", "1", 1);
  AbortedWhileOneWaits(options(), true);
}

// The copies for NCCL wait on the stream for the caller's work, although NCCL has not begun and was
// destroyed.
TEST_F(OffloadedCalls, ACallThatHasNotBegunIsOverWhenItsCopiesAre) {
  setenv("FAKE_NCCL_CONNECT", "1", 1);
  RunRanks(2, options(), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory in(device, 8000), out(device, 8000);
    ASSERT_TRUE(device.Fill(in.get(), 1, 8000, stream.get()).ok());
    ASSERT_TRUE(device.Fill(out.get(), 2, 8000, stream.get()).ok());
    ASSERT_EQ(comm->Run(ScanOf(in, 1000, stream.get())), absl::OkStatus());
    if (comm->rank() == 1) {
      // The other rank is in its call by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm->Abort("enough");
      return;
    }
    auto* const word = static_cast<uint32_t*>(*device.AllocatePinned(sizeof(uint32_t)));
    *word = 0;
    ASSERT_TRUE(device.AwaitWord(stream.get(), word, 1).ok());
    Call call = Sum(in, 1000, stream.get());
    call.kind = CallKind::kAllToAll;
    call.in.bytes = 8000;
    call.out = {out.get(), 8000, MemoryKind::kDevice};
    const auto work = comm->Start(call);
    ASSERT_TRUE(work.ok()) << work.status();
    // Longer than the time that NCCL has to abort.
    EXPECT_FALSE((*work)->Wait(Deadline::After(3 * kSecond))) << (*work)->status();
    std::atomic_ref<uint32_t>(*word).store(1);
    ASSERT_TRUE((*work)->Wait(Deadline::After(10 * kSecond)));
    EXPECT_TRUE(absl::IsAborted((*work)->status())) << (*work)->status();
    stream.Finish();
    device.FreePinned(word);
  });
}

TEST_F(OffloadedCalls, JoiningEndsWithTheCommunicator) {
  setenv("FAKE_NCCL_HANG", "1", 1);
  AbortedWhileOneWaits(options(), false);
}

TEST_F(OffloadedCalls, JoiningEndsByTheCallsDeadline) {
  setenv("FAKE_NCCL_HANG", "1", 1);
  RunRanks(2, options(kSecond / 2), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory memory(device, 4000);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 4000, stream.get()).ok());
    const absl::Status status = comm->Run(Sum(memory, 1000, stream.get()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_NE(status.message().find("the other ranks in NCCL"), absl::string_view::npos) << status;
    stream.Finish();
  });
}

TEST_F(OffloadedCalls, ACallThatAnotherRankDoesNotMakeEndsByItsDeadline) {
  RunRanks(2, options(kSecond), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory memory(device, 160'000);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 160'000, stream.get()).ok());
    ASSERT_EQ(comm->Run(Sum(memory, 40'000, stream.get())), absl::OkStatus());
    stream.Finish();
    if (comm->rank() == 1) {
      while (comm->status().ok()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return;
    }
    const int64_t begun = Clock::Real().Now();
    const absl::Status status = comm->Run(Sum(memory, 40'000, stream.get()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_LT(Clock::Real().Now() - begun, 3 * kSecond);
    stream.Finish();
  });
}

// For every error after NCCL has got a call: the caller gets buffers and stream back only when NCCL
// no longer uses them.
class OffloadedHalfway : public OffloadedCalls, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OffloadedHalfway, testing::Values("cuEventRecord", "cuStreamWaitEvent"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(OffloadedHalfway, ACallThatFailsIsOverWhenNcclIsGone) {
  setenv("FAKE_NCCL_ABORT_MS", "300", 1);
  std::barrier together(2);
  RunRanks(2, options(), [&](const Comm& comm) {
    Device& device = TestDevice(comm->rank());
    TestStream stream(device);
    const TestMemory memory(device, 4000);
    ASSERT_TRUE(device.Fill(memory.get(), 0, 4000, stream.get()).ok());
    ASSERT_EQ(comm->Run(Sum(memory, 1000, stream.get())), absl::OkStatus());
    stream.Finish();
    together.arrive_and_wait();
    if (comm->rank() == 1) {
      together.arrive_and_wait();
      return;
    }
    // The event of the input, then the event behind the library's work.
    FailCall(GetParam(), 2, 719);
    const auto work = comm->Start(Sum(memory, 1000, stream.get()));
    ASSERT_TRUE(work.ok()) << work.status();
    stream.Finish();
    EXPECT_EQ(OfFakeNccl("FakeNcclOperations"), 0) << "the stream went on";
    ASSERT_TRUE((*work)->Wait(Deadline::After(10 * kSecond)));
    EXPECT_EQ(OfFakeNccl("FakeNcclOperations"), 0) << "the call is over";
    EXPECT_NE((*work)->status().message().find(GetParam()), absl::string_view::npos)
        << (*work)->status();
    together.arrive_and_wait();
  });
}

}  // namespace
}  // namespace entrain
