#include "lib/train/host_worker.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/callback_scope.h"

namespace entrain {
namespace {

constexpr int64_t kMinute = 60 * kSecond;

TEST(HostWorker, WhatFollowsAJobComesBeforeItsWaitIsOver) {
  HostWorker worker(kMinute, [](const absl::Status&) {});
  bool followed = false;
  const auto job =
      worker.PostThen([] { return absl::OkStatus(); }, [&followed] { followed = true; });
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(worker.Hold(*job), absl::OkStatus());
  EXPECT_TRUE(followed);
  EXPECT_TRUE(worker.Holds(*job));
  bool after_failure = false;
  const auto broken = worker.PostThen([] { return absl::InternalError("broken"); },
                                      [&after_failure] { after_failure = true; });
  EXPECT_EQ(worker.Wait(*broken).message(), "broken");
  EXPECT_FALSE(after_failure);
  EXPECT_EQ(worker.status().message(), "broken");
}

TEST(HostWorker, AShortJobRunsInTheCallersThreadAfterTheOneItFollows) {
  HostWorker worker(kMinute, [](const absl::Status&) {});
  std::vector<int> order;
  absl::Notification later;
  const uint64_t first = *worker.Post([&order] {
    order.push_back(1);
    return absl::OkStatus();
  });
  worker
      .Post([&later] {
        later.WaitForNotification();
        return absl::OkStatus();
      })
      .IgnoreError();
  const auto started = worker.Start(first, [&order] {  // does not wait for later work
    order.push_back(2);
    return absl::OkStatus();
  });
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  EXPECT_EQ(*started, 0u);
  EXPECT_EQ(worker.Hold(*started), absl::OkStatus());
  later.Notify();
  EXPECT_EQ(worker.Start(0, [] { return absl::InternalError("no"); }).status().message(), "no");
  EXPECT_EQ(worker.Drain(), absl::OkStatus()) << "it was no job of the worker's";
}

TEST(HostWorker, HoldDoesNotBlockWhereThatIsForbidden) {
  HostWorker worker(kMinute, [](const absl::Status&) {});
  absl::Notification go;
  const uint64_t job = *worker.Post([&go] {
    go.WaitForNotification();
    return absl::OkStatus();
  });
  EXPECT_FALSE(worker.Holds(job));
  {
    const CallbackScope scope("the step", Does::kStart);
    EXPECT_THAT(std::string(worker.Hold(job).message()), testing::HasSubstr("must not wait"));
  }
  go.Notify();
  EXPECT_EQ(worker.Wait(job), absl::OkStatus());
  const CallbackScope scope("the step", Does::kStart);
  EXPECT_EQ(worker.Hold(job), absl::OkStatus());
}

TEST(HostWorker, TheHostsArraysAreThereAtOnce) {
  HostWorker worker(kMinute, [](const absl::Status&) {});
  bool ran = false;
  EXPECT_EQ(worker.RunHere([&ran] {
    ran = true;
    return absl::OkStatus();
  }),
            absl::OkStatus());
  EXPECT_TRUE(ran);
  EXPECT_EQ(worker.arrays().device, nullptr);
  EXPECT_EQ(worker.stream(), nullptr);
  EXPECT_EQ(worker.ComeToRest(0), absl::OkStatus());
  EXPECT_EQ(worker.Sound(), absl::OkStatus());
}

}  // namespace
}  // namespace entrain
