// A failure ends on every rank, in time, and names the culprit. Ranks are threads with a runtime
// each. If a rank must die, they are processes.

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/create/bootstrap.h"
#include "lib/comm/create/runtime.h"
#include "lib/comm/plan/tuning.h"
#include "lib/store/store.h"
#include "tests/support/ranks.h"
#include "tests/support/transports.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::AllOf;
using testing::HasSubstr;

int64_t Now() {
  return Clock::Real().Now();
}

absl::Status AllReduce(const Comm& comm, std::vector<float>& data, int64_t timeout_ns = 0,
                       DType dtype = DType::kF32) {
  CallOptions options;
  options.timeout_ns = timeout_ns;
  return comm->AllReduce(data.data(), data.data(), static_cast<int64_t>(data.size()), dtype,
                         ReduceOp::kSum, options);
}

// Sends or receives a byte.
absl::Status Word(Communicator& comm, CallKind kind, int peer) {
  uint8_t word = 1;
  Call call;
  call.kind = kind;
  (kind == CallKind::kSend ? call.in : call.out) = {&word, sizeof(word)};
  call.count = 1;
  call.root = peer;
  return comm.Run(call);
}

class Failure : public testing::TestWithParam<std::string> {
 protected:
  RanksOptions Options() const {
    RanksOptions options;
    options.transports = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Failure, testing::ValuesIn(WithUcx({"inproc", "shm", "tcp"})),
                         [](const auto& test) { return test.param; });

TEST_P(Failure, DifferentCountsFailEverywhereNamingBoth) {
  RunRanks(4, Options(), [](const Comm& comm) {
    std::vector<float> data(comm->rank() == 2 ? 1000u : 1001u, 1.0f);
    const absl::Status status = AllReduce(comm, data);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(BlameOf(status).rank, 2) << "rank " << comm->rank() << ": " << status;
    // The words are the same on all ranks, whichever rank found the mismatch.
    EXPECT_EQ(status.message(),
              "all_reduce #2: ranks disagree: rank 2 called all_reduce sum of 1000 f32, ranks 0, "
              "1, 3 called "
              "all_reduce sum of 1001 f32");
    EXPECT_EQ(AllReduce(comm, data).code(), absl::StatusCode::kDataLoss);  // the first error stays
  });
}

TEST_P(Failure, TwoAgainstTwoBlameNobody) {
  RunRanks(4, Options(), [](const Comm& comm) {
    std::vector<float> data(comm->rank() < 2 ? 1000u : 1001u, 1.0f);
    const int64_t begin = Now();
    const absl::Status status = AllReduce(comm, data);
    EXPECT_LT(Now() - begin, kSecond);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(BlameOf(status).rank, -1) << status;
    EXPECT_EQ(status.message(),
              "all_reduce #2: ranks disagree: ranks 0, 1 called all_reduce sum of 1000 f32, ranks "
              "2, 3 called "
              "all_reduce sum of 1001 f32; which of these is wrong cannot be known");
  });
}

// The vote does not wait for a rank that has not come to the call.
TEST_P(Failure, MismatchIsFoundWithoutTheRankThatIsLate) {
  RunRanks(4, Options(), [](const Comm& comm) {
    std::vector<float> data(comm->rank() == 2 ? 1000u : 1001u, 1.0f);
    if (comm->rank() == 3) {
      while (comm->status().ok()) {
        std::this_thread::yield();
      }
    }
    const int64_t begin = Now();
    const absl::Status status = AllReduce(comm, data);
    EXPECT_LT(Now() - begin, 2 * kSecond);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(BlameOf(status).rank, 2) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("; not known: rank 3"));
  });
}

TEST_P(Failure, DifferentCallsAndRootsFailEverywhere) {
  for (const bool roots : {false, true}) {
    RunRanks(5, Options(), [&](const Comm& comm) {
      std::vector<float> data(100000, 1.0f);
      const bool odd = comm->rank() == 3;
      absl::Status status = roots ? comm->Broadcast(data.data(), 100000, DType::kF32, odd ? 1 : 0)
                                  : (odd ? comm->Barrier() : AllReduce(comm, data));
      if (roots && status.ok()) {
        // A rank that received the expected data is told by a rank that has found the different
        // call.
        EXPECT_FALSE(odd);
        status = comm->Barrier();
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_EQ(BlameOf(status).rank, 3) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(roots ? "from rank 1" : "barrier"));
    });
  }
}

