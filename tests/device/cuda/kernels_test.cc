// The device's kernels where the tests of lib/kernels (also compiled for it, beside this file) do
// not reach: arrays over which a grid loops several times, compared with the base table bit by bit;
// sums; streams; errors.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gmock/gmock.h"

#include "tests/device/cuda/on_device.h"
#include "tests/device/cuda/staged_kernels.h"
#include "tests/kernels/values.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

// More than 64 blocks of 256 threads, with a pack per thread, on each of the fake device's two
// processors.
constexpr int64_t kLarge = 300007;

const Kernels& Base() {
  return *AllKernels().tables[0];
}

class LargeArrays : public ::testing::Test {
 protected:
  Array Filled(int64_t offset) {
    Array x(DType::kF32, kLarge, offset);
    Fill(x, random_);
    return x;
  }
  // Moderate numbers without NaN, whose bits depend on the device.
  Array Normal(int64_t offset = 1) {
    Array x(DType::kF32, kLarge, offset);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kLarge; ++i) {
      x.Set(i, normal(random_));
    }
    return x;
  }
  Random random_{77};
};

TEST_F(LargeArrays, StepsAsTheBaseTableDoes) {
  const SgdArgs sgd = {
      .lr = 0.7, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .first_step = false};
  Array params = Normal(), momentum = Normal();
  const Array grads = Normal();
  Array want_params = params, want_momentum = momentum;
  const auto* const in = static_cast<const float*>(grads.data());
  StagedKernels().sgd(sgd, params.floats(), params.floats(), in, momentum.floats(), kLarge);
  Base().sgd(sgd, want_params.floats(), want_params.floats(), in, want_momentum.floats(), kLarge);
  EXPECT_TRUE(SameArrays(params, want_params));
  EXPECT_TRUE(SameArrays(momentum, want_momentum));
  const AgdArgs agd = {.p_factor = 0.99,
                       .coupled_lambda = 0,
                       .beta1 = 0.9,
                       .beta2 = 0.99,
                       .rest1_over_c1 = 0.4,
                       .inverse_c1_before = 3,
                       .delta_root_c2 = 0.2,
                       .clip = 2,
                       .a = 0.01,
                       .lambda = 0,
                       .first_step = false};
  Array p = Normal(), m = Normal(), b(DType::kF32, kLarge, 1);
  for (int64_t i = 0; i < kLarge; ++i) {
    b.Set(i, std::abs(m.At<float>(i)));
  }
  Array want_p = p, want_m = m, want_b = b;
  const int64_t adaptive = StagedKernels().agd(
      agd, {p.floats(), p.floats(), in, m.floats(), b.floats(), nullptr, nullptr}, kLarge);
  EXPECT_EQ(adaptive, Base().agd(agd,
                                 {want_p.floats(), want_p.floats(), in, want_m.floats(),
                                  want_b.floats(), nullptr, nullptr},
                                 kLarge));
  EXPECT_GT(adaptive, 0);
  EXPECT_LT(adaptive, kLarge);
  EXPECT_TRUE(SameArrays(p, want_p));
  EXPECT_TRUE(SameArrays(m, want_m));
  EXPECT_TRUE(SameArrays(b, want_b));
}

TEST_F(LargeArrays, SumsDependOnTheNumbersAlone) {
  const Array x = Normal(0);
  const auto* const there = static_cast<const float*>(x.data());
  const double want = Base().sum_of_squares(there, kLarge),
               got = StagedKernels().sum_of_squares(there, kLarge);
  EXPECT_NEAR(got, want, 1e-13 * want);
  for (int64_t offset = 1; offset < 4; ++offset) {  // aligned and unaligned
    Array moved(DType::kF32, kLarge, offset);
    std::memcpy(moved.data(), there, kLarge * sizeof(float));
    EXPECT_EQ(StagedKernels().sum_of_squares(moved.floats(), kLarge), got) << offset;
    EXPECT_EQ(StagedKernels().sum_of_squared_products(moved.floats(), there, kLarge),
              StagedKernels().sum_of_squared_products(there, there, kLarge));
  }
}

// Each array begins with single elements, packs, or neither.
TEST_F(LargeArrays, ScaleAsTheBaseTableDoes) {
  for (const int64_t offset : {0, 1}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, kLarge}) {
      const Array x = Filled(offset);
      Array got(DType::kF32, kLarge, 1), want(DType::kF32, kLarge);
      StagedKernels().scale_any(DType::kF32, got.data(), x.data(), count, 1.0 / 3);
      Base().scale_any(DType::kF32, want.data(), x.data(), count, 1.0 / 3);
      EXPECT_TRUE(SameArrays(got, want)) << count << " from " << offset;
    }
  }
}

// ---- The table itself

