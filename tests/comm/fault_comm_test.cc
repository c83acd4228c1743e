// Communicators under ENTRAIN_FAULT: results do not change, times are at least those of the link,
// failures end as without it, and waiting for the link takes no processor time.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/create/runtime.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::HasSubstr;

int64_t Now() {
  return Clock::Real().Now();
}

// Sets ENTRAIN_FAULT for one test.
class Fault {
 public:
  explicit Fault(const char* value) { setenv("ENTRAIN_FAULT", value, 1); }
  ~Fault() { unsetenv("ENTRAIN_FAULT"); }
};

absl::Status AllReduce(const Comm& comm, std::vector<float>& data, int64_t timeout_ns = 0) {
  CallOptions options;
  options.timeout_ns = timeout_ns;
  return comm->AllReduce(data.data(), data.data(), static_cast<int64_t>(data.size()), DType::kF32,
                         ReduceOp::kSum, options);
}

class FaultyComm : public testing::TestWithParam<const char*> {
 protected:
  RanksOptions Options() const {
    RanksOptions options;
    options.transports = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, FaultyComm, testing::Values("inproc", "shm", "tcp"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(FaultyComm, ARingTakesWhatItsBytesTakeAndGivesTheSame) {
  const Fault fault("rate=20MB/s,latency=300us,jitter=100us");
  RanksOptions options = Options();
  options.algorithms = "all_reduce:ring";
  constexpr int kRanks = 3;
  RunRanks(kRanks, options, [](const Comm& comm) {
    for (const size_t count : {size_t{3}, size_t{300'000}}) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = static_cast<float>(i % 100 + static_cast<size_t>(comm->rank()));
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      const int64_t begin = Now();
      ASSERT_EQ(AllReduce(comm, data), absl::OkStatus());
      // Each rank sends 2 (W-1)/W of the bytes, in 2 (W-1) rounds that wait for each other. The
      // rank that leaves the barrier last sees the whole time. For the others, up to one latency
      // and jitter may be missing.
      const double wire = 2.0 * (kRanks - 1) / kRanks * static_cast<double>(count * 4) / 20e6;
      EXPECT_GE(static_cast<double>(Now() - begin),
                (wire + 2 * (kRanks - 1) * 300e-6 - 2e-3) * 1e9);
      if (count > 3) {
        EXPECT_LT(static_cast<double>(Now() - begin), (3 * wire + 1) * 1e9);
      }
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], static_cast<float>(3 * (i % 100) + 3)) << i;
      }
    }
  });
}

TEST_P(FaultyComm, OtherCollectivesGiveTheSame) {
  const Fault fault("rate=1GB/s,latency=50us,jitter=50us,seed=3");
  RunRanks(4, Options(), [](const Comm& comm) {
    const int rank = comm->rank();
    for (const int64_t count : {1, 1000, 50'000}) {
      const auto n = static_cast<size_t>(count);
      std::vector<int32_t> one(n, rank + 1), four(4 * n, rank + 1), into(4 * n, -1);
      ASSERT_EQ(comm->Broadcast(one.data(), count, DType::kI32, 2), absl::OkStatus());
      EXPECT_EQ(one, std::vector<int32_t>(n, 3));
      std::fill(one.begin(), one.end(), rank + 1);
      ASSERT_EQ(comm->AllGather(one.data(), into.data(), count, DType::kI32), absl::OkStatus());
      for (size_t i = 0; i < into.size(); ++i) {
        ASSERT_EQ(into[i], static_cast<int32_t>(i / n) + 1);
      }
      ASSERT_EQ(comm->AllReduce(four.data(), into.data(), 4 * count, DType::kI32, ReduceOp::kSum),
                absl::OkStatus());
      EXPECT_EQ(into, std::vector<int32_t>(4 * n, 10));
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    }
  });
}

TEST_P(FaultyComm, ADeadlinePassesWhileBytesWaitForTheLinkAndOthersGoOn) {
  const Fault fault("rate=2MB/s");
  constexpr int64_t kTimeout = 300 * kMillisecond;
  std::array<int64_t, 2> begun{};
  std::array<int64_t, 2> ended{};
  RunRanks(2, Options(), [&](const Comm& comm) {
    auto other = comm->Split(0, comm->rank());
    ASSERT_TRUE(other.ok()) << other.status();
    std::vector<float> data(4 << 20, 1.0f);  // 8 s
    const auto me = static_cast<size_t>(comm->rank());
    begun[me] = Now();
    const absl::Status status = AllReduce(comm, data, kTimeout);
    ended[me] = Now();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_LT(ended[me] - begun[me], kTimeout + 250 * kMillisecond);
    // A call that was given up does not hold up the link.
    const int64_t after = Now();
    std::vector<float> small(1000, 1.0f);
    EXPECT_EQ(AllReduce(*other, small), absl::OkStatus());
    EXPECT_LT(Now() - after, kSecond);
  });
  // The rank whose deadline passes first tells the other, which may have begun later.
  EXPECT_GE(std::min(ended[0], ended[1]) - std::min(begun[0], begun[1]),
            kTimeout - 10 * kMillisecond);
}

TEST_P(FaultyComm, AnAbortIsHeardWhileBytesWaitForTheLink) {
  const Fault fault("rate=1MB/s,latency=1s");
  RunRanks(3, Options(), [](const Comm& comm) {
    std::vector<float> data(1 << 20, 1.0f);
    std::thread aborter;
    if (comm->rank() == 0) {
      aborter = std::thread([&] {
        // The others are in their calls by then.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm->Abort("enough");
      });
    }
    const int64_t begin = Now();
    const absl::Status status = AllReduce(comm, data);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
    EXPECT_LT(Now() - begin, 5 * kSecond);
    if (aborter.joinable()) {
      aborter.join();
    }
  });
}

TEST_P(FaultyComm, ACutRankIsNamedByTheOthers) {
  const Fault fault("cut=700ms,ranks=1");
  RunRanks(3, Options(), [](const Comm& comm) {
    std::vector<float> data(1000, 1.0f);
    EXPECT_EQ(AllReduce(comm, data), absl::OkStatus());
    const int64_t begin = Now();
    absl::Status status;
    while (status.ok() && Now() - begin < 10 * kSecond) {
      status = AllReduce(comm, data);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    if (comm->rank() != 1) {
      EXPECT_EQ(BlameOf(status).rank, 1) << status;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("ENTRAIN_FAULT"));
  });
}

TEST_P(FaultyComm, OnlyTheNamedRanksAndTransportsAreSlow) {
  const auto exchange = [&] {
    int64_t took[2] = {};
    RunRanks(2, Options(), [&](const Comm& comm) {
      std::vector<float> data(50'000, 1.0f);  // 200 kB, 0.2 s at 1 MB/s
      for (const int root : {0, 1}) {
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
        const int64_t begin = Now();
        ASSERT_EQ(comm->Broadcast(data.data(), 50'000, DType::kF32, root), absl::OkStatus());
        if (comm->rank() != root) {
          took[root] = Now() - begin;
        }
      }
    });
    return std::pair(took[0], took[1]);
  };
  {
    const Fault fault("rate=1MB/s,ranks=1");
    const auto [from_0, from_1] = exchange();
    EXPECT_LT(from_0, 150 * kMillisecond);
    EXPECT_GE(from_1, 190 * kMillisecond);
  }
  const std::string others = std::string("rate=1MB/s,transports=") +
                             (GetParam() == std::string("tcp") ? "inproc,shm" : "tcp");
  const Fault fault(others.c_str());
  EXPECT_LT(exchange().second, 150 * kMillisecond);
}

double CpuSecondsOfProcess() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

#if defined(__SANITIZE_THREAD__)
constexpr double kMostShare = 0.1;  // every access takes many times as long
#else
constexpr double kMostShare = 0.03;
#endif

TEST_P(FaultyComm, WaitingForTheLinkTakesNoProcessorTime) {
  const Fault fault("rate=500kB/s,latency=1ms");
  RunRanks(2, Options(), [](const Comm& comm) {
    // 1 s of transfer, and few elements to add under a sanitizer.
    std::vector<float> data(1 << 17, 1.0f);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    const double before = CpuSecondsOfProcess();
    const int64_t begin = Now();
    ASSERT_EQ(AllReduce(comm, data), absl::OkStatus());
    const double share =
        (CpuSecondsOfProcess() - before) / (static_cast<double>(Now() - begin) * 1e-9) / 2;
    EXPECT_LT(share, kMostShare) << "of a core, each rank";
    RecordProperty("share", std::to_string(share));
  });
}

TEST(FaultyRuntime, RefusesWhatItDoesNotUnderstandNamingTheVariable) {
  const Fault fault("rate=fast");
  const absl::Status status = Runtime::Create({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ENTRAIN_FAULT: \"rate=fast\": rate: \"fast\" is not a rate"));
}

}  // namespace
}  // namespace entrain
