#include "lib/train/courier.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/clock.h"

namespace entrain {
namespace {

constexpr int64_t kMinute = 60 * kSecond;

TEST(Courier, RunsJobsInOrderBesideTheCaller) {
  std::vector<int> order;
  absl::Notification go;
  Courier courier(kMinute, [](const absl::Status&) {});
  const uint64_t first = courier.Post([&] {
    go.WaitForNotification();
    order.push_back(1);
    return absl::OkStatus();
  });
  const uint64_t second = courier.Post([&] {
    order.push_back(2);
    return absl::OkStatus();
  });
  EXPECT_FALSE(courier.idle());
  go.Notify();
  EXPECT_EQ(courier.Wait(first), absl::OkStatus());
  EXPECT_EQ(courier.Wait(second), absl::OkStatus());
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  EXPECT_TRUE(courier.idle());
}

// A courier whose only job is in a function of the caller's until `go`.
struct InFunction {
  InFunction() {
    job = courier->Post([this] {
      const absl::Status status = Courier::CallersFunction("the step", [this] {
        entered.Notify();
        go.WaitForNotification();
      });
      EXPECT_EQ(Courier::CallersFunction("the next step", [] { ADD_FAILURE(); }).message(),
                "the next step was not called: its object is being destroyed");
      returned = status;
      return status;
    });
    entered.WaitForNotification();
  }