TEST(CudaKernels, RunInTheOrderOfTheirStream) {
  Device& device = TestDevice();
  TestStream stream(device);
  const TestMemory x(device, 4096);
  const auto pinned = device.AllocatePinned(8192);
  ASSERT_TRUE(pinned.ok());
  auto* const numbers = static_cast<float*>(*pinned);
  auto* const word = static_cast<uint32_t*>(*pinned) + 1024;
  *word = 0;
  std::fill_n(numbers, 1024, 1.0f);
  auto* const xs = reinterpret_cast<float*>(x.get());
  ASSERT_TRUE(device.AwaitWord(stream.get(), word, 1).ok());
  ASSERT_TRUE(device.Copy(xs, numbers, 4096, stream.get()).ok());
  {
    KernelStream bound(device, stream.get());
    for (int i = 0; i < 5; ++i) {  // does not wait: the word is not set
      device.kernels().scale_any(DType::kF32, xs, xs, 1024, 2);
    }
    EXPECT_TRUE(bound.status().ok());
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    EXPECT_EQ(device.kernels().sum_of_squares(xs, 1024), 1024 * 1024.0);  // waits
    EXPECT_TRUE(bound.status().ok());
  }
  ASSERT_TRUE(device.Copy(numbers, xs, 4096, stream.get()).ok());
  stream.Finish();
  EXPECT_EQ(numbers[0], 32);
  EXPECT_EQ(numbers[1023], 32);
  device.FreePinned(*pinned);
}

// When such a kernel writes its result late, it must not write to memory of another call.
TEST(CudaKernels, ThoseThatReturnANumberAreWaitedForAsLongAsTheStreamAllows) {
  Device& device = TestDevice();
  TestStream held(device), stream(device);
  const TestMemory memory(device, 4096);
  const auto pinned = device.AllocatePinned(8192);
  ASSERT_TRUE(pinned.ok());
  auto* const word = static_cast<uint32_t*>(*pinned);
  auto* const numbers = reinterpret_cast<float*>(word + 16);
  *word = 0;
  std::fill_n(numbers, 1024, 1.0f);
  ASSERT_TRUE(device.Copy(memory.get(), numbers, 4096, stream.get()).ok());
  stream.Finish();
  const auto* const x = reinterpret_cast<const float*>(memory.get());
  ASSERT_TRUE(device.AwaitWord(held.get(), word, 1).ok());
  {
    KernelStream bound(device, held.get(), 20 * kMillisecond);
    EXPECT_TRUE(std::isnan(device.kernels().sum_of_squares(x, 1024)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(bound.status())) << bound.status();
    const int64_t before = Clock::Real().Now();
    for (int i = 0; i < 100; ++i) {  // returns at once each time
      EXPECT_TRUE(std::isnan(device.kernels().sum_of_squares(x, 1024)));
    }
    EXPECT_LT(Clock::Real().Now() - before, kSecond);
  }
  // Starts more kernels than the device has memory for results at first. Each kernel must get memory
  // that no other kernel uses until this one is done.
  const int before = OnRealDevice() ? 0 : LiveOnFake().back();
  for (int i = 0; i < 6; ++i) {
    KernelStream bound(device, held.get(), kMillisecond);
    EXPECT_TRUE(std::isnan(device.kernels().sum_of_squares(x, 1024)));
  }
  const int late = OnRealDevice() ? 0 : LiveOnFake().back();
  EXPECT_TRUE(OnRealDevice() || late > before);
  const auto sum = [&] {
    KernelStream bound(device, stream.get());
    return device.kernels().sum_of_squares(x, 1024);
  };
  EXPECT_EQ(sum(), 1024);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  held.Finish();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sum(), 1024);
  }
  // The memory serves later calls.
  EXPECT_TRUE(OnRealDevice() || LiveOnFake().back() <= late + 1);
  device.FreePinned(*pinned);
}

TEST(CudaKernels, ErrorsOfLaunchesAreNotedAtTheStream) {
  ENTRAIN_NEEDS_FAKE();
  Device& device = TestDevice();
  TestStream stream(device);
  const TestMemory memory(device, 64);
  auto* const x = reinterpret_cast<float*>(memory.get());
  FailCall("cuLaunchKernel", 1, 2);
  {
    KernelStream bound(device, stream.get());
    device.kernels().scale_any(DType::kF32, x, x, 16, 2);
    EXPECT_THAT(std::string(bound.status().message()),
                HasSubstr("entrain_scale: cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY"));
  }
  FailCall("cuEventRecord", 1, 2);
  KernelStream bound(device, stream.get());
  EXPECT_TRUE(std::isnan(device.kernels().sum_of_squares(x, 16)));
  EXPECT_TRUE(absl::IsResourceExhausted(bound.status()));
}

TEST(CudaKernels, NothingIsLaunchedForNoElements) {
  ENTRAIN_NEEDS_FAKE();
  Device& device = TestDevice();
  const int before = CallsOf("cuLaunchKernel");
  KernelStream bound(device, nullptr);
  device.kernels().scale_any(DType::kF32, nullptr, nullptr, 0, 2);
  EXPECT_EQ(device.kernels().sum_of_squares(nullptr, 0), 0);
  EXPECT_TRUE(bound.status().ok());
  EXPECT_EQ(CallsOf("cuLaunchKernel"), before);
}

}  // namespace
}  // namespace entrain