TEST_P(Failure, DifferentTypesAreAMismatchEvenWithEqualBytes) {
  RunRanks(2, Options(), [](const Comm& comm) {
    std::vector<float> data(8, 1.0f);
    const absl::Status status =
        AllReduce(comm, data, 0, comm->rank() == 0 ? DType::kF32 : DType::kI32);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("f32"), HasSubstr("i32")));
  });
}

TEST_P(Failure, RankThatDoesNotComeIsNamedByAll) {
  RunRanks(4, Options(), [](const Comm& comm) {
    std::vector<float> data(5000, 1.0f);
    constexpr int64_t kTimeout = 400 * kMillisecond;
    if (comm->rank() == 1) {
      // Does not make the call. Leaves when the others have ended the communicator.
      while (comm->status().ok()) {
        std::this_thread::yield();
      }
      EXPECT_EQ(comm->status().code(), absl::StatusCode::kDeadlineExceeded);
      return;
    }
    const int64_t begin = Now();
    const absl::Status status = AllReduce(comm, data, kTimeout);
    const int64_t took = Now() - begin;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(BlameOf(status).rank, 1) << status;
    EXPECT_EQ(BlameOf(status).operation, "all_reduce");
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("has not started the call"),
                      testing::ContainsRegex("on rank [023] after")));
    EXPECT_GE(took, kTimeout - 10 * kMillisecond);
    EXPECT_LT(took, kTimeout + 250 * kMillisecond);
  });
}

