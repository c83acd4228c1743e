#include "lib/train/courier.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(Courier, RunsJobsInOrderBesideTheCaller) {
  std::vector<int> order;
  absl::Notification go;
  Courier courier;
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

TEST(Courier, KeepsTheFirstErrorAndDropsWhatFollows) {
  std::atomic<int> ran{0};
  absl::Notification go;
  Courier courier;
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
  Courier courier;
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

TEST(Courier, EndsWithoutHavingStarted) {
  Courier courier;
  EXPECT_EQ(courier.Drain(), absl::OkStatus());
}

}  // namespace
}  // namespace entrain
