// The cost of an unused communicator, and the cost of waiting when ranks share a core.
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <thread>

#include "gtest/gtest.h"

#include "tests/support/ranks.h"
#include "tests/support/transports.h"

namespace entrain {
namespace {

constexpr int kRanks = 4;
constexpr double kShare = 0.005;  // of a core, for each rank

double CpuSecondsOfProcess() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Sleeps without calls, because the tests measure the cost of an idle communicator.
void Sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class Idle : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Over, Idle, testing::ValuesIn(WithUcx({"inproc", "shm", "tcp"})),
                         [](const auto& test) { return test.param; });

// Measures CPU time, so the load of the machine does not matter.
TEST_P(Idle, TakesNoMoreThanHalfAPercentOfACore) {
  RanksOptions options;
  options.transports = GetParam();
  RunRanks(kRanks, options, [](const std::shared_ptr<Communicator>& comm) {
    int64_t value = 1, sum = 0;
    ASSERT_EQ(comm->AllReduce(&value, &sum, 1, DType::kI64, ReduceOp::kSum), absl::OkStatus());
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() != 0) {
      Sleep(2.5);
      return;
    }
    Sleep(0.3);  // the others sleep, and earlier work is finished
    const double before = CpuSecondsOfProcess();
    Sleep(2);
    const double share = (CpuSecondsOfProcess() - before) / 2 / kRanks;
    EXPECT_LT(share, kShare);
    RecordProperty("share", std::to_string(share));
  });
}

// A waiter that does not yield would take the core, for some milliseconds, from the rank for which
// it waits.
TEST_P(Idle, WaitersOnOneCoreWaitNoSlices) {
  RanksOptions options;
  options.transports = GetParam();
  options.core = [](int /*rank*/) { return 0; };
  RunRanks(kRanks, options, [](const std::shared_ptr<Communicator>& comm) {
    constexpr int kCalls = 200;
    constexpr double kSlice = 3e-3;
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    const double before = CpuSecondsOfProcess();
    for (int i = 0; i < kCalls; ++i) {
      int64_t value = i, sum = 0;
      ASSERT_EQ(comm->AllReduce(&value, &sum, 1, DType::kI64, ReduceOp::kSum), absl::OkStatus());
      ASSERT_EQ(sum, kRanks * i);
    }
    const double each = (CpuSecondsOfProcess() - before) / kCalls;
    EXPECT_LT(each, kSlice);
    RecordProperty("us", std::to_string(each * 1e6));
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

}  // namespace
}  // namespace entrain
