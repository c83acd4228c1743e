// ACCO and its baselines on device memory: every path of the data, a host that does not wait, and
// errors of the driver. The other tests of gradient_channel cover what holds for host and device
// alike.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"
#include "lib/train/gradient_channel.h"
#include "tests/support/ranks.h"
#include "tests/train/arrays.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

// Must run before the libraries are looked for.
const bool kFakes = [] {
  if (!OnRealDevice()) {
    setenv("FAKE_CUDA_DEVICES", "4", 1);                   // NOLINT(concurrency-mt-unsafe)
    setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
  }
  return !OnRealDevice();
}();

constexpr DelayMethod kMethods[] = {DelayMethod::kAcco, DelayMethod::kDpu, DelayMethod::kWp,
                                    DelayMethod::kZero1};

// Gradients of each round that the device adds by itself, so that the host need not wait for a
// copy.
class Learner {
 public:
  Learner(bool on_device, int ordinal, int rank, int64_t count, int rounds, DelayMethod method)
      : where(on_device, ordinal),
        count_(count),
        params_(where, std::vector<float>(static_cast<size_t>(count), 1)) {
    for (int round = 0; round < rounds; ++round) {
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) {  // exact in any order
        values.push_back(static_cast<float>((7 * round + 3 * i + 5 * rank) % 32 - 16) / 64);
      }
      gradients_.push_back(std::make_unique<TestArray<float>>(where, values));
    }
    OptimizerConfig config;
    config.kind = OptimizerKind::kAdamw;
    optimizer_ = *MakeOptimizer(config);
    options.method = method;
    options.count = count;
    options.params = params_.data();
    options.at = where.at();
    options.optimizer = optimizer_;
  }
  absl::Status Create(Communicator& comm) {
    auto made = GradientChannel::Create(comm, options);
    if (made.ok()) {
      channel = *std::move(made);
    }
    return made.status();
  }
  // Adds the next round's gradients.
  void Add() {
    const void* const gradient = gradients_[next_++ % gradients_.size()]->data();
    EXPECT_EQ(ComputeAt(where.at(),
                        [&] {
                          CurrentKernels().axpy(static_cast<float*>(channel->gradients()), 1,
                                                static_cast<const float*>(gradient), count_);
                        }),
              absl::OkStatus());
    ASSERT_EQ(channel->Add(1, 1), absl::OkStatus());
  }
  std::vector<float> Params() const { return params_.Read(); }

  const Arrays where;
  ChannelOptions options;

 private:
  const int64_t count_;
  const TestArray<float> params_;
  std::vector<std::unique_ptr<TestArray<float>>> gradients_;
  std::shared_ptr<const Optimizer> optimizer_;
  size_t next_ = 0;

 public:
  std::shared_ptr<GradientChannel> channel;  // destroyed before the members that it uses
};

// ---- Ways --------------------------------------------------------------------------------------

TEST(ChannelOnDevice, DataGoesByEveryWay) {
  for (const char* const transports : {"inproc", "inproc,cuda", "shm,cuda", "inproc,nccl"}) {
    const bool handed = std::string(transports) == "inproc,nccl";
    for (const int ranks : {1, 2, 4}) {
      if (handed && ranks > TestDevices().count()) {
        continue;  // NCCL needs one device for each rank
      }
      RunRanks(ranks, {.transports = transports}, [&](const std::shared_ptr<Communicator>& comm) {
        constexpr int kRounds = 6;
        constexpr int64_t kCount = 150'001;  // above the limit for direct transfers
        Learner here(false, 0, comm->rank(), kCount, kRounds, DelayMethod::kAcco);
        Learner there(true, handed ? comm->rank() : 0, comm->rank(), kCount, kRounds,
                      DelayMethod::kAcco);
        for (Learner* const run : {&here, &there}) {
          ASSERT_EQ(run->Create(*comm), absl::OkStatus());
          for (int round = 0; round < kRounds; ++round) {
            run->Add();
            ASSERT_EQ(run->channel->Install(), absl::OkStatus());
          }
        }
        EXPECT_EQ(there.Params(), here.Params()) << transports << ", " << ranks << " ranks";
        EXPECT_EQ(comm->Barrier(), absl::OkStatus());
      });
    }
  }
}

// ---- The host waits only for counts
// ---------------------------------------------------------------

// A word for which a stream waits.
class Gate {
 public:
  explicit Gate(const ArraysAt& at) : device_(*at.device), stream_(at.stream) {
    const auto memory = device_.AllocatePinned(4096);
    EXPECT_TRUE(memory.ok()) << memory.status();
    word_ = static_cast<uint32_t*>(*memory);
    *word_ = 0;
  }
  void Hold() { EXPECT_EQ(device_.AwaitWord(stream_, word_, 1), absl::OkStatus()); }
  void Open() { std::atomic_ref<uint32_t>(*word_).store(1, std::memory_order_release); }
  ~Gate() { device_.FreePinned(word_); }

 private:
  Device& device_;
  const StreamHandle stream_;
  uint32_t* word_ = nullptr;
};

