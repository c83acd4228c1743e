#include "lib/train/worker/worker.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/callback_scope.h"
#include "lib/base/clock.h"

namespace entrain {
namespace {

constexpr int64_t kMinute = 60 * kSecond;

TEST(Worker, RunsJobsInOrderBesideTheCaller) {
  std::vector<int> order;
  absl::Notification go;
  Worker worker(kMinute, [](const absl::Status&) {});
  const uint64_t first = worker.Post([&] {
    go.WaitForNotification();
    order.push_back(1);
    return absl::OkStatus();
  });
  const uint64_t second = worker.Post([&] {
    order.push_back(2);
    return absl::OkStatus();
  });
  EXPECT_FALSE(worker.idle());
  go.Notify();
  EXPECT_EQ(worker.Wait(first), absl::OkStatus());
  EXPECT_EQ(worker.Wait(second), absl::OkStatus());
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  EXPECT_TRUE(worker.idle());
}

// A worker with one job, which is in a function of the caller until `go`.
struct InFunction {
  InFunction() {
    job = worker->Post([this] {
      const absl::Status status = Worker::CallersFunction("the step", [this] {
        entered.Notify();
        go.WaitForNotification();
      });
      EXPECT_EQ(Worker::CallersFunction("the next step", [] { ADD_FAILURE(); }).message(),
                "the next step was not called: its object is being destroyed");
      returned = status;
      return status;
    });
    entered.WaitForNotification();
  }

