// Jobs of four processes that hang, die or differ. entrain-perf asks the processes, merges their
// dumps, and names the rank that holds the others up.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "nlohmann/json.hpp"
#include "tests/support/ranks.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using nlohmann::json;
using Comm = std::shared_ptr<Communicator>;
using testing::Each;
using testing::HasSubstr;

constexpr int kRanks = 4;

struct Ended {
  int code = -1;
  std::string out;
};

// Runs entrain-perf with these arguments.
Ended Perf(const std::string& arguments) {
  const std::string command = absl::StrCat(ENTRAIN_PERF, " ", arguments, " 2>/dev/null");
  std::FILE* const pipe = popen(command.c_str(), "r");
  Ended ended;
  char some[4096];
  while (const size_t got = std::fread(some, 1, sizeof(some), pipe)) {
    ended.out.append(some, got);
  }
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  return ended;
}

absl::Status AllReduce(const Comm& comm) {
  std::vector<float> data(1000, 1);
  return comm->AllReduce(data.data(), data.data(), 1000, DType::kF32, ReduceOp::kSum);
}

// Every rank except the first is done when its message is on the way.
absl::Status GatherToFirst(const Comm& comm) {
  float own[2] = {1, 2};
  std::vector<float> all(2 * static_cast<size_t>(comm->size()));
  Call call;
  call.kind = CallKind::kGather;
  call.dtype = DType::kF32;
  call.count = 2;
  call.in = {own, sizeof(own), MemoryKind::kHost};
  if (comm->rank() == 0) {
    call.out = {all.data(), static_cast<int64_t>(all.size() * sizeof(float)), MemoryKind::kHost};
  }
  return comm->Run(call);
}

class FlightJob : public testing::TestWithParam<std::string> {
 protected:
  FlightJob() {
    std::string directory = (std::filesystem::temp_directory_path() / "entrain_XXXXXX").string();
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }
  ~FlightJob() override { std::filesystem::remove_all(directory_); }