TEST(ChannelOnDevice, TheHostIsARoundAheadOfADeviceThatStandsStill) {
  for (const DelayMethod method : kMethods) {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
      constexpr int kRounds = 4;
      Learner here(false, 0, comm->rank(), 1001, kRounds, method);
      Learner there(true, 0, comm->rank(), 1001, kRounds, method);
      ASSERT_EQ(here.Create(*comm), absl::OkStatus());
      ASSERT_EQ(there.Create(*comm), absl::OkStatus());
      for (int round = 0; round < kRounds; ++round) {
        here.Add();
        ASSERT_EQ(here.channel->Install(), absl::OkStatus());
      }
      const std::vector<float> begun = there.Params();
      {
        Gate gate(there.where.at());
        gate.Hold();
        const bool waits = method == DelayMethod::kZero1;
        there.Add();
        EXPECT_TRUE(*there.channel->Poll());  // nothing is under way
        ASSERT_EQ(there.channel->Install(), absl::OkStatus());
        EXPECT_EQ(there.channel->info().rounds, waits ? 1 : 0);
        there.Add();
        EXPECT_EQ(*there.channel->Poll(), waits);  // its own round has been taken
        if (!waits) {
          // Counts are exchanged between hosts.
          ASSERT_EQ(there.channel->Install(), absl::OkStatus());
          EXPECT_EQ(there.channel->info().rounds, 1);
          EXPECT_EQ(there.channel->info().microbatches, 2);
          there.Add();
          EXPECT_FALSE(*there.channel->Poll());
        }
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
        gate.Open();
        ASSERT_EQ(there.channel->Install(), absl::OkStatus());
        for (int round = waits ? 2 : 3; round < kRounds; ++round) {
          there.Add();
          ASSERT_EQ(there.channel->Install(), absl::OkStatus());
        }
        EXPECT_EQ(there.Params(), here.Params());
        EXPECT_NE(there.Params(), begun);
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      }
    });
  }
}

// ---- Errors ------------------------------------------------------------------------------------

constexpr int kLaunchFailed = 719;

// Whichever rank gets the error, all ranks learn of it, and no rank hangs.
TEST(ChannelOnDevice, AnErrorOfTheDriverEndsARoundOnAllRanks) {
  ENTRAIN_NEEDS_FAKE();
  for (const char* const function :
       {"cuMemcpyAsync", "cuMemsetD8Async", "cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent",
        "cuStreamWaitValue32_v2", "cuEventQuery"}) {
    for (const int nth : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(nth));
      std::atomic<int> named{0};
      RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
        Learner run(true, 0, comm->rank(), 1001, 1, DelayMethod::kAcco);
        ASSERT_EQ(run.Create(*comm), absl::OkStatus());
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
        if (comm->rank() == 0) {
          FailCall(function, nth, kLaunchFailed);
        }
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
        absl::Status status;
        for (int round = 0; round < 20 && status.ok(); ++round) {
          status = run.channel->Add(1, 1);  // only the channel calls the driver
          status.Update(run.channel->Install());
        }
        EXPECT_FALSE(status.ok());
        named += std::string(status.message()).find(function) != std::string::npos ? 1 : 0;
        EXPECT_EQ(run.channel->Add(1, 1), status);
        EXPECT_EQ(comm->Barrier(), absl::OkStatus());  // the channel has its own communicator
        FailCall(function, 0, 0);
      });
      EXPECT_GT(named, 0);
    }
  }
}

// No call follows the install that ends the run, so this install must report the error.
TEST(ChannelOnDevice, TheInstallThatEndsTheRunHasTheErrorOfTheLastRoundsParameters) {
  for (const DelayMethod method : kMethods) {
    RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Learner run(true, 0, comm->rank(), 1001, 1, method);
      run.options.optimizer = nullptr;
      // Enqueues a wait that never ends on the stream on which the parameters are to be sent.
      run.options.step = [](void* gate, int32_t preview, int64_t, double, size_t, size_t,
                            const void*, void*, void*) {
        if (preview == 0 && gate != nullptr) {
          static_cast<std::unique_ptr<Gate>*>(gate)->get()->Hold();
        }
        return 0;
      };
      run.options.limit = 1;
      run.options.timeout_ns = 500 * kMillisecond;
      std::unique_ptr<Gate> gate;
      run.options.user = comm->rank() == 1 ? &gate : nullptr;
      ASSERT_EQ(run.Create(*comm), absl::OkStatus());
      gate = std::make_unique<Gate>(ArraysAt{run.where.at().device, run.channel->stream()});
      absl::Status status;
      while (status.ok() && !run.channel->info().finished) {
        run.Add();
        status = run.channel->Install();
      }
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("parameters"));
      EXPECT_EQ(run.channel->Stop(), status);
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      gate->Open();
      ASSERT_EQ(WaitForStream(run.where.at(), Deadline::After(10 * kSecond)), absl::OkStatus());
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

TEST(ChannelOnDevice, AnErrorWhileItIsCreatedIsThatOfAllRanks) {
  ENTRAIN_NEEDS_FAKE();
  for (const char* const function : {"cuMemAlloc_v2", "cuStreamCreateWithPriority", "cuEventCreate",
                                     "cuMemHostAlloc", "cuLaunchKernel"}) {
    SCOPED_TRACE(function);
    RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Learner run(true, 0, comm->rank(), 1001, 1, DelayMethod::kAcco);
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      if (comm->rank() == 0) {
        FailCall(function, 1, 2);  // CUDA_ERROR_OUT_OF_MEMORY
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      const absl::Status status = run.Create(*comm);
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr(function));
      FailCall(function, 0, 0);
      EXPECT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

TEST(ChannelOnDevice, RanksThatDisagreeOnMemoryAreTold) {
  RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Learner run(comm->rank() == 0, 0, comm->rank(), 1001, 1, DelayMethod::kAcco);
    const absl::Status status = run.Create(*comm);
    EXPECT_THAT(std::string(status.message()), HasSubstr("memory"));
  });
}

}  // namespace
}  // namespace entrain
