// Blocking calls that have a form with a work: splitting a communicator. Works and parts are freed,
// destroyed, or never finish.
#include <atomic>
#include <cstdint>
#include <future>
#include <iterator>
#include <latch>
#include <thread>
#include <vector>

#include <poll.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"
#include "tests/support/wait.h"

namespace entrain_test {
namespace {

using entrain::Becomes;

constexpr int64_t kSecondNs = 1'000'000'000;

int32_t SumOfRanks(entrain_comm_t* comm) {
  int32_t rank = -1;
  EXPECT_OK(entrain_comm_rank(comm, &rank));
  EXPECT_OK(entrain_all_reduce(comm, &rank, &rank, 1, ENTRAIN_I32, ENTRAIN_SUM, nullptr, nullptr));
  return rank;
}

// The parameter tells which thread makes progress.
class Started : public testing::TestWithParam<int32_t> {
 protected:
  static WorldOptions options() {
    WorldOptions options;
    options.progress = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Progress, Started,
                         testing::Values(ENTRAIN_PROGRESS_THREAD, ENTRAIN_PROGRESS_CALLER),
                         [](const auto& test) {
                           return test.param == ENTRAIN_PROGRESS_THREAD ? "thread" : "caller";
                         });

TEST_P(Started, SplitGivesTheSamePartsAsTheBlockingCall) {
  RunWorld(
      4,
      [](const Rank& self) {
        const int32_t color = self.rank == 3 ? -1 : 7;
        entrain_comm_t* part = nullptr;
        if (self.rank == 0) {  // both forms match each other
          ASSERT_OK(entrain_comm_split(self.comm, color, -self.rank, &part, nullptr));
        } else {
          entrain_work_t* work = nullptr;
          EXPECT_FAILS(entrain_comm_split(self.comm, color, -self.rank, &part, &work),
                       ENTRAIN_INVALID_ARGUMENT, "part and work are both given");
          ASSERT_OK(entrain_comm_split(self.comm, color, -self.rank, nullptr, &work));
          entrain_work_info_t info;
          entrain_work_info_init(&info);
          ASSERT_OK(entrain_work_info(work, &info));
          EXPECT_STREQ(info.operation, "split");
          EXPECT_STREQ(info.comm, "world");
          EXPECT_OK(entrain_work_wait(work, -1));
          ASSERT_OK(entrain_comm_split_finish(work, &part));
          entrain_comm_t* again = nullptr;
          EXPECT_FAILS(entrain_comm_split_finish(work, &again), ENTRAIN_FAILED_PRECONDITION,
                       "taken before");
          entrain_work_free(work);
        }
        EXPECT_EQ(part == nullptr, self.rank == 3);
        if (part != nullptr) {
          int32_t rank = -1;
          EXPECT_OK(entrain_comm_rank(part, &rank));
          EXPECT_EQ(rank, 2 - self.rank);
          EXPECT_EQ(SumOfRanks(part), 3);
        }
        entrain_comm_destroy(part);
      },
      options());
}

TEST_P(Started, DuplicateIsWaitedForByDescriptorAndTaken) {
  RunWorld(
      3,
      [](const Rank& self) {
        entrain_work_t* work = nullptr;
        ASSERT_OK(entrain_comm_duplicate(self.comm, nullptr, &work));
        pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
        ASSERT_OK(entrain_work_descriptor(work, &readable.fd));
        int32_t over = 0;
        while (poll(&readable, 1, 1) == 0) {
          EXPECT_OK(entrain_work_test(work, &over));
        }
        entrain_comm_t* copy = nullptr;
        ASSERT_OK(entrain_comm_split_finish(work, &copy));
        entrain_work_free(work);
        EXPECT_EQ(SumOfRanks(copy), 3);
        entrain_comm_destroy(copy);
      },
      options());
}

// done() splits and takes the part. Calls on the part follow.
struct InDone {
  entrain_comm_t *comm, *part = nullptr;
  entrain_work_t *first = nullptr, *split = nullptr, *sum = nullptr;
  int32_t rank = 0;
  std::atomic<bool> over{false};
};

void SumOver(entrain_status_t status, void* user) {
  EXPECT_EQ(status, ENTRAIN_OK);
  static_cast<InDone*>(user)->over = true;
}

void SplitOver(entrain_status_t status, void* user) {
  auto* const self = static_cast<InDone*>(user);
  EXPECT_EQ(status, ENTRAIN_OK);
  ASSERT_OK(entrain_comm_split_finish(self->split, &self->part));
  ASSERT_OK(entrain_all_reduce(self->part, &self->rank, &self->rank, 1, ENTRAIN_I32, ENTRAIN_SUM,
                               nullptr, &self->sum));
  EXPECT_OK(entrain_work_notify(self->sum, SumOver, self));
}

void FirstOver(entrain_status_t status, void* user) {
  auto* const self = static_cast<InDone*>(user);
  EXPECT_EQ(status, ENTRAIN_OK);
  ASSERT_OK(entrain_comm_split(self->comm, 0, 0, nullptr, &self->split));
  EXPECT_OK(entrain_work_notify(self->split, SplitOver, self));
}

TEST(StartedSplit, IsStartedAndTakenInsideDone) {
  RunWorld(3, [](const Rank& self) {
    InDone calls{.comm = self.comm};
    calls.rank = self.rank;
    ASSERT_OK(entrain_barrier(self.comm, nullptr, &calls.first));
    ASSERT_OK(entrain_work_notify(calls.first, FirstOver, &calls));
    EXPECT_TRUE(Becomes([&] { return calls.over.load(); }));
    EXPECT_EQ(calls.rank, 3);
    for (entrain_work_t* work : {calls.first, calls.split, calls.sum}) {
      entrain_work_free(work);
    }
    entrain_comm_destroy(calls.part);
  });
}

TEST(StartedSplit, IsNotOverBeforeAllHaveComeAndAWaitChangesNothing) {
  std::latch tried(1);
  RunWorld(2, [&](const Rank& self) {
    entrain_work_t* work = nullptr;
    entrain_comm_t* part = nullptr;
    if (self.rank == 1) {
      tried.wait();
    }
    ASSERT_OK(entrain_comm_split(self.comm, 0, 0, nullptr, &work));
    if (self.rank == 0) {
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      EXPECT_EQ(entrain_comm_split_finish(work, &part), ENTRAIN_IN_PROGRESS);
      EXPECT_EQ(part, nullptr);
      tried.count_down();
    }
    EXPECT_OK(entrain_work_wait(work, -1));
    ASSERT_OK(entrain_comm_split_finish(work, &part));
    EXPECT_EQ(SumOfRanks(part), 1);
    entrain_work_free(work);
    entrain_comm_destroy(part);
  });
}

TEST(StartedSplit, TimesOutNamingTheRankThatNeverComes) {
  std::latch over(2);
  RunWorld(3, [&](const Rank& self) {
    if (self.rank == 2) {
      over.wait();
      return;
    }
    ASSERT_OK(entrain_comm_set_timeout(self.comm, 200'000'000));
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_comm_split(self.comm, 0, 0, nullptr, &work));
    EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_TIMED_OUT, "rank 2");
    entrain_error_t error;
    entrain_error_init(&error);
    EXPECT_OK(entrain_work_error(work, &error));
    EXPECT_EQ(error.code, ENTRAIN_TIMED_OUT);
    EXPECT_EQ(error.guilty_rank, 2);
    EXPECT_STREQ(error.operation, "split");
    entrain_comm_t* part = nullptr;
    EXPECT_FAILS(entrain_comm_split_finish(work, &part), ENTRAIN_TIMED_OUT, "rank 2");
    entrain_work_free(work);
    over.count_down();
  });
}

TEST_P(Started, SplitThatIsFreedEndsItsPart) {
  for (const bool at_once : {true, false}) {
    RunWorld(
        2,
        [at_once](const Rank& self) {
          entrain_work_t* work = nullptr;
          ASSERT_OK(entrain_comm_duplicate(self.comm, nullptr, &work));
          if (self.rank == 1 && at_once) {
            entrain_work_free(work);
          }
          if (self.rank == 1) {
            EXPECT_OK(entrain_comm_drain(self.comm, 10 * kSecondNs));
          }
          if (self.rank == 1 && !at_once) {
            EXPECT_OK(entrain_work_wait(work, -1));
            entrain_work_free(work);
          }
          if (self.rank == 0) {
            EXPECT_OK(entrain_work_wait(work, -1));
            entrain_comm_t* copy = nullptr;
            ASSERT_OK(entrain_comm_split_finish(work, &copy));
            entrain_work_free(work);
            EXPECT_FAILS(entrain_barrier(copy, nullptr, nullptr), ENTRAIN_ABORTED,
                         "rank 1 freed the work of the split that made it");
            entrain_comm_destroy(copy);
          }
          EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
        },
        options());
  }
}

TEST(StartedSplit, EndsWithItsCommunicatorWhenFreedOrNot) {
  for (const bool freed : {true, false}) {
    RunWorld(2, [freed](const Rank& self) {
      entrain_comm_t* copy = nullptr;
      ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
      entrain_work_t* work = nullptr;
      if (self.rank == 0) {
        ASSERT_OK(entrain_comm_split(copy, 0, 0, nullptr, &work));
        if (freed) {
          entrain_work_free(work);
        }
      }
      entrain_comm_destroy(copy);
      if (self.rank == 0 && !freed) {
        EXPECT_FAILS(entrain_work_wait(work, 0), ENTRAIN_ABORTED, "destroyed the communicator");
        entrain_work_free(work);
      }
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    });
  }
}

TEST(StartedSplit, PartIsTakenAfterTheParentAndNotAfterTheRuntime) {
  RunWorld(2, [](const Rank& self) {
    entrain_comm_t *parent = nullptr, *copy = nullptr;
    ASSERT_OK(entrain_comm_duplicate(self.comm, &parent, nullptr));
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_comm_duplicate(parent, nullptr, &work));
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_comm_destroy(parent);
    ASSERT_OK(entrain_comm_split_finish(work, &copy));
    entrain_work_free(work);
    EXPECT_EQ(SumOfRanks(copy), 1);
    entrain_comm_destroy(copy);
  });
  std::vector<entrain_work_t*> works(2);
  RunWorld(2, [&](const Rank& self) {
    entrain_work_t*& work = works[static_cast<size_t>(self.rank)];
    ASSERT_OK(entrain_comm_duplicate(self.comm, nullptr, &work));
    EXPECT_OK(entrain_work_wait(work, -1));
  });
  for (entrain_work_t* work : works) {
    entrain_comm_t* copy = nullptr;
    EXPECT_FAILS(entrain_comm_split_finish(work, &copy), ENTRAIN_ABORTED, "runtime was destroyed");
    entrain_work_free(work);
  }
}

