// Couriers on a device: that whoever waits for a job learns how it ended. On the fake driver, or,
// where TEST_GPU=1 is set, on the machine's first device.
#include "lib/train/device_courier.h"

#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

#include "tests/cuda/on_device.h"

namespace entrain {
namespace {

// A job that lets the one before it fail while it is being posted, which takes a while.
class Slow {
 public:
  explicit Slow(absl::Notification* go) : go_(go) {}
  Slow(Slow&& other) noexcept : go_(other.go_), moves_(other.moves_ + 1) {
    if (moves_ == 2) {  // the first is into what is posted
      go_->Notify();
      usleep(50'000);
    }
  }
  absl::Status operator()() const { return absl::OkStatus(); }

 private:
  absl::Notification* go_;
  int moves_ = 0;
};

TEST(DeviceCourier, AJobThatIsPostedWhileTheOneBeforeItFailsEndsToo) {
  TestStream stream(TestDevice());
  const auto room = DeviceRoom::Open(TestDevice(), stream.get());
  ASSERT_TRUE(room.ok()) << room.status();
  const auto courier =
      DeviceCourier::Make(room->get(), 10 * kSecond, [](const absl::Status& /*why*/) {});
  ASSERT_TRUE(courier.ok()) << courier.status();
  absl::Notification go;
  ASSERT_TRUE((*courier)
                  ->Post([&] {
                    go.WaitForNotification();
                    return absl::InternalError("first");
                  })
                  .ok());
  const auto second = (*courier)->Post(Slow(&go));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*courier)->Wait(*second).message(), "first");
  EXPECT_EQ((*courier)->Post([] { return absl::OkStatus(); }).status().message(), "first");
}

}  // namespace
}  // namespace entrain
