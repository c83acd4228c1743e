// The ranks that are left after a failure make a communicator of their own, and go on. Ranks are
// threads with a runtime each, or processes if one of them must die or stop.

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "tests/support/ranks.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::HasSubstr;

int64_t Now() {
  return Clock::Real().Now();
}

// Sums rank + 1 over the communicator.
absl::Status Sum(const Comm& comm, std::vector<float>* data) {
  std::fill(data->begin(), data->end(), static_cast<float>(comm->rank() + 1));
  return comm->AllReduce(data->data(), data->data(), static_cast<int64_t>(data->size()),
                         DType::kF32, ReduceOp::kSum);
}

void ExpectSum(const Comm& comm, size_t count = 1000) {
  std::vector<float> data(count);
  const absl::Status status = Sum(comm, &data);
  ASSERT_EQ(status, absl::OkStatus());
  const int n = comm->size();
  EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(n * (n + 1) / 2)));
}

// Words that all processes of a test share.
struct Shared {
  std::atomic<int> ready{0}, pid{0}, done{0};
  std::atomic<int64_t> struck_at{0};
  std::atomic<int64_t> after_ns[8];
};

class Shrink : public testing::TestWithParam<std::string> {
 protected:
  Shrink()
      : shared_(new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared) {}
  ~Shrink() override { munmap(shared_, sizeof(Shared)); }

  RanksOptions Options() const {
    RanksOptions options;
    options.transports = GetParam();
    return options;
  }
  // `deaths`: ranks that do not end well.
  void Run(int size, const std::vector<int>& deaths, const RankBody& body) {
    const std::vector<int> ends = RunRankProcesses(size, Options(), body);
    for (int r = 0; r < size; ++r) {
      if (std::find(deaths.begin(), deaths.end(), r) == deaths.end()) {
        EXPECT_EQ(ends[static_cast<size_t>(r)], 0) << "rank " << r;
      }
    }
  }
  // Makes large sums until one fails. The rank `victim` is killed in the middle of a sum.
  absl::Status SumUntilLost(const Comm& comm, int victim) {
    std::vector<float> data(1 << 20);
    if (comm->rank() == victim) {
      std::thread([this] {
        Becomes([this] { return shared_->ready.load() > 40; });  // the sums are under way
        shared_->struck_at = Now();
        kill(getpid(), SIGKILL);
      }).detach();
    }
    absl::Status status;
    while (status.ok()) {
      status = Sum(comm, &data);
      shared_->ready.fetch_add(1);
    }
    return status;
  }

  Shared* const shared_;
};
INSTANTIATE_TEST_SUITE_P(Over, Shrink, testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(Shrink, SurvivorsOfAKilledRankGoOn) {
  Run(4, {1}, [this](const Comm& comm) {
    const absl::Status lost = SumUntilLost(comm, 1);
    EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
    EXPECT_EQ(comm->generation(), 0u);
    const auto next = comm->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    shared_->after_ns[comm->rank()] = Now() - shared_->struck_at;
    EXPECT_EQ((*next)->size(), 3);
    EXPECT_EQ((*next)->rank(), comm->rank() == 0 ? 0 : comm->rank() - 1);
    EXPECT_EQ((*next)->generation(), 1u);
    EXPECT_EQ((*next)->name(), comm->name());
    const auto members = comm->Members();
    EXPECT_EQ(members[1].state, MemberReport::State::kLost);
    EXPECT_FALSE(members[1].why.ok());
    EXPECT_EQ(members[2].state, MemberReport::State::kAlive);
    EXPECT_EQ((*next)->Members()[1].parent_rank, 2);
    EXPECT_EQ((*next)->Members()[1].id, members[2].id);
    ExpectSum(*next);
  });
  printf("[ %s ] from SIGKILL to the new communicator: ", GetParam().c_str());
  for (const int r : {0, 2, 3}) {
    printf(" rank %d %.1f ms", r, static_cast<double>(shared_->after_ns[r].load()) * 1e-6);
  }
  printf("\n");
}

TEST_P(Shrink, ARankThatDiesDuringTheShrinkIsLeftOutToo) {
  Run(5, {1, 3}, [this](const Comm& comm) {
    SumUntilLost(comm, 1).IgnoreError();
    if (comm->rank() == 3) {
      // Dies while the others wait for it: they have called, and this rank has not.
      Becomes([this] { return shared_->done.load() == 3; });
      kill(getpid(), SIGKILL);
    }
    shared_->done.fetch_add(1);
    const auto next = comm->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->size(), 3);
    ExpectSum(*next);
  });
}