TEST(StartedSplit, RefusesWhatIsNotOne) {
  RunWorld(1, [](const Rank& self) {
    entrain_work_t* work = nullptr;
    EXPECT_FAILS(entrain_comm_split(self.comm, -2, 0, nullptr, &work), ENTRAIN_INVALID_ARGUMENT,
                 "color -2 is less than -1");
    EXPECT_FAILS(entrain_comm_split(self.comm, 0, 0, nullptr, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "part is NULL");
    EXPECT_FAILS(entrain_comm_duplicate(nullptr, nullptr, &work), ENTRAIN_INVALID_ARGUMENT,
                 "comm is NULL");
    ASSERT_OK(entrain_barrier(self.comm, nullptr, &work));
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_comm_t* part = nullptr;
    EXPECT_FAILS(entrain_comm_split_finish(work, &part), ENTRAIN_INVALID_ARGUMENT,
                 "work is of barrier");
    EXPECT_FAILS(entrain_comm_split_finish(work, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "part is NULL");
    entrain_work_free(work);
  });
}

// ---- A blocking call whose communicator another thread destroys

uint64_t CallsOf(const entrain_comm_t* comm) {
  entrain_comm_stats_t stats;
  entrain_comm_stats_init(&stats);
  EXPECT_OK(entrain_comm_stats(comm, &stats));
  return stats.calls;
}

// A use of the freed handle would read the memory of its successor, and the test would notice this.
// Another thread drives the engine, so the blocked thread and the destroying thread are woken at
// the same time, and either may come first.
TEST(Destroy, UnderABlockingCallEndsItAndLeavesTheHandleAlone) {
  using Blocking = entrain_status_t (*)(entrain_comm_t*);
  const Blocking calls[] = {
      [](entrain_comm_t* comm) { return entrain_barrier(comm, nullptr, nullptr); },
      [](entrain_comm_t* comm) {
        std::vector<float> data(300'000);
        return entrain_all_reduce(comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                  ENTRAIN_SUM, nullptr, nullptr);
      },
      [](entrain_comm_t* comm) {
        entrain_comm_t* part = nullptr;
        return entrain_comm_split(comm, 0, 0, &part, nullptr);
      },
  };
  RunWorld(2, [&](const Rank& self) {
    float token = 0;
    std::future<entrain_status_t> driver;
    if (self.rank == 0) {
      driver = std::async(std::launch::async, [&] {
        return entrain_recv(self.comm, &token, 1, ENTRAIN_F32, 1, nullptr, nullptr);
      });
    }
    for (int round = 0; round < 30; ++round) {
      entrain_comm_t* copy = nullptr;
      ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
      if (self.rank == 0) {
        const uint64_t before = CallsOf(copy);
        auto blocked = std::async(std::launch::async,
                                  [&, copy] { return calls[round % std::size(calls)](copy); });
        // Because the other thread drives, the call is counted before it waits.
        EXPECT_TRUE(Becomes([&] { return CallsOf(copy) > before; }));
        entrain_comm_destroy(copy);
        std::vector<std::vector<char>> in_its_place(64, std::vector<char>(32, '\x5a'));
        EXPECT_EQ(blocked.get(), ENTRAIN_ABORTED);
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      } else {
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
        entrain_comm_destroy(copy);
      }
    }
    if (self.rank == 0) {
      EXPECT_EQ(driver.get(), ENTRAIN_OK);
    } else {
      EXPECT_OK(entrain_send(self.comm, &token, 1, ENTRAIN_F32, 0, nullptr, nullptr));
    }
  });
}

}  // namespace
}  // namespace entrain_test
