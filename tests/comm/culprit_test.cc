// Every survivor names the same culprit, whichever peer it lost first. The ranks are processes.
// Besides their world, they form a mesh of two rows and two columns. They end as soon as one call
// fails.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"

namespace entrain {
namespace {

constexpr int kRanks = 4, kVictim = 0;
constexpr int64_t kTimeout = 1500 * kMillisecond;

// A rank's findings, in memory shared with the test.
struct Report {
  std::atomic<bool> made{false};
  int code = 0;
  int world_rank = -1;
  PeerId guilty{};
  int64_t at_ns = 0;
  char text[600] = {};
};
struct Shared {
  std::atomic<int> rounds[kRanks] = {};
  PeerId ids[kRanks] = {};
  Report reports[kRanks];
};

struct Mesh {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Communicator> world, row, column;
};

// How a rank ends after an error.
enum class Ending { kAtOnce, kDestroys, kGivesUp };

absl::StatusOr<Mesh> Meet(const std::string& directory, const std::string& transports, int rank) {
  const Stop stop{Deadline::After(20 * kSecond)};
  CommOptions options;
  ENTRAIN_ASSIGN_OR_RETURN(options.store, OpenStore(absl::StrCat("file:", directory), "", stop));
  RuntimeOptions runtime;
  runtime.transports = transports;
  ENTRAIN_ASSIGN_OR_RETURN(options.runtime, Runtime::Create(runtime));
  options.rank = rank;
  options.size = kRanks;
  options.timeout_ns = kTimeout;
  Mesh mesh;
  mesh.runtime = options.runtime;
  ENTRAIN_ASSIGN_OR_RETURN(mesh.world, Communicator::Create(options));
  ENTRAIN_ASSIGN_OR_RETURN(mesh.row, mesh.world->Split(rank / 2, rank));
  ENTRAIN_ASSIGN_OR_RETURN(mesh.column, mesh.world->Split(rank % 2, rank));
  return mesh;
}

absl::Status Round(const Mesh& mesh) {
  std::vector<float> data(1000, 1.0f);
  for (const auto& comm : {mesh.row, mesh.column}) {
    ENTRAIN_RETURN_IF_ERROR(
        comm->AllReduce(data.data(), data.data(), 1000, DType::kF32, ReduceOp::kSum));
  }
  return absl::OkStatus();
}

void Note(const absl::Status& status, Report* report) {
  const Blame blame = BlameOf(status);
  report->code = static_cast<int>(status.code());
  report->guilty = blame.peer_id;
  report->world_rank = blame.world_rank;
  report->at_ns = Clock::Real().Now();
  const std::string text(status.message());
  std::memcpy(report->text, text.data(), std::min(text.size(), sizeof(report->text) - 1));
  report->made.store(true);
}

class Culprit : public testing::TestWithParam<std::tuple<std::string, Ending>> {
 protected:
  void SetUp() override {
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
    ASSERT_NE(mkdtemp(directory_), nullptr);
  }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    munmap(shared_, sizeof(Shared));
    EXPECT_EQ(std::system((std::string("rm -rf ") + directory_).c_str()), 0);
  }

  void Start() {
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        RunRank(rank);
      }
      children_.push_back(pid);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const Deadline give_up = Deadline::After(20 * kSecond);
      while (shared_->rounds[rank].load() < 3 && !give_up.Passed(Clock::Real().Now())) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ASSERT_GE(shared_->rounds[rank].load(), 3) << "rank " << rank << " does not get to work";
    }
  }

  // All ranks but the victim blame the victim, within `limit_ns` of `since_ns`.
  void ExpectAllName(int64_t since_ns, int64_t limit_ns) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kVictim) {
        continue;
      }
      int status = 0;
      EXPECT_EQ(waitpid(children_[static_cast<size_t>(rank)], &status, 0),
                children_[static_cast<size_t>(rank)]);
      const Report& report = shared_->reports[rank];
      ASSERT_TRUE(report.made.load()) << "rank " << rank << ": " << status;
      EXPECT_EQ(report.guilty, shared_->ids[kVictim]) << "rank " << rank << ": " << report.text;
      EXPECT_EQ(report.world_rank, kVictim) << "rank " << rank << ": " << report.text;
      EXPECT_LT(report.at_ns - since_ns, limit_ns) << "rank " << rank << ": " << report.text;
    }
    children_ = {children_[kVictim]};
  }
  pid_t victim() const { return children_[kVictim]; }

 private:
  [[noreturn]] void RunRank(int rank) {
    auto mesh = Meet(directory_, std::get<0>(GetParam()), rank);
    absl::Status status = mesh.status();
    if (mesh.ok()) {
      shared_->ids[rank] = mesh->runtime->id();
      while (status.ok()) {
        status = Round(*mesh);
        shared_->rounds[rank].fetch_add(1);
      }
    }
    Note(status, &shared_->reports[rank]);
    if (mesh.ok() && std::get<1>(GetParam()) == Ending::kGivesUp) {
      // Like a method that is destroyed while its exchange is under way.
      mesh->row->EndWith(absl::AbortedError("edit: destroyed during an exchange"));
      mesh->column->Abort("destroyed during a step");
    }
    if (std::get<1>(GetParam()) != Ending::kAtOnce) {
      mesh = absl::CancelledError();
    }
    _exit(0);
  }

 protected:
  Shared* shared_ = nullptr;
  char directory_[32] = "/tmp/entrain-culprit-XXXXXX";
  std::vector<pid_t> children_;
};

TEST_P(Culprit, KilledRankIsNamedByThoseThatLostAnotherFirst) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const int64_t struck = Clock::Real().Now();
  kill(victim(), SIGKILL);
  ExpectAllName(struck, 2 * kSecond);
}

TEST_P(Culprit, StoppedRankIsNamedByThoseThatWaitForAnother) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const int64_t struck = Clock::Real().Now();
  kill(victim(), SIGSTOP);
  ExpectAllName(struck, kTimeout + 3 * kSecond);
}

const char* NameOf(Ending ending) {
  return ending == Ending::kAtOnce     ? "ends_at_once"
         : ending == Ending::kDestroys ? "destroys"
                                       : "gives_up";
}

INSTANTIATE_TEST_SUITE_P(Over, Culprit,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values(Ending::kAtOnce, Ending::kDestroys,
                                                          Ending::kGivesUp)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "_",
                                               NameOf(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace entrain
