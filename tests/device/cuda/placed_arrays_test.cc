// Arrays in host or device memory, and the order of two streams (lib/device/arrays.h).
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "lib/device/arrays.h"
#include "lib/kernels/kernels.h"
#include "tests/device/cuda/on_device.h"

namespace entrain {
namespace {

constexpr int64_t kCount = 1000;
constexpr int64_t kBytes = kCount * 4;

std::vector<float> Read(const PlacedArray& array, Device* device) {
  std::vector<float> values(kCount);
  if (device == nullptr) {
    std::memcpy(values.data(), array.data(), kBytes);
    return values;
  }
  TestStream stream(*device);
  EXPECT_TRUE(device->Copy(values.data(), array.data(), kBytes, stream.get()).ok());
  stream.Finish();
  return values;
}

TEST(PlacedArrays, AreComputedOnWhereTheyAre) {
  for (Device* const device : {static_cast<Device*>(nullptr), &TestDevice()}) {
    auto x = PlacedArray::Allocate(device, kBytes);
    ASSERT_TRUE(x.ok()) << x.status();
    PlacedArray moved = *std::move(x);
    EXPECT_EQ(moved.size(), kBytes);
    StreamHandle stream = nullptr;
    if (device != nullptr) {
      stream = device->CreateStream().value();
    }
    auto* const floats = reinterpret_cast<float*>(moved.data());
    EXPECT_TRUE(ComputeAt({device, stream}, [&] {
                  EXPECT_EQ(KernelStream::Current() != nullptr, device != nullptr);
                  ZeroArray(floats, kBytes);
                  CurrentKernels().scale_any(DType::kF32, floats, floats, kCount, 2);
                }).ok());
    EXPECT_EQ(KernelStream::Current(), nullptr);
    if (device != nullptr) {
      DeviceMark done(*device);
      ASSERT_TRUE(done.Record(stream).ok());
      ASSERT_TRUE(device->Wait(done.event(), Deadline::After(30 * kSecond)).ok());
      device->DestroyStream(stream);
    }
    EXPECT_EQ(Read(moved, device), std::vector<float>(kCount, 0));
  }
}

TEST(PlacedArrays, GiveTheirMemoryBack) {
  ENTRAIN_NEEDS_FAKE();
  const std::vector<int> before = LiveOnFake();
  {
    const auto x = PlacedArray::Allocate(&TestDevice(), kBytes);
    ASSERT_TRUE(x.ok());
    EXPECT_NE(LiveOnFake(), before);
  }
  EXPECT_EQ(LiveOnFake(), before);
}

TEST(PlacedArrays, TheFirstErrorOfTheDeviceComesBack) {
  ENTRAIN_NEEDS_FAKE();
  TestStream stream(TestDevice());
  const auto x = PlacedArray::Allocate(&TestDevice(), kBytes);
  ASSERT_TRUE(x.ok());
  FailCall("cuMemsetD8Async", 1, 2);
  const absl::Status status =
      ComputeAt({&TestDevice(), stream.get()}, [&] { ZeroArray(x->data(), kBytes); });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

// The later stream runs when the earlier one, which waits for a word, has come to the same point.
TEST(OrderOfStreams, TheLaterWaitsForTheEarlier) {
  Device& device = TestDevice();
  for (const bool switched : {false, true}) {
    const auto word = device.AllocatePinned(64);
    ASSERT_TRUE(word.ok());
    const std::atomic_ref<uint32_t> open(*static_cast<uint32_t*>(*word));
    open.store(0);
    TestStream earlier(device), later(device);
    ASSERT_TRUE(device.AwaitWord(earlier.get(), static_cast<uint32_t*>(*word), 1).ok());
    ASSERT_TRUE((switched ? SwitchStream(device, earlier.get(), later.get())
                          : OrderStreams(device, later.get(), earlier.get()))
                    .ok());
    DeviceMark done(device);
    ASSERT_TRUE(done.Record(later.get()).ok());
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(device.Wait(done.event(), Deadline::After(30 * kMillisecond))));
    open.store(1);
    EXPECT_TRUE(device.Wait(done.event(), Deadline::After(30 * kSecond)).ok());
    earlier.Finish();
    later.Finish();
    device.FreePinned(*word);
  }
}

TEST(OrderOfStreams, AStreamOfAnotherDeviceIsRefused) {
  ENTRAIN_NEEDS_FAKE();
  TestStream mine(TestDevice(0)), other(TestDevice(1));
  EXPECT_TRUE(CheckStream(TestDevice(0), mine.get()).ok());
  EXPECT_FALSE(CheckStream(TestDevice(0), other.get()).ok());
  EXPECT_FALSE(SwitchStream(TestDevice(0), mine.get(), other.get()).ok());
}

}  // namespace
}  // namespace entrain
