// Hashes of device memory, computed on the device.
#include <atomic>
#include <numeric>
#include <vector>

#include "tests/device/cuda/on_device.h"

namespace entrain {
namespace {

class DeviceHash : public ::testing::Test {
 protected:
  Device& device_ = TestDevice();
  TestStream stream_{device_};
};

TEST_F(DeviceHash, IsOfTheBitsAndTheirPlaces) {
  for (const int64_t count : {int64_t{1}, int64_t{5}, int64_t{1000}, int64_t{600'001}}) {
    std::vector<uint32_t> words(static_cast<size_t>(count));
    std::iota(words.begin(), words.end(), 7u);
    // At two addresses, one of which is not aligned for packs.
    const TestMemory x(device_, 4 * count + 64);
    const auto hash = [&](int64_t shift) {
      EXPECT_TRUE(device_.Copy(x.get() + shift, words.data(), 4 * count, stream_.get()).ok());
      const auto got = device_.Hash(x.get() + shift, count, stream_.get(), Deadline::Never());
      EXPECT_TRUE(got.ok()) << got.status();
      return got.value_or(0);
    };
    const uint64_t first = hash(0);
    EXPECT_EQ(hash(4), first);
    words.back() ^= 0x80000000u;  // the sign of one value
    EXPECT_NE(hash(0), first);
    words.back() ^= 0x80000000u;
    if (count > 1) {
      std::swap(words[0], words[static_cast<size_t>(count) / 2]);
      EXPECT_NE(hash(0), first);
    }
  }
}

// If the device finishes after the wait has timed out, this disturbs no later call.
TEST_F(DeviceHash, WaitsNoLongerThanItsTime) {
  constexpr int64_t kCount = 5003;
  std::vector<uint32_t> words(kCount, 7), others(kCount, 8);
  const TestMemory x(device_, 4 * kCount), y(device_, 4 * kCount);
  const auto word = device_.AllocatePinned(64);
  ASSERT_TRUE(word.ok());
  const std::atomic_ref<uint32_t> open(*static_cast<uint32_t*>(*word));
  open.store(0);
  TestStream held(device_);
  ASSERT_TRUE(device_.Copy(x.get(), words.data(), 4 * kCount, stream_.get()).ok());
  ASSERT_TRUE(device_.Copy(y.get(), others.data(), 4 * kCount, stream_.get()).ok());
  const auto want = device_.Hash(y.get(), kCount, stream_.get(), Deadline::Never());
  ASSERT_TRUE(want.ok());
  ASSERT_TRUE(device_.AwaitWord(held.get(), static_cast<uint32_t*>(*word), 1).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      device_.Hash(x.get(), kCount, held.get(), Deadline::After(50 * kMillisecond)).status()));
  for (int i = 0; i < 30; ++i) {
    if (i == 15) {
      open.store(1);
    }
    const auto got = device_.Hash(y.get(), kCount, stream_.get(), Deadline::Never());
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(*got, *want) << i;
  }
  held.Finish();
  device_.FreePinned(*word);
}

TEST_F(DeviceHash, ErrorsComeBack) {
  ENTRAIN_NEEDS_FAKE();
  const TestMemory x(device_, 400);
  ASSERT_TRUE(device_.Fill(x.get(), 1, 400, stream_.get()).ok());
  for (const char* const function : {"cuLaunchKernel", "cuEventRecord"}) {
    FailCall(function, 1, 2);
    const auto hash = device_.Hash(x.get(), 100, stream_.get(), Deadline::Never());
    EXPECT_TRUE(absl::IsResourceExhausted(hash.status())) << function;
  }
  EXPECT_TRUE(device_.Hash(x.get(), 100, stream_.get(), Deadline::Never()).ok());
}

}  // namespace
}  // namespace entrain
