// Workers on a device: a thread that waits for a job learns how it ended. Uses the fake driver, or
// the machine's first device if TEST_GPU=1 is set.
#include "lib/train/device_worker.h"

#include <memory>
#include <string>

#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/train/device_waits.h"
#include "tests/device/cuda/on_device.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// A job whose posting takes a while, so that the job before it fails meanwhile.
class Slow {
 public:
  explicit Slow(absl::Notification* go) : go_(go) {}
  Slow(Slow&& other) noexcept : go_(other.go_), moves_(other.moves_ + 1) {
    if (moves_ == 2) {  // the first move is into the argument
      go_->Notify();
      // The job before it fails meanwhile. No call reports this before this job is posted.
      usleep(50'000);
    }
  }
  absl::Status operator()() const { return absl::OkStatus(); }

 private:
  absl::Notification* go_;
  int moves_ = 0;
};

class DeviceWorkers : public testing::Test {
 protected:
  explicit DeviceWorkers(int64_t limit_ns = 10 * kSecond)
      : room_(*DeviceRoom::Open(TestDevice(), stream_.get(), limit_ns)),
        worker_(*DeviceWorker::Make(room_.get(), [](const absl::Status& /*why*/) {})),
        word_(reinterpret_cast<uint32_t*>(*room_->KeepPinned(sizeof(uint32_t)))) {}
  ~DeviceWorkers() override { word_.Set(1); }
  // Operations that are enqueued on the stream afterwards wait until the word is set.
  absl::Status Hold(StreamHandle stream) { return word_.Hold(TestDevice(), stream, 1); }

  TestStream stream_{TestDevice()};
  const std::unique_ptr<DeviceRoom> room_;
  const std::unique_ptr<DeviceWorker> worker_;
  StreamWord word_;
};

class ImpatientWorkers : public DeviceWorkers {
 protected:
  ImpatientWorkers() : DeviceWorkers(100 * kMillisecond) {}
};

TEST_F(DeviceWorkers, AJobThatIsPostedWhileTheOneBeforeItFailsEndsToo) {
  absl::Notification go;
  ASSERT_TRUE(worker_
                  ->Post([&] {
                    go.WaitForNotification();
                    return absl::InternalError("first");
                  })
                  .ok());
  const auto second = worker_->PostThen(Slow(&go), {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(worker_->Wait(*second).message(), "first");
  EXPECT_EQ(worker_->Post([] { return absl::OkStatus(); }).status().message(), "first");
}

TEST_F(DeviceWorkers, WhatFollowsAJobComesWhenTheDeviceIsThroughWithIt) {
  DeviceMark mark(TestDevice());
  bool through = false;
  const auto number = worker_->PostThen(
      [&] {
        ENTRAIN_RETURN_IF_ERROR(Hold(worker_->stream()));
        return mark.Record(worker_->stream());
      },
      [&] { through = mark.Reached().value(); });
  ASSERT_TRUE(number.ok()) << number.status();
  // A worker that does not wait for the device would have continued by then.
  usleep(20'000);
  word_.Set(1);
  EXPECT_EQ(worker_->Wait(*number), absl::OkStatus());
  EXPECT_TRUE(through);
}

TEST_F(ImpatientWorkers, AStreamThatIsLateIsATimeout) {
  ASSERT_EQ(Hold(stream_.get()), absl::OkStatus());
  const auto number = worker_->Post([] { return absl::OkStatus(); });
  ASSERT_TRUE(number.ok()) << number.status();
  const absl::Status status = worker_->Wait(*number);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the caller's stream"));
}

TEST_F(ImpatientWorkers, AJobThatTheDeviceIsNotThroughWithIsATimeout) {
  bool through = false;
  const auto number =
      worker_->PostThen([&] { return Hold(worker_->stream()); }, [&] { through = true; });
  ASSERT_TRUE(number.ok()) << number.status();
  const absl::Status status = worker_->Wait(*number);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_FALSE(through);
  EXPECT_EQ(worker_->status(), status);
}

TEST_F(ImpatientWorkers, WhoWaitsForAStreamMayBeToldToGiveUp) {
  ASSERT_EQ(Hold(stream_.get()), absl::OkStatus());
  const ArraysAt at{&TestDevice(), stream_.get()};
  EXPECT_TRUE(absl::IsDeadlineExceeded(WaitForStream(at, room_->limit())));
  const absl::Status told =
      WaitForStream(at, Deadline::Never(), [] { return absl::AbortedError("enough"); });
  EXPECT_TRUE(absl::IsAborted(told)) << told;
  word_.Set(1);
  EXPECT_EQ(WaitForStream(at, Deadline::After(10 * kSecond)), absl::OkStatus());
}

}  // namespace
}  // namespace entrain