  absl::Notification entered, go, freed;
  absl::Status returned;
  std::unique_ptr<Worker> worker = std::make_unique<Worker>(kMinute, [](const absl::Status&) {});
  uint64_t job = 0;
};

TEST(Worker, IsFreedByItsThreadWhereACallersFunctionDoesNotReturn) {
  InFunction inside;
  const int64_t began = Clock::Real().Now();
  EXPECT_FALSE(inside.worker->StopSoon());
  EXPECT_LT(Clock::Real().Now() - began, 3 * kSecond);
  // The job counts as done for threads that wait for it.
  EXPECT_TRUE(absl::IsAborted(inside.worker->Wait(inside.job)));
  EXPECT_THAT(std::string(inside.worker->status().message()),
              testing::HasSubstr("the object was destroyed: the step has not returned for "));
  inside.worker->Leave([&inside] {
    inside.worker.reset();
    inside.freed.Notify();
  });
  EXPECT_FALSE(inside.freed.HasBeenNotified());
  inside.go.Notify();
  inside.freed.WaitForNotification();
  EXPECT_EQ(inside.returned.message(), "the step returned after its object was destroyed");
}

TEST(Worker, WaitsALittleForACallersFunction) {
  InFunction inside;
  inside.worker->Abandon(absl::AbortedError("enough"));
  EXPECT_EQ(inside.worker->Wait(inside.job).message(), "enough");
  std::thread soon([&inside] { inside.go.Notify(); });
  EXPECT_TRUE(inside.worker->StopSoon());
  soon.join();
  EXPECT_TRUE(absl::IsAborted(inside.returned));
}

TEST(Worker, KeepsTheFirstErrorAndDropsWhatFollows) {
  std::atomic<int> ran{0};
  absl::Notification go;
  Worker worker(kMinute, [](const absl::Status&) {});
  worker.Post([&] {
    go.WaitForNotification();
    return absl::InternalError("first");
  });
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> watched = held;
  worker.Post([&ran, held = std::move(held)] {
    ++ran;
    return absl::InternalError("second");
  });
  go.Notify();
  EXPECT_EQ(worker.Drain().message(), "first");
  EXPECT_EQ(worker
                .Wait(worker.Post([&] {
                  ++ran;
                  return absl::OkStatus();
                }))
                .message(),
            "first");
  worker.Stop();
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(watched.expired());
}

TEST(Worker, StopDropsWaitingJobsAndEndsTheRunningOne) {
  std::atomic<bool> started{false};
  absl::Notification go;
  Worker worker(kMinute, [](const absl::Status&) {});
  worker.Post([&] {
    started = true;
    go.WaitForNotification();
    return absl::OkStatus();
  });
  bool ran = false;
  worker.Post([&] {
    ran = true;
    return absl::OkStatus();
  });
  while (!started) {
  }
  std::thread stopper([&] { worker.Stop(); });
  // Stop refuses jobs from its beginning on. The refusal becomes the worker's status.
  while (worker.status().ok()) {
    worker.Post([] { return absl::OkStatus(); });
  }
  go.Notify();
  stopper.join();
  EXPECT_FALSE(ran);
  EXPECT_TRUE(absl::IsAborted(worker.Drain()));
}

TEST(Worker, TellsWhenAJobIsDoneHoweverItEnded) {
  std::vector<std::string> told;
  const auto note = [&told](const char* what) {
    return [&told, what](const absl::Status& status) {
      told.push_back(what + std::string(": ") + std::string(status.message()));
    };
  };
  absl::Notification go;
  Worker worker(kMinute, [](const absl::Status&) {});
  worker.WhenDone(worker.last(), note("nothing was posted"));
  EXPECT_THAT(told, testing::ElementsAre("nothing was posted: "));
  const uint64_t first = worker.Post([&] {
    go.WaitForNotification();
    return absl::OkStatus();
  });
  const uint64_t second = worker.Post([] { return absl::InternalError("broken"); });
  const uint64_t dropped = worker.Post([] { return absl::OkStatus(); });
  worker.WhenDone(dropped, note("dropped"));
  worker.WhenDone(first, note("first"));
  worker.WhenDone(second, note("second"));
  EXPECT_EQ(told.size(), 1);  // none of them is done
  go.Notify();
  EXPECT_EQ(worker.Drain().message(), "broken");
  worker.Stop();  // its thread has told all
  EXPECT_THAT(told, testing::ElementsAre("nothing was posted: ", "first: ", "dropped: broken",
                                         "second: broken"));
  worker.WhenDone(second, note("later"));
  EXPECT_EQ(told.back(), "later: broken");
}

TEST(Worker, AWaitThatOutlastsTheLimitSaysWhatForAndGivesUp) {
  absl::Notification go;
  absl::Status given_up;
  Worker worker(50 * kMillisecond, [&](const absl::Status& why) {
    given_up = why;
    go.Notify();
  });
  worker.Post([&] {
    Worker::Doing("layer 3: the sum of deltas");
    go.WaitForNotification();
    return absl::OkStatus();
  });
  bool ran = false;
  worker.Post([&] {
    ran = true;
    return absl::OkStatus();
  });
  const int64_t begun = Clock::Real().Now();
  const absl::Status late = worker.Drain();
  EXPECT_LT(Clock::Real().Now() - begun, 10 * kSecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()),
              testing::ContainsRegex("layer 3: the sum of deltas is not over after [0-9]+ ms "
                                     ".limit 50 ms"));
  EXPECT_EQ(given_up, late);
  worker.Stop();
  EXPECT_FALSE(ran);
  EXPECT_EQ(worker.status(), late);
}

// The limit of the waiting job is long over when the other job ends.
TEST(Worker, WhatAJobGoesOnToHasALimitOfItsOwn) {
  absl::Notification go;
  Worker slow(kMinute, [](const absl::Status&) {});
  Worker worker(kMillisecond, [](const absl::Status&) {});
  const uint64_t first = slow.Post([&] {
    go.WaitForNotificationWithTimeout(absl::Nanoseconds(Worker::kReportNs + 300 * kMillisecond));
    return absl::OkStatus();
  });
  worker.Post([&] { return slow.Wait(first); });  // waits for another worker, with that one's limit
  EXPECT_EQ(worker.Drain(), absl::OkStatus());
}

TEST(Worker, NobodyWaitsForWhatNothingCanBringAbout) {
  Worker worker(kMinute, [](const absl::Status&) {});
  const uint64_t job = worker.Post([] { return absl::OkStatus(); });
  EXPECT_EQ(worker.Wait(job), absl::OkStatus());
  EXPECT_TRUE(absl::IsInternal(worker.Wait(job + 1)));
}

TEST(Worker, JobsBeyondTheLimitWaitUntilItIsRaised) {
  std::vector<int> order;
  Worker worker(kMinute, [](const absl::Status&) {});
  worker.Limit(1);
  for (const int number : {1, 2, 3}) {
    worker.Post([&order, number] {
      order.push_back(number);
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(worker.Wait(1), absl::OkStatus());
  EXPECT_FALSE(worker.IsDone(2));
  EXPECT_FALSE(worker.idle());
  bool told = false;
  worker.WhenDone(3, [&](const absl::Status& status) { told = status.ok(); });
  worker.Limit(2);
  EXPECT_EQ(worker.Wait(2), absl::OkStatus());
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  worker.Limit(3);
  EXPECT_EQ(worker.Drain(), absl::OkStatus());
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 3));
  worker.Stop();
  EXPECT_TRUE(told);
}

// The time limit begins when the job is released, not when the job before it began.
TEST(Worker, WhatIsHeldBackIsNotLate) {
  const int64_t held_ns = Worker::kReportNs + 200 * kMillisecond;
  Worker worker(50 * kMillisecond, [](const absl::Status&) {});
  worker.Limit(1);
  EXPECT_EQ(worker.Wait(worker.Post([] { return absl::OkStatus(); })), absl::OkStatus());
  absl::Notification go;
  const uint64_t held = worker.Post([&] {
    go.WaitForNotification();
    return absl::OkStatus();
  });
  absl::Notification never;
  never.WaitForNotificationWithTimeout(absl::Nanoseconds(held_ns));
  worker.Limit(held);
  const auto over = worker.WaitUntil(held, Deadline::After(100 * kMillisecond));
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_FALSE(*over);
  go.Notify();
  EXPECT_EQ(worker.Wait(held), absl::OkStatus());
}

TEST(Worker, AJobThatIsHeldBackIsDroppedAtTheEnd) {
  absl::Status told;
  Worker worker(kMinute, [](const absl::Status&) {});
  worker.Limit(0);
  const uint64_t held = worker.Post([] { return absl::OkStatus(); });
  worker.WhenDone(held, [&](const absl::Status& status) { told = status; });
  worker.Stop();
  EXPECT_TRUE(absl::IsAborted(told)) << told;
}

TEST(Worker, EndsWithoutHavingStarted) {
  Worker worker(kMinute, [](const absl::Status&) {});
  EXPECT_EQ(worker.Drain(), absl::OkStatus());
}

TEST(Worker, WatchesWhileNoJobRuns) {
  std::atomic<int> looks{0};
  std::atomic<bool> fails{false};
  Worker worker(
      10 * kSecond, [](const absl::Status&) {}, nullptr,
      [&] {
        ++looks;
        return fails ? absl::UnavailableError("seen") : absl::OkStatus();
      });
  EXPECT_EQ(worker.Wait(worker.Post([] { return absl::OkStatus(); })), absl::OkStatus());
  while (looks < 2) {
    std::this_thread::yield();
  }
  worker.Limit(1);  // the next job is held back, and the watch goes on
  const uint64_t held_back = worker.Post([] { return absl::OkStatus(); });
  const int before = looks;
  while (looks < before + 2) {
    std::this_thread::yield();
  }
  fails = true;
  while (worker.status().ok()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(worker.Wait(held_back), absl::UnavailableError("seen"));
}

TEST(Worker, HoldDoesNotBlockWhereThatIsForbidden) {
  Worker worker(kMinute, [](const absl::Status&) {});
  absl::Notification go;
  const uint64_t job = worker.Post([&go] {
    go.WaitForNotification();
    return absl::OkStatus();
  });
  EXPECT_FALSE(worker.IsDone(job));
  {
    const CallbackScope scope("the step", Does::kStart);
    EXPECT_THAT(std::string(worker.Hold(job).message()), testing::HasSubstr("must not wait"));
  }
  go.Notify();
  EXPECT_EQ(worker.Wait(job), absl::OkStatus());
  const CallbackScope scope("the step", Does::kStart);
  EXPECT_EQ(worker.Hold(job), absl::OkStatus());
}

TEST(Worker, JobsWatchAndWhatRunsHereShareTheThreads) {
  KernelThreads threads(2);
  std::atomic<bool> watched{false};
  Worker worker(
      kMinute, [](const absl::Status&) {}, nullptr,
      [&] {
        watched = watched || KernelThreads::Current() == &threads;
        return absl::OkStatus();
      },
      &threads);
  KernelThreads* seen = nullptr;
  EXPECT_EQ(worker.Wait(worker.Post([&seen] {
    seen = KernelThreads::Current();
    return absl::OkStatus();
  })),
            absl::OkStatus());
  EXPECT_EQ(seen, &threads);
  while (!watched) {
    std::this_thread::yield();
  }
  EXPECT_EQ(worker.RunHere([&] {
    return KernelThreads::Current() == &threads ? absl::OkStatus() : absl::InternalError("none");
  }),
            absl::OkStatus());
  EXPECT_EQ(KernelThreads::Current(), nullptr);
}

}  // namespace
}  // namespace entrain
