// Collectives on device memory of ranks on two hosts, each a process: one that dies ends the calls of the others, those
// of its island and those of the other.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
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

constexpr int kRanks = 4, kDies = 3;
constexpr int64_t kCount = 300'000;

#define REQUIRE(condition)                                         \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: " #condition "\n", __LINE__); \
      return false;                                                \
    }                                                              \
  } while (false)

bool RunRank(const std::string& url, int rank) {
  setenv("FAKE_CUDA_DEVICES", "4", 1);
  setenv("ENTRAIN_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1);
  Device& device = TestDevice(rank);
  auto store = OpenStore(url, "", {Deadline::After(5 * kSecond)});
  RuntimeOptions runtime_options;
  runtime_options.transports = "shm,tcp,islands";
  runtime_options.host_id = rank < kRanks / 2 ? "left" : "right";
  auto runtime = Runtime::Create(runtime_options);
  REQUIRE(store.ok() && runtime.ok());
  CommOptions options;
  options.runtime = *runtime;
  options.store = *store;
  options.rank = rank;
  options.size = kRanks;
  options.timeout_ns = 30 * kSecond;
  const auto comm = Communicator::Create(options);
  REQUIRE(comm.ok());

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
  REQUIRE(device.Copy(memory.get(), host.data(), kCount * 8, stream.get()).ok());
  REQUIRE((*comm)->Run(call).ok());
  REQUIRE(device.Copy(host.data(), memory.get(), kCount * 8, stream.get()).ok());
  stream.Finish();
  REQUIRE(host == std::vector<int64_t>(kCount, 10));
  // A slice is half of what an island has; no host has sent all of it.
  REQUIRE((*comm)->stats().bytes_sent < kCount * 8);
  if (rank == kDies) {
    std::abort();
  }
  const int64_t begun = Clock::Real().Now();
  const absl::Status status = (*comm)->Run(call);
  REQUIRE(absl::IsUnavailable(status));
  REQUIRE(status.message().find(absl::StrCat("rank ", kDies)) != absl::string_view::npos ||
          status.message().find("NCCL") != absl::string_view::npos);
  REQUIRE(Clock::Real().Now() - begun < 10 * kSecond);
  stream.Finish();
  return true;
}

TEST(IslandsOfProcesses, AKilledRankEndsTheCallsOfTheOthers) {
  char directory[] = "/tmp/entrain_islands_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string url = absl::StrCat("file:", directory);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(RunRank(url, rank) ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    const auto at = static_cast<size_t>(rank);
    ASSERT_EQ(waitpid(children[at], &status, 0), children[at]);
    EXPECT_EQ(WIFEXITED(status) && WEXITSTATUS(status) == 0, rank != kDies) << rank;
  }
  [[maybe_unused]] const int gone = std::system(absl::StrCat("rm -r ", directory).c_str());
}

}  // namespace
}  // namespace entrain