// If the agreement does not notice a death, the first call on the new communicator fails. This
// communicator can be shrunk again.
TEST_P(Shrink, SixFiveFour) {
  Run(6, {2, 5}, [this](const Comm& comm) {
    Comm now = comm;
    for (const int victim : {5, 2}) {
      std::vector<float> data(1000);
      if (comm->rank() == victim) {
        // A death would end the others' sum, if they still wait for one another.
        while (victim == 2 && shared_->ready < 4) {
          usleep(1000);  // the others have the sum of five
        }
        kill(getpid(), SIGKILL);
      }
      absl::Status status;
      while (status.ok()) {
        status = Sum(now, &data);
      }
      EXPECT_EQ(BlameOf(status).generation, now->generation()) << status;
      const auto next = now->Shrink();
      ASSERT_TRUE(next.ok()) << next.status();
      now = *next;
      EXPECT_EQ(now->size(), victim == 5 ? 5 : 4);
      EXPECT_EQ(now->generation(), victim == 5 ? 1u : 2u);
      ExpectSum(now);
      shared_->ready += victim == 5 && comm->rank() != 2 ? 1 : 0;
    }
    EXPECT_EQ(now->Members()[2].parent_rank, 3);
  });
}

TEST_P(Shrink, TheLastRankGoesOnAlone) {
  for (const int victim : {0, 1}) {
    Run(2, {victim}, [victim](const Comm& comm) {
      if (comm->rank() == victim) {
        kill(getpid(), SIGKILL);
      }
      std::vector<float> data(100);
      absl::Status status;
      while (status.ok()) {
        status = Sum(comm, &data);
      }
      const auto next = comm->Shrink();
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_EQ((*next)->size(), 1);
      ExpectSum(*next);
    });
  }
}

TEST_P(Shrink, AStoppedRankIsLeftOutAndLearnsIt) {
  Run(4, {}, [this](const Comm& comm) {
    std::vector<float> data(1000);
    if (comm->rank() == 2) {
      shared_->pid = getpid();
      kill(getpid(), SIGSTOP);  // rank 0 lets it continue
      // From the first call on.
      absl::Status status = Sum(comm, &data);
      EXPECT_TRUE(Becomes([&] {
        status = comm->Barrier();
        return status.code() == absl::StatusCode::kOutOfRange;
      })) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 0, 1, 3 went on")) << status;
      const auto next = comm->Shrink();
      EXPECT_EQ(next.status().code(), absl::StatusCode::kOutOfRange) << next.status();
      EXPECT_THAT(std::string(next.status().message()), HasSubstr("ranks 0, 1, 3 went on"));
      return;
    }
    const int64_t begin = Now();
    ShrinkOptions options;
    options.timeout_ns = 2 * kSecond;
    if (comm->rank() == 0) {
      Becomes([this] { return shared_->pid.load() != 0; });
    }
    const auto next = comm->Shrink(options);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_LT(Now() - begin, 4 * kSecond);
    EXPECT_EQ((*next)->size(), 3);
    ExpectSum(*next);
    if (comm->rank() == 0) {
      kill(shared_->pid, SIGCONT);
    }
  });
}

// The deadline of the sums is that of the communicator, 30 s at least.
TEST_P(Shrink, WithALimitOfSilenceAStoppedRankHoldsTheOthersNoLonger) {
  Run(4, {2}, [this](const Comm& comm) {
    comm->SetSilence(kSecond);
    ExpectSum(comm);
    if (comm->rank() == 2) {
      shared_->pid = getpid();
      kill(getpid(), SIGSTOP);
      _exit(1);
    }
    Becomes([this] { return shared_->pid.load() != 0; });
    const int64_t begin = Now();
    std::vector<float> data(1000);
    const absl::Status lost = Sum(comm, &data);
    EXPECT_TRUE(absl::IsDeadlineExceeded(lost)) << lost;
    EXPECT_THAT(std::string(lost.message()), HasSubstr("answered nothing for 1 s (silence)"));
    EXPECT_EQ(BlameOf(lost).rank, 2) << lost;
    ShrinkOptions options;
    options.exclude = {2};
    const auto next = comm->Shrink(options);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_LT(Now() - begin, 5 * kSecond);
    EXPECT_EQ((*next)->silence_ns(), kSecond);
    ExpectSum(*next);
    shared_->done.fetch_add(1);
    Becomes([this] { return shared_->done.load() == 3; });
    if (comm->rank() == 0) {
      kill(shared_->pid, SIGKILL);
    }
  });
}

TEST_P(Shrink, WithALimitOfSilenceASlowProgramIsWaitedFor) {
  Run(3, {}, [](const Comm& comm) {
    comm->SetSilence(500 * kMillisecond);
    if (comm->rank() == 1) {
      usleep(2'500'000);  // the program computes
    }
    ExpectSum(comm);
  });
}

TEST_P(Shrink, AgreeWithADeadMember) {
  Run(4, {3}, [](const Comm& comm) {
    if (comm->rank() == 3) {
      kill(getpid(), SIGKILL);
    }
    uint32_t flag = comm->rank() == 1 ? 0b1011 : 0b1110;
    const absl::Status agreed = comm->Agree(&flag);
    ASSERT_EQ(agreed, absl::OkStatus());
    EXPECT_EQ(flag, 0b1010u);
    flag = comm->rank() == 2 ? 4 : 7;
    ASSERT_EQ(comm->Agree(&flag), absl::OkStatus());
    EXPECT_EQ(flag, 4u);
    const auto next = comm->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    ExpectSum(*next);
  });
}