TEST_P(Failure, AbortFromAnotherThreadEndsEverythingAtOnce) {
  RunRanks(3, Options(), [](const Comm& comm) {
    std::vector<float> data(1 << 20, 1.0f);
    std::thread aborter;
    if (comm->rank() == 0) {
      aborter = std::thread([&] {
        // The others are in their calls by then.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm->Abort("enough");
      });
    }
    const int64_t begin = Now();
    // Rank 0 never joins, so no rank can finish.
    const absl::Status status =
        comm->rank() == 0 ? absl::AbortedError("enough") : AllReduce(comm, data);
    if (aborter.joinable()) {
      aborter.join();
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
    EXPECT_LT(Now() - begin, 300 * kMillisecond);
    EXPECT_EQ(comm->Barrier().code(), absl::StatusCode::kAborted);
  });
}

TEST_P(Failure, EndingOnePartLeavesTheOthersAlone) {
  RunRanks(4, Options(), [](const Comm& comm) {
    auto part = comm->Split(comm->rank() / 2, 0);
    ASSERT_TRUE(part.ok()) << part.status();
    if (comm->rank() == 0) {
      (*part)->Abort("this part only");
    }
    if (comm->rank() < 2) {
      EXPECT_EQ((*part)->Barrier().code(), absl::StatusCode::kAborted);
    } else {
      EXPECT_EQ((*part)->Barrier(), absl::OkStatus());
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// Rank 1 learns of the end in the parent, and does not come to the part.
TEST_P(Failure, APartThatIsToldToEndsWithItsParent) {
  RunRanks(3, Options(), [](const Comm& comm) {
    auto part = comm->Split(comm->rank() / 2, 0);
    ASSERT_TRUE(part.ok()) << part.status();
    const std::shared_ptr<void> tie = comm->EndToo(**part);
    if (comm->rank() == 2) {
      for (const int rank : {0, 1}) {  // both have their part
        EXPECT_EQ(Word(*comm, CallKind::kRecv, rank), absl::OkStatus());
      }
      comm->Abort("enough");
      return;
    }
    Word(*comm, CallKind::kSend, 2).IgnoreError();  // the end may overtake its completion
    if (comm->rank() == 0) {
      const absl::Status status = (*part)->Barrier();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("aborted by rank 2: enough"));
      EXPECT_EQ(BlameOf(status).rank, -1) << "rank 2 is not in the part";
    } else {
      EXPECT_EQ(comm->Barrier().code(), absl::StatusCode::kAborted);
    }
    const auto again = comm->EndToo(**part);  // when both have ended
    EXPECT_EQ(comm->Barrier().code(), absl::StatusCode::kAborted);
    EXPECT_EQ((*part)->Barrier().code(), absl::StatusCode::kAborted);
  });
}

TEST_P(Failure, APartOutlivesAParentThatIsDestroyed) {
  RunRanks(2, Options(), [](const Comm& comm) {
    auto parent = comm->Split(0, 0);
    ASSERT_TRUE(parent.ok()) << parent.status();
    auto part = (*parent)->Split(0, 0);
    ASSERT_TRUE(part.ok()) << part.status();
    const auto tie = (*parent)->EndToo(**part);
    parent->reset();
    EXPECT_EQ((*part)->Barrier(), absl::OkStatus());
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST_P(Failure, APartThatIsNoLongerTiedOutlivesTheEndOfItsParent) {
  RunRanks(2, Options(), [](const Comm& comm) {
    auto parent = comm->Split(0, 0), part = comm->Split(0, 0);
    ASSERT_TRUE(parent.ok() && part.ok()) << parent.status() << part.status();
    (*parent)->EndToo(**part).reset();
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 0) {
      (*parent)->Abort("enough");
    }
    EXPECT_EQ((*parent)->Barrier().code(), absl::StatusCode::kAborted);
    EXPECT_EQ((*part)->Barrier(), absl::OkStatus());
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST_P(Failure, DestroyWithUnfinishedCallsAbortsOnAllRanks) {
  RunRanks(2, Options(), [](const Comm& comm) {
    auto part = comm->Split(0, 0);
    ASSERT_TRUE(part.ok());
    std::vector<float> data(100, 1.0f);
    if (comm->rank() == 0) {
      Call call;
      call.kind = CallKind::kRecv;
      call.dtype = DType::kF32;
      call.out = {data.data(), 400};
      call.count = 100;
      call.root = 1;
      const auto work = (*part)->Start(call);
      ASSERT_TRUE(work.ok());
      part->reset();
      EXPECT_TRUE((*work)->done());
      EXPECT_EQ((*work)->status().code(), absl::StatusCode::kAborted);
    } else {
      EXPECT_EQ(AllReduce(*part, data).code(), absl::StatusCode::kAborted);
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST_P(Failure, WaitThatExpiresChangesNothing) {
  RunRanks(2, Options(), [](const Comm& comm) {
    float value = 1;
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kF32;
    call.in = call.out = {&value, 4};
    call.count = 1;
    if (comm->rank() == 1) {  // this rank is late
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    const auto work = comm->Start(call);
    ASSERT_TRUE(work.ok());
    if (comm->rank() == 0) {
      EXPECT_FALSE((*work)->Wait(Deadline::After(5 * kMillisecond)));
    }
    EXPECT_TRUE((*work)->Wait(Deadline::After(20 * kSecond)));
    EXPECT_EQ((*work)->status(), absl::OkStatus());
    EXPECT_EQ(value, 2);
  });
}

// ---- Processes

// The findings of a child, in memory shared with the test.
struct Report {
  int code = -1;
  int guilty = -1;
  int64_t after_ns = 0;   // since the victim was stopped
  int64_t waited_ns = 0;  // for a core, from the victim's stop to the report
  char text[400] = {};
};

struct Shared {
  std::atomic<int> ready{0};
  std::atomic<int64_t> struck_at{0};
  std::atomic<int> reported{0};
  Report reports[8];

  int64_t waited_ns() const {
    int64_t sum = 0;
    for (const Report& report : reports) {
      sum += report.waited_ns;
    }
    return sum;
  }
};

// Returns how long the threads of a process have been ready to run and have waited for a core.
int64_t WaitedForCore(pid_t pid) {
  int64_t sum = 0;
  std::error_code gone;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    int64_t ran = 0, waited = 0;
    std::ifstream(task.path() / "schedstat") >> ran >> waited;
    sum += waited;
  }
  return sum;
}

enum class Operation { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier, kSendRecv };
constexpr const char* kOperationNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                           "broadcast",  "barrier",        "sendrecv"};

// Makes one call of the operation on all ranks. `data` holds ranks * count elements.
absl::Status Perform(const Comm& comm, Operation operation, absl::Span<float> data,
                     int64_t timeout_ns) {
  const int n = comm->size(), rank = comm->rank();
  const int64_t all = static_cast<int64_t>(data.size()), part = all / n;
  Call call;
  call.dtype = DType::kF32;
  call.options.timeout_ns = timeout_ns;
  call.count = all;
  call.in = call.out = {data.data(), all * 4};
  switch (operation) {
    case Operation::kAllReduce:
      call.kind = CallKind::kAllReduce;
      return comm->Run(call);
    case Operation::kReduceScatter:
      call.kind = CallKind::kReduceScatter;
      call.count = part;
      call.out = {data.data() + rank * part, part * 4};
      return comm->Run(call);
    case Operation::kAllGather:
      call.kind = CallKind::kAllGather;
      call.count = part;
      call.in = {data.data() + rank * part, part * 4};
      return comm->Run(call);
    case Operation::kBroadcast:
      call.kind = CallKind::kBroadcast;
      call.root = 1;
      return comm->Run(call);
    case Operation::kBarrier:
      return comm->Barrier(call.options);
    case Operation::kSendRecv: {
      std::vector<float> into(data.size());
      call.kind = CallKind::kRecv;
      call.root = (rank + n - 1) % n;
      call.out = {into.data(), all * 4};
      const auto receiving = comm->Start(call);
      if (!receiving.ok()) {
        return receiving.status();
      }
      call.kind = CallKind::kSend;
      call.root = (rank + 1) % n;
      const absl::Status sent = comm->Run(call);
      (*receiving)->Wait(Deadline::Never());
      return sent.ok() ? (*receiving)->status() : sent;
    }
  }
  return absl::InternalError("no such operation");
}

// The kinds of messages: small, large, or large in memory that the peers map.
enum class Size { kSmall, kLarge, kShared };
constexpr const char* kSizeNames[] = {"small", "large", "shared"};

// Forks a child like a data loader's worker. It lives until all copies of the other end of `life`
// are closed.
void ForkWorker(const int life[2]) {
  if (fork() == 0) {
    close(life[1]);
    char byte;
    _exit(read(life[0], &byte, 1) == 0 ? 0 : 1);
  }
}

// Runs ranks as processes over a file store. All loop over an operation. Then the victim, which has
// forked a child that outlives it, gets `signal`.
void Strike(Operation operation, int ranks, int victim, int signal, const std::string& transports,
            int64_t timeout_ns, Size size, Shared* shared) {
  char directory[] = "/tmp/entrain-failure-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  int life[2];
  ASSERT_EQ(pipe2(life, O_CLOEXEC), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      auto store = OpenStore(absl::StrCat("file:", directory), "", {Deadline::After(10 * kSecond)});
      RuntimeOptions runtime_options;
      runtime_options.transports = transports;
      auto runtime = Runtime::Create(runtime_options);
      if (!store.ok() || !runtime.ok()) {
        _exit(3);
      }
      CommOptions options;
      options.runtime = *runtime;
      options.store = *store;
      options.rank = rank;
      options.size = ranks;
      options.timeout_ns = 20 * kSecond;
      auto comm = Communicator::Create(options);
      if (!comm.ok()) {
        _exit(4);
      }
      std::vector<float> own(size == Size::kSmall ? 100 : 4 << 20, 0.0f);
      absl::Span<float> data = absl::MakeSpan(own);
      if (size == Size::kShared) {
        auto memory = (*comm)->runtime().memory().Allocate(
            static_cast<int64_t>(own.size() * sizeof(float)), SealedMemory::Pages::kUsual);
        if (!memory.ok()) {
          _exit(5);
        }
        data = {static_cast<float*>(*memory), own.size()};
      }
      if (rank == victim) {
        ForkWorker(life);
      }
      shared->ready.fetch_add(1);
      absl::Status status;
      while (status.ok()) {
        status = Perform(*comm, operation, data, timeout_ns);
      }
      Report& report = shared->reports[rank];
      report.after_ns = Now() - shared->struck_at.load();
      report.waited_ns += WaitedForCore(getpid());
      report.code = static_cast<int>(status.code());
      report.guilty = BlameOf(status).rank;
      std::strncpy(report.text, std::string(status.message()).c_str(), sizeof(report.text) - 1);
      shared->reported.fetch_add(1);
      // If this rank ended now, UCX could drop its news of the failure on a rank that has much to
      // read (transports/ucx/README.md). This rank would then be named there.
      const Deadline all_know = Deadline::After(transports == "ucx" ? 5 * kSecond : 0);
      while (shared->reported.load() < ranks - 1 && !all_know.Passed(Now())) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      _exit(size != Size::kShared || (*comm)->runtime().memory().Free(data.data()).ok() ? 0 : 6);
    }
    children.push_back(pid);
  }
  const int64_t give_up = Now() + 15 * kSecond;
  while (shared->ready.load() < ranks && Now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(shared->ready.load(), ranks) << "the ranks did not meet";
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // until the ranks are in the loop
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != victim) {
      shared->reports[rank].waited_ns = -WaitedForCore(children[static_cast<size_t>(rank)]);
    }
  }
  shared->struck_at.store(Now());
  kill(children[static_cast<size_t>(victim)], signal);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != victim) {
      int exit_status = 0;
      while (waitpid(children[static_cast<size_t>(rank)], &exit_status, WNOHANG) == 0) {
        if (Now() > give_up + 15 * kSecond) {
          kill(children[static_cast<size_t>(rank)], SIGKILL);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the child has ended
      }
      EXPECT_EQ(exit_status, 0) << "rank " << rank;
    }
  }
  kill(children[static_cast<size_t>(victim)], SIGKILL);
  waitpid(children[static_cast<size_t>(victim)], nullptr, 0);
  close(life[0]);
  close(life[1]);
  std::string remove = absl::StrCat("rm -rf ", directory);
  EXPECT_EQ(std::system(remove.c_str()), 0);
}

class FailureOfAProcess : public testing::TestWithParam<std::tuple<std::string, Size, Operation>> {
 protected:
  FailureOfAProcess()
      : shared_(new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared) {}
  ~FailureOfAProcess() override { munmap(shared_, sizeof(Shared)); }
  std::string transport() const { return std::get<0>(GetParam()); }
  Size size() const { return std::get<1>(GetParam()); }
  Operation operation() const { return std::get<2>(GetParam()); }
  Shared* const shared_;
};
INSTANTIATE_TEST_SUITE_P(
    Over, FailureOfAProcess,
    testing::Combine(testing::ValuesIn(WithUcx({"shm", "tcp"})),
                     testing::Values(Size::kSmall, Size::kLarge, Size::kShared),
                     testing::Values(Operation::kAllReduce, Operation::kReduceScatter,
                                     Operation::kAllGather, Operation::kBroadcast,
                                     Operation::kBarrier, Operation::kSendRecv)),
    [](const auto& param) {
      return absl::StrCat(std::get<0>(param.param), "_",
                          kSizeNames[static_cast<int>(std::get<1>(param.param))], "_",
                          kOperationNames[static_cast<int>(std::get<2>(param.param))]);
    });

TEST_P(FailureOfAProcess, KilledRankIsNamedWithinTwoSeconds) {
  Strike(operation(), 4, 2, SIGKILL, transport(), 20 * kSecond, size(), shared_);
  for (const int rank : {0, 1, 3}) {
    const Report& report = shared_->reports[rank];
    EXPECT_EQ(report.code, static_cast<int>(absl::StatusCode::kUnavailable)) << report.text;
    EXPECT_EQ(report.guilty, 2) << report.text;
    EXPECT_LT(report.after_ns, 2 * kSecond) << report.text;
    EXPECT_THAT(report.text, HasSubstr("rank 2"));
  }
}

#if defined(__SANITIZE_THREAD__)
constexpr int64_t kNoticed = kSecond;  // every access takes many times as long
#else
constexpr int64_t kNoticed = 250 * kMillisecond;
#endif

TEST_P(FailureOfAProcess, StoppedRankIsNamedAfterTheDeadline) {
  // Longer than a rank waits for a core beside other tests. Otherwise a call ends before the strike.
  constexpr int64_t kTimeout = 600 * kMillisecond;
  Strike(operation(), 4, 1, SIGSTOP, transport(), kTimeout, size(), shared_);
  for (const int rank : {0, 2, 3}) {
    const Report& report = shared_->reports[rank];
    EXPECT_EQ(report.code, static_cast<int>(absl::StatusCode::kDeadlineExceeded)) << report.text;
    EXPECT_EQ(report.guilty, 1) << report.text;
    // Several processes must notice the failure one after the other. Each of them may have waited
    // for a core.
    EXPECT_LT(report.after_ns, kTimeout + kNoticed + shared_->waited_ns())
        << report.text << "; the ranks waited " << shared_->waited_ns() << " ns for a core";
    EXPECT_THAT(report.text, HasSubstr("rank 1"));
  }
}

// ---- Creation

absl::Status CreateOne(const std::shared_ptr<Store>& store, int rank, int size, int64_t timeout_ns,
                       const std::string& algorithms = "", const std::string& tuning = "") {
  RuntimeOptions runtime_options;
  runtime_options.transports = "inproc";
  auto runtime = Runtime::Create(runtime_options);
  if (!runtime.ok()) {
    return runtime.status();
  }
  CommOptions options;
  options.runtime = *runtime;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.timeout_ns = timeout_ns;
  options.algorithms = algorithms;
  options.tuning = tuning;
  return Communicator::Create(options).status();
}

std::shared_ptr<Store> NewStore(const char* name) {
  return *OpenStore(absl::StrCat("mem:", name), "", {Deadline::After(kSecond)});
}

TEST(Creation, AbsentRanksAreNamed) {
  const auto store = NewStore("absent");
  const absl::Status status = CreateOne(store, 0, 3, 200 * kMillisecond);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not come: 1, 2"));
  EXPECT_EQ(BlameOf(status).phase, Phase::kBootstrap);
}

TEST(Creation, RankClaimedTwiceFailsForAll) {
  const auto store = NewStore("twice");
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    // Ranks 0, 1, 1 of 3: the third rank never comes, and no rank waits for it.
    threads.emplace_back([&, i] {
      statuses[static_cast<size_t>(i)] = CreateOne(store, i == 0 ? 0 : 1, 3, 20 * kSecond);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 was claimed by 2 processes"));
  }
}

// A tuning file that is removed when the test ends.
class TuningFile {
 public:
  explicit TuningFile(const std::string& text) {
    close(mkstemp(path_));
    std::ofstream(path_) << text;
  }
  ~TuningFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  char path_[64] = "/tmp/entrain_failure_test.XXXXXX";
};

std::vector<absl::Status> CreateWithTunings(const char* store_name,
                                            const std::vector<std::string>& tunings) {
  const auto store = NewStore(store_name);
  std::vector<absl::Status> statuses(tunings.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < tunings.size(); ++i) {
    threads.emplace_back([&, i] {
      statuses[i] = CreateOne(store, static_cast<int>(i), static_cast<int>(tunings.size()),
                              20 * kSecond, "", tunings[i]);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return statuses;
}

TEST(Creation, TuningsThatDifferFailForAllAndAreNamed) {
  const TuningFile file(
      "entrain-tuning 2\nlink inproc ranks 2 free call_us 1 latency_us 1 message_us "
      "1 switch_us 1 gbs 1 host_gbs 1 reduce_gbs 1\n");
  for (const std::string& other : {std::string(), std::string("probe")}) {
    for (const absl::Status& status :
         CreateWithTunings(other.empty() ? "tuned" : "probed", {other, other, file.path()})) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::AllOf(HasSubstr("rank 0"), HasSubstr("the library's own values"),
                                 HasSubstr("rank 2"), HasSubstr(file.path())));
      EXPECT_EQ(BlameOf(status).phase, Phase::kBootstrap);
    }
  }
}

TEST(Creation, TuningsAreComparedByWhatTheySay) {
  const std::string own = BuiltinTuning()->ToText();
  const TuningFile copy(own), other_copy("# the same\n" + own);
  for (const absl::Status& status :
       CreateWithTunings("copied", {"", copy.path(), other_copy.path()})) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Creation, TuningThatIsNoneIsNamed) {
  const auto store = NewStore("untuned");
  const TuningFile bad("entrain-tuning 2\nknot shm\n");
  const auto message = [&](const std::string& tuning) {
    return std::string(CreateOne(store, 0, 1, kSecond, "", tuning).message());
  };
  EXPECT_THAT(message(bad.path()), HasSubstr(absl::StrCat(bad.path(), ":2: \"knot\"")));
  EXPECT_THAT(message("/no/such/tuning"), HasSubstr("/no/such/tuning"));
}

class KeptDirectory : public testing::Test {
 protected:
  KeptDirectory() { EXPECT_NE(mkdtemp(path_), nullptr); }
  ~KeptDirectory() override { std::filesystem::remove_all(path_); }

  // Runs ranks like those of a separate job.
  std::vector<absl::Status> Run(int size, int64_t timeout_ns = 20 * kSecond, int come = 99) const {
    std::vector<absl::Status> statuses(static_cast<size_t>(std::min(size, come)));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < statuses.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto store =
            OpenStore(absl::StrCat("file:", path_), "", {Deadline::After(10 * kSecond)});
        statuses[rank] = store.ok() ? CreateOne(*store, static_cast<int>(rank), size, timeout_ns)
                                    : store.status();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return statuses;
  }

  char path_[32] = "/tmp/entrain-kept-XXXXXX";
};

TEST_F(KeptDirectory, SecondRunIsToldThatEachNeedsItsOwn) {
  for (const absl::Status& status : Run(2)) {
    ASSERT_TRUE(status.ok()) << status;
  }
  // A rank that the first run did not have must not wait for others either.
  for (const int size : {2, 1, 3}) {
    const int64_t start = Now();
    for (const absl::Status& status : Run(size)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(absl::StrCat("file:", path_, " has been used before")),
                        HasSubstr("each run needs a store of its own, here a new or empty")));
    }
    EXPECT_LT(Now() - start, 10 * kSecond);
  }
}

TEST_F(KeptDirectory, RunAfterOneThatNeverMetIsToldBothReasons) {
  EXPECT_EQ(Run(2, 200 * kMillisecond, 1)[0].code(), absl::StatusCode::kDeadlineExceeded);
  const absl::Status status = Run(1)[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0 was claimed by 2 processes: several were given this rank"),
                    HasSubstr(absl::StrCat("an earlier run used file:", path_))));
}

TEST(Creation, DifferentSettingsAndSizesAreMismatches) {
  for (const bool sizes : {false, true}) {
    const auto store = NewStore(sizes ? "sizes" : "settings");
    std::vector<absl::Status> statuses(2);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        statuses[static_cast<size_t>(i)] = CreateOne(store, i, sizes ? 2 + i : 2, 20 * kSecond,
                                                     sizes || i == 0 ? "" : "barrier:direct");
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    }
  }
}

TEST(Creation, BadArgumentsNameThemselves) {
  const auto store = NewStore("bad");
  EXPECT_THAT(std::string(CreateOne(store, 2, 2, kSecond).message()), HasSubstr("rank: 2"));
  EXPECT_THAT(std::string(CreateOne(store, 0, 0, kSecond).message()), HasSubstr("world_size: 0"));
  EXPECT_THAT(std::string(CreateOne(store, 0, 1, kSecond, "all_reduce:magic").message()),
              HasSubstr("magic"));
  EXPECT_THAT(std::string(CreateOne(store, 0, 1, kSecond, "all_reduce").message()),
              HasSubstr("COLLECTIVE:ALGORITHM"));
}

TEST(Creation, CardSurvivesTheWireAndRefusesGarbage) {
  Card card;
  card.rank = 3;
  card.tuning = "somewhere";
  card.host_id = "host";
  card.context = 9;
  card.settings = "s";
  card.addresses = {{"tcp", "127.0.0.1:1"}};
  card.cpus = {CpuSet::First(5), {6, 7, 1500}};
  const Parts parts = card.ToParts();
  const auto back = Card::FromParts(parts);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->ToParts(), parts);
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->addresses, card.addresses);
  EXPECT_EQ(back->cpus.set.Count(), 5);
  EXPECT_EQ(back->cpus.quota.inode, 7u);
  EXPECT_EQ(back->cpus.quota.millicores, 1500u);
  for (size_t part : {0, 1, 3}) {
    Parts longer = parts;
    longer[part] += '\0';
    EXPECT_FALSE(Card::FromParts(longer).ok()) << part;
    for (size_t cut = 0; cut < parts[part].size(); ++cut) {
      Parts shorter = parts;
      shorter[part].resize(cut);
      EXPECT_FALSE(Card::FromParts(shorter).ok()) << part << " " << cut;
    }
  }
  for (size_t count = 0; count < parts.size(); ++count) {
    const Parts fewer(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count));
    EXPECT_EQ(Card::FromParts(fewer).ok(), count == 4) << count;  // without addresses
  }
  Card evil = card;  // its texts are quoted in a disagreement
  evil.settings = "\x1b[2Jwell";
  evil.tuning = "a\nb";
  evil.addresses = {{"t\x07p", "\xff"}};
  const auto clean = Card::FromParts(evil.ToParts());
  ASSERT_TRUE(clean.ok());
  EXPECT_EQ(clean->settings, "?[2Jwell");
  EXPECT_EQ(clean->tuning, "a b");
  EXPECT_EQ(clean->addresses[0].first, "t?p");
  EXPECT_EQ(clean->addresses[0].second, "?");
}

}  // namespace
}  // namespace entrain