  absl::Notification entered, go, freed;
  absl::Status returned;
  std::unique_ptr<Courier> courier = std::make_unique<Courier>(kMinute, [](const absl::Status&) {});
  uint64_t job = 0;
};

TEST(Courier, IsFreedByItsThreadWhereACallersFunctionDoesNotReturn) {
  InFunction inside;
  const int64_t began = Clock::Real().Now();
  EXPECT_FALSE(inside.courier->StopSoon());
  EXPECT_LT(Clock::Real().Now() - began, 3 * kSecond);
  // The job counts as done, for whoever waits for it.
  EXPECT_TRUE(absl::IsAborted(inside.courier->Wait(inside.job)));
  EXPECT_THAT(std::string(inside.courier->status().message()),
              testing::HasSubstr("the object was destroyed: the step has not returned for 1"));
  inside.courier->Leave([&inside] {
    inside.courier.reset();
    inside.freed.Notify();
  });
  EXPECT_FALSE(inside.freed.HasBeenNotified());
  inside.go.Notify();
  inside.freed.WaitForNotification();
  EXPECT_EQ(inside.returned.message(), "the step returned after its object was destroyed");
}

TEST(Courier, WaitsALittleForACallersFunction) {
  InFunction inside;
  inside.courier->Abandon(absl::AbortedError("enough"));
  EXPECT_EQ(inside.courier->Wait(inside.job).message(), "enough");
  std::thread soon([&inside] { inside.go.Notify(); });
  EXPECT_TRUE(inside.courier->StopSoon());
  soon.join();
  EXPECT_TRUE(absl::IsAborted(inside.returned));
}

TEST(Courier, KeepsTheFirstErrorAndDropsWhatFollows) {
  std::atomic<int> ran{0};
  absl::Notification go;
  Courier courier(kMinute, [](const absl::Status&) {});
  courier.Post([&] {
    go.WaitForNotification();
    return absl::InternalError("first");
  });
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> watched = held;
  courier.Post([&ran, held = std::move(held)] {
    ++ran;
    return absl::InternalError("second");
  });
  go.Notify();
  EXPECT_EQ(courier.Drain().message(), "first");
  EXPECT_EQ(courier
                .Wait(courier.Post([&] {
                  ++ran;
                  return absl::OkStatus();
                }))
                .message(),
            "first");
  courier.Stop();
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(watched.expired());
}

TEST(Courier, StopDropsWaitingJobsAndEndsTheRunningOne) {
  std::atomic<bool> started{false};
  absl::Notification go;
  Courier courier(kMinute, [](const absl::Status&) {});
  courier.Post([&] {
    started = true;
    go.WaitForNotification();
    return absl::OkStatus();
  });
  bool ran = false;
  courier.Post([&] {
    ran = true;
    return absl::OkStatus();
  });
  while (!started) {
  }
  std::thread stopper([&] { courier.Stop(); });
  // From its first moment on Stop refuses jobs; the refusal shows as the courier's status.
  while (courier.status().ok()) {
    courier.Post([] { return absl::OkStatus(); });
  }
  go.Notify();
  stopper.join();
  EXPECT_FALSE(ran);
  EXPECT_TRUE(absl::IsAborted(courier.Drain()));
}

TEST(Courier, TellsWhenAJobIsDoneHoweverItEnded) {
  std::vector<std::string> told;
  const auto note = [&told](const char* what) {
    return [&told, what](const absl::Status& status) {
      told.push_back(what + std::string(": ") + std::string(status.message()));
    };
  };
  absl::Notification go;
  Courier courier(kMinute, [](const absl::Status&) {});
  courier.WhenDone(courier.last(), note("nothing was posted"));
  EXPECT_THAT(told, testing::ElementsAre("nothing was posted: "));
  const uint64_t first = courier.Post([&] {
    go.WaitForNotification();
    return absl::OkStatus();
  });
  const uint64_t second = courier.Post([] { return absl::InternalError("broken"); });
  const uint64_t dropped = courier.Post([] { return absl::OkStatus(); });
  courier.WhenDone(dropped, note("dropped"));
  courier.WhenDone(first, note("first"));
  courier.WhenDone(second, note("second"));
  EXPECT_EQ(told.size(), 1);  // none of them is done
  go.Notify();
  EXPECT_EQ(courier.Drain().message(), "broken");
  courier.Stop();  // its thread has told everybody
  EXPECT_THAT(told, testing::ElementsAre("nothing was posted: ", "first: ", "dropped: broken",
                                         "second: broken"));
  courier.WhenDone(second, note("later"));
  EXPECT_EQ(told.back(), "later: broken");
}

TEST(Courier, AWaitThatOutlastsTheLimitSaysWhatForAndGivesUp) {
  absl::Notification go;
  absl::Status given_up;
  Courier courier(50 * kMillisecond, [&](const absl::Status& why) {
    given_up = why;
    go.Notify();
  });
  courier.Post([&] {
    Courier::Doing("layer 3: the sum of deltas");
    go.WaitForNotification();
    return absl::OkStatus();
  });
  bool ran = false;
  courier.Post([&] {
    ran = true;
    return absl::OkStatus();
  });
  const int64_t begun = Clock::Real().Now();
  const absl::Status late = courier.Drain();
  EXPECT_LT(Clock::Real().Now() - begun, 10 * kSecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()),
              testing::ContainsRegex("layer 3: the sum of deltas is not over after [0-9]+ ms "
                                     ".limit 50 ms"));
  EXPECT_EQ(given_up, late);
  courier.Stop();
  EXPECT_FALSE(ran);
  EXPECT_EQ(courier.status(), late);
}

// Its own limit is long over when the job ends.
TEST(Courier, WhatAJobGoesOnToHasALimitOfItsOwn) {
  absl::Notification go;
  Courier slow(kMinute, [](const absl::Status&) {});
  Courier courier(kMillisecond, [](const absl::Status&) {});
  const uint64_t first = slow.Post([&] {
    go.WaitForNotificationWithTimeout(absl::Nanoseconds(Courier::kReportNs + 300 * kMillisecond));
    return absl::OkStatus();
  });
  courier.Post(
      [&] { return slow.Wait(first); });  // for another courier as long as that one may take
  EXPECT_EQ(courier.Drain(), absl::OkStatus());
}

TEST(Courier, NobodyWaitsForWhatNothingCanBringAbout) {
  Courier courier(kMinute, [](const absl::Status&) {});
  const uint64_t job = courier.Post([] { return absl::OkStatus(); });
  EXPECT_EQ(courier.Wait(job), absl::OkStatus());
  EXPECT_TRUE(absl::IsInternal(courier.Wait(job + 1)));
}

TEST(Courier, JobsBeyondTheLimitWaitUntilItIsRaised) {
  std::vector<int> order;
  Courier courier(kMinute, [](const absl::Status&) {});
  courier.Limit(1);
  for (const int number : {1, 2, 3}) {
    courier.Post([&order, number] {
      order.push_back(number);
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(courier.Wait(1), absl::OkStatus());
  EXPECT_FALSE(courier.IsDone(2));
  EXPECT_FALSE(courier.idle());
  bool told = false;
  courier.WhenDone(3, [&](const absl::Status& status) { told = status.ok(); });
  courier.Limit(2);
  EXPECT_EQ(courier.Wait(2), absl::OkStatus());
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  courier.Limit(3);
  EXPECT_EQ(courier.Drain(), absl::OkStatus());
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 3));
  courier.Stop();
  EXPECT_TRUE(told);
}

// Its time begins when it is let go, not when the job before it began.
TEST(Courier, WhatIsHeldBackIsNotLate) {
  const int64_t held_ns = Courier::kReportNs + 200 * kMillisecond;
  Courier courier(50 * kMillisecond, [](const absl::Status&) {});
  courier.Limit(1);
  EXPECT_EQ(courier.Wait(courier.Post([] { return absl::OkStatus(); })), absl::OkStatus());
  absl::Notification go;
  const uint64_t held = courier.Post([&] {
    go.WaitForNotification();
    return absl::OkStatus();
  });
  absl::Notification never;
  never.WaitForNotificationWithTimeout(absl::Nanoseconds(held_ns));
  courier.Limit(held);
  const auto over = courier.WaitUntil(held, Deadline::After(100 * kMillisecond));
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_FALSE(*over);
  go.Notify();
  EXPECT_EQ(courier.Wait(held), absl::OkStatus());
}

TEST(Courier, AJobThatIsHeldBackIsDroppedAtTheEnd) {
  absl::Status told;
  Courier courier(kMinute, [](const absl::Status&) {});
  courier.Limit(0);
  const uint64_t held = courier.Post([] { return absl::OkStatus(); });
  courier.WhenDone(held, [&](const absl::Status& status) { told = status; });
  courier.Stop();
  EXPECT_TRUE(absl::IsAborted(told)) << told;
}

TEST(Courier, EndsWithoutHavingStarted) {
  Courier courier(kMinute, [](const absl::Status&) {});
  EXPECT_EQ(courier.Drain(), absl::OkStatus());
}

}  // namespace
}  // namespace entrain