TEST_P(Shrink, APartCanBeShrunk) {
  Run(5, {4}, [](const Comm& comm) {
    auto part = comm->Split(comm->rank() % 2, 0);
    ASSERT_TRUE(part.ok());
    if (comm->rank() == 4) {
      kill(getpid(), SIGKILL);
    }
    if (comm->rank() % 2 == 1) {
      ExpectSum(*part);  // {1, 3} is not concerned
      return;
    }
    const auto next = (*part)->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->size(), 2);
    EXPECT_EQ((*next)->generation(), 1u);
    EXPECT_THAT((*next)->name(), HasSubstr("/0"));
    ExpectSum(*next);
  });
}

// ---- Without deaths

class ShrinkOfThreads : public testing::Test {};

TEST_F(ShrinkOfThreads, AnExcludedRankLearnsWhoExcludesIt) {
  RunRanks(4, [](const Comm& comm) {
    if (comm->rank() == 3) {
      EXPECT_TRUE(Becomes([&] { return !comm->status().ok(); }));
      EXPECT_EQ(comm->status().code(), absl::StatusCode::kOutOfRange) << comm->status();
      EXPECT_THAT(std::string(comm->Shrink().status().message()), HasSubstr("excludes it"));
      return;
    }
    ShrinkOptions options;
    if (comm->rank() == 1) {
      options.exclude = {3};
    }
    const auto next = comm->Shrink(options);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->size(), 3);
    ExpectSum(*next);
  });
}

TEST_F(ShrinkOfThreads, ACallThatTimedOutMayBeRepeated) {
  std::atomic<int> timed_out{0};
  RunRanks(3, [&](const Comm& comm) {
    ShrinkOptions options;
    options.timeout_ns = 200 * kMillisecond;
    if (comm->rank() == 2) {
      Becomes([&] { return timed_out.load() == 2; });
    } else {
      const auto none = comm->Shrink(options);
      EXPECT_EQ(none.status().code(), absl::StatusCode::kDeadlineExceeded) << none.status();
      EXPECT_THAT(std::string(none.status().message()), HasSubstr("rank 2 did not make the call"));
      EXPECT_EQ(BlameOf(none.status()).rank, 2);
      EXPECT_EQ(BlameOf(none.status()).operation, "shrink");
      timed_out.fetch_add(1);
    }
    options.timeout_ns = 0;
    const auto next = comm->Shrink(options);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->size(), 3);
    ExpectSum(*next);
    ExpectSum(comm);  // the old one has not ended
  });
}

TEST_F(ShrinkOfThreads, DifferentCallsAreAMismatch) {
  RunRanks(3, [](const Comm& comm) {
    uint32_t flag = 1;
    const absl::Status status = comm->rank() == 1 ? comm->Agree(&flag) : comm->Shrink().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("called agree"));
    const auto next = comm->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    ExpectSum(*next);
  });
}

TEST_F(ShrinkOfThreads, WrongArgumentsAreNamed) {
  RunRanks(2, [](const Comm& comm) {
    for (const int rank : {-1, 2, comm->rank()}) {
      ShrinkOptions options;
      options.exclude = {rank};
      const absl::Status status = comm->Shrink(options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("exclude: ", rank)));
    }
    EXPECT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST_F(ShrinkOfThreads, ARankThatHasLeftIsNoMember) {
  RunRanks(3, [](const Comm& comm) {
    auto copy = comm->Split(0, comm->rank());
    ASSERT_TRUE(copy.ok());
    if (comm->rank() == 0) {
      copy->reset();
      return;
    }
    const auto next = (*copy)->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->size(), 2);
    EXPECT_EQ((*copy)->Members()[0].state, MemberReport::State::kLeft);
    ExpectSum(*next);
  });
}

TEST_F(ShrinkOfThreads, ARankThatGivesUpIsNotWaitedFor) {
  RunRanks(3, [](const Comm& comm) {
    if (comm->rank() == 0) {
      comm->LeaveWith(absl::InternalError("cannot go on"));
      EXPECT_EQ(comm->Shrink().status().code(), absl::StatusCode::kAborted);
      uint32_t flag = 1;
      EXPECT_EQ(comm->Agree(&flag).code(), absl::StatusCode::kAborted);
      EXPECT_THAT(std::string(comm->status().message()), HasSubstr("cannot go on"));
      return;
    }
    EXPECT_TRUE(Becomes([&] { return !comm->status().ok(); }));
    const int64_t begin = Now();
    const auto next = comm->Shrink();
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->size(), 2);
    EXPECT_LT(Now() - begin, comm->timeout_ns() / 2);
    ExpectSum(*next);
  });
}

}  // namespace
}  // namespace entrain