  RanksOptions Options() const {
    RanksOptions options;
    options.transports = GetParam();
    options.timeout_ns = 60 * kSecond;
    return options;
  }
  static std::vector<int64_t> Pids(const Comm& comm) {
    const int64_t own = getpid();
    std::vector<int64_t> pids(static_cast<size_t>(comm->size()));
    EXPECT_EQ(comm->AllGather(&own, pids.data(), 1, DType::kI64), absl::OkStatus());
    return pids;
  }
  // Asks these processes for their dumps until the dump of each process in `until` has a call
  // under way. Returns the page of the dumps.
  std::string Ask(const std::vector<int64_t>& pids, const std::vector<int>& ranks,
                  const std::vector<int>& until) const {
    std::string files;
    for (const int rank : ranks) {
      const std::string file = directory_ / absl::StrCat("asked", rank);
      Ended answer;
      const bool waits = std::count(until.begin(), until.end(), rank) > 0;
      EXPECT_TRUE(Becomes([&] {
        answer = Perf(absl::StrCat("--flight-of ", pids[static_cast<size_t>(rank)]));
        return answer.code == 0 &&
               (!waits || answer.out.find("\"state\":\"receiving\"") != std::string::npos);
      })) << answer.out;
      std::ofstream(file) << answer.out;
      absl::StrAppend(&files, " ", file);
    }
    return Perf(absl::StrCat("--flight", files)).out;
  }
  std::string PageOfFiles() const {
    return Perf(absl::StrCat("--flight ", directory_.string(), "/*.json")).out;
  }
  // Waits until this process's dump of the failure is complete.
  void AwaitOwnFile() const {
    EXPECT_TRUE(Becomes([&] {
      for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
        std::ifstream file(entry.path());
        const json dump = json::parse(file, nullptr, /*allow_exceptions=*/false);
        if (!dump.is_discarded() && dump["pid"] == getpid()) {
          return true;
        }
      }
      return false;
    }));
  }

  std::filesystem::path directory_;
};
INSTANTIATE_TEST_SUITE_P(Over, FlightJob, testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(FlightJob, AStoppedRankIsNamed) {
  const auto ends = RunRankProcesses(kRanks, Options(), [&](const Comm& comm) {
    const std::vector<int64_t> pids = Pids(comm);
    if (comm->rank() == 2) {
      raise(SIGSTOP);
    }
    std::thread controller;
    if (comm->rank() == 0) {
      controller = std::thread([&] {
        const std::string page = Ask(pids, {0, 1, 3}, {0});
        EXPECT_THAT(page, HasSubstr("culprit: rank 2 of world")) << page;
        EXPECT_THAT(page, HasSubstr("no dump: rank 2"));
        // A stopped process does not answer, and asking it ends.
        EXPECT_EQ(Perf(absl::StrCat("--flight-of ", pids[2])).code, 1);
        const std::string empty = directory_ / "asked2";
        std::ofstream{empty};
        const Ended with_empty =
            Perf(absl::StrCat("--flight ", directory_.string(), "/asked0 ", empty));
        EXPECT_EQ(with_empty.code, 0) << with_empty.out;
        EXPECT_EQ(Perf("--flight " + empty).code, 1);
        // Another file that the shell's *.json names.
        const std::string trace = (directory_ / "trace.txt").string();
        std::ofstream(trace) << "{\"traceEvents\":[]}";
        EXPECT_EQ(Perf(absl::StrCat("--flight ", directory_.string(), "/asked0 ", trace)).code, 0);
        EXPECT_EQ(Perf("--flight " + trace).code, 1);
        kill(static_cast<pid_t>(pids[2]), SIGCONT);
      });
    }
    EXPECT_EQ(AllReduce(comm), absl::OkStatus());
    if (controller.joinable()) {
      controller.join();
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_THAT(ends, Each(0));
}

TEST_P(FlightJob, ARankThatDoesNotCallIsNamed) {
  const auto ends = RunRankProcesses(kRanks, Options(), [&](const Comm& comm) {
    const std::vector<int64_t> pids = Pids(comm);
    const std::filesystem::path looked = directory_ / "looked";
    std::thread controller;
    if (comm->rank() == 0) {
      controller = std::thread([&] {
        const std::string page = Ask(pids, {0, 1, 2, 3}, {0, 1, 2});
        EXPECT_THAT(page, HasSubstr("culprit: rank 3 of world")) << page;
        EXPECT_THAT(page, HasSubstr("it has not called all_reduce #3"));
        std::ofstream(looked) << "x";
      });
    }
    if (comm->rank() == 3) {
      EXPECT_TRUE(Becomes([&] { return std::filesystem::exists(looked); }));
    }
    EXPECT_EQ(AllReduce(comm), absl::OkStatus());
    if (controller.joinable()) {
      controller.join();
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_THAT(ends, Each(0));
}

TEST_P(FlightJob, AChainOverTwoCommunicatorsLeadsToItsEnd) {
  const auto ends = RunRankProcesses(kRanks, Options(), [&](const Comm& comm) {
    const std::vector<int64_t> pids = Pids(comm);
    const std::filesystem::path looked = directory_ / "looked";
    const auto part = comm->Split(comm->rank() / 2, 0);
    ASSERT_TRUE(part.ok()) << part.status();
    std::thread controller;
    if (comm->rank() == 0) {
      controller = std::thread([&] {
        const std::string page = Ask(pids, {0, 1, 2, 3}, {0, 2});
        EXPECT_THAT(page, HasSubstr("culprit: rank 1 of world/1")) << page;
        EXPECT_THAT(page, HasSubstr("rank 2 of world has not called"));
        std::ofstream(looked) << "x";
      });
    }
    // Rank 3 has done its part of the call of world, but does not make the call of the part of 2
    // ranks. There rank 2 waits for it, while rank 0 waits for rank 2 in world.
    if (comm->rank() == 3) {
      EXPECT_EQ(GatherToFirst(comm), absl::OkStatus());
      EXPECT_TRUE(Becomes([&] { return std::filesystem::exists(looked); }));
    }
    if (comm->rank() >= 2) {
      EXPECT_EQ((*part)->Barrier(), absl::OkStatus());
    }
    if (comm->rank() != 3) {
      EXPECT_EQ(GatherToFirst(comm), absl::OkStatus());
    }
    if (controller.joinable()) {
      controller.join();
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_THAT(ends, Each(0));
}

TEST_P(FlightJob, AKilledRankIsNamedByTheFilesOfTheOthers) {
  setenv("ENTRAIN_FLIGHT_DIR", directory_.c_str(), 1);
  const auto ends = RunRankProcesses(kRanks, Options(), [&](const Comm& comm) {
    Pids(comm);
    if (comm->rank() == 2) {
      raise(SIGKILL);
    }
    EXPECT_EQ(AllReduce(comm).code(), absl::StatusCode::kUnavailable);
    AwaitOwnFile();
  });
  unsetenv("ENTRAIN_FLIGHT_DIR");
  EXPECT_EQ(ends[0], 0);
  EXPECT_EQ(ends[2], SIGKILL);
  const std::string page = PageOfFiles();
  EXPECT_THAT(page, HasSubstr("culprit: rank 2 of world")) << page;
  EXPECT_THAT(page, HasSubstr("no dump of rank 2"));
  EXPECT_THAT(page, HasSubstr("ENTRAIN_PEER_LOST"));
}

TEST_P(FlightJob, ARankThatCallsSomethingElseIsNamedByTheFiles) {
  setenv("ENTRAIN_FLIGHT_DIR", directory_.c_str(), 1);
  const auto ends = RunRankProcesses(kRanks, Options(), [&](const Comm& comm) {
    Pids(comm);
    const absl::Status status = comm->rank() == 1 ? comm->Barrier() : AllReduce(comm);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    AwaitOwnFile();
  });
  unsetenv("ENTRAIN_FLIGHT_DIR");
  EXPECT_THAT(ends, Each(0));
  const std::string page = PageOfFiles();
  EXPECT_THAT(page, HasSubstr("culprit: rank 1 of world")) << page;
  EXPECT_THAT(page, HasSubstr("it called barrier where ranks 0, 2, 3 called all_reduce sum of 1000 "
                              "f32"));
}

}  // namespace
}  // namespace entrain
