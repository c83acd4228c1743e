// The device's kernels where the tests of lib/kernels (also compiled for it, beside this file) do
// not reach: arrays over which a grid loops several times, compared with the base table bit by bit;
// sums; streams; errors.
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

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
  Array Filled(DType dtype, int64_t offset = 1) {
    Array x(dtype, kLarge, offset);
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
  const SgdArgs outer = {
      .lr = 0.7, .momentum = 0.9, .weight_decay = 0, .nesterov = true, .first_step = false};
  Array anchor = Normal(), momentum = Normal(), params = Normal();
  const Array mean = Normal();
  Array want_anchor = anchor, want_momentum = momentum, want_params = params;
  const auto* const in = static_cast<const float*>(mean.data());
  StagedKernels().outer_step(outer, 0.3f, anchor.floats(), momentum.floats(), params.floats(), in,
                             kLarge);
  Base().outer_step(outer, 0.3f, want_anchor.floats(), want_momentum.floats(), want_params.floats(),
                    in, kLarge);
  EXPECT_TRUE(SameArrays(anchor, want_anchor));
  EXPECT_TRUE(SameArrays(momentum, want_momentum));
  EXPECT_TRUE(SameArrays(params, want_params));
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

TEST_F(LargeArrays, ABadElementIsFoundAnywhere) {
  Array x = Normal();
  EXPECT_TRUE(StagedKernels().all_finite(x.data(), DType::kF32, kLarge));
  for (const int64_t at : {int64_t{0}, int64_t{200000}, kLarge - 1}) {
    Array bad = x;
    bad.Set(at, INFINITY);
    EXPECT_FALSE(StagedKernels().all_finite(bad.data(), DType::kF32, kLarge)) << at;
  }
}

// ---- The table itself

TEST(CudaKernels, RunInTheOrderOfTheirStream) {
  Device& device = TestDevice();
  TestStream stream(device);
  const TestMemory x(device, 4096), y(device, 4096);
  const auto pinned = device.AllocatePinned(8192);
  ASSERT_TRUE(pinned.ok());
  auto* const numbers = static_cast<float*>(*pinned);
  auto* const word = static_cast<uint32_t*>(*pinned) + 1024;
  *word = 0;
  for (int i = 0; i < 1024; ++i) {
    numbers[i] = 1;
  }
  auto* const xs = reinterpret_cast<float*>(x.get());
  auto* const ys = reinterpret_cast<float*>(y.get());
  ASSERT_TRUE(device.AwaitWord(stream.get(), word, 1).ok());
  ASSERT_TRUE(device.Copy(xs, numbers, 4096, stream.get()).ok());
  ASSERT_TRUE(device.Fill(ys, 0, 4096, stream.get()).ok());
  {
    KernelStream bound(device, stream.get());
    for (int i = 0; i < 5; ++i) {  // does not wait: the word is not set
      device.kernels().axpy(ys, 2, xs, 1024);
    }
    EXPECT_TRUE(bound.status().ok());
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    EXPECT_EQ(device.kernels().sum_of_squares(ys, 1024), 1024 * 100.0);  // waits
    EXPECT_TRUE(bound.status().ok());
  }
  ASSERT_TRUE(device.Copy(numbers, ys, 4096, stream.get()).ok());
  stream.Finish();
  EXPECT_EQ(numbers[0], 10);
  EXPECT_EQ(numbers[1023], 10);
  device.FreePinned(*pinned);
}

// When such a kernel writes its result late, it must not write to memory of another call.
TEST(CudaKernels, ThoseThatReturnANumberAreWaitedForAsLongAsTheStreamAllows) {
  Device& device = TestDevice();
  TestStream held(device), stream(device);
  const TestMemory twos(device, 4096), ones(device, 4096);
  const auto pinned = device.AllocatePinned(8192);
  ASSERT_TRUE(pinned.ok());
  auto* const word = static_cast<uint32_t*>(*pinned);
  auto* const numbers = reinterpret_cast<float*>(word + 16);
  *word = 0;
  for (const auto& [memory, value] : {std::pair(&twos, 2.0f), std::pair(&ones, 1.0f)}) {
    std::fill_n(numbers, 1024, value);
    ASSERT_TRUE(device.Copy(memory->get(), numbers, 4096, stream.get()).ok());
    stream.Finish();
  }
  const auto* const x = reinterpret_cast<const float*>(twos.get());
  ASSERT_TRUE(device.AwaitWord(held.get(), word, 1).ok());
  {
    KernelStream bound(device, held.get(), 20 * kMillisecond);
    EXPECT_TRUE(std::isnan(device.kernels().sum_of_squares(x, 1024)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(bound.status())) << bound.status();
  }
  {
    KernelStream bound(device, held.get(), 20 * kMillisecond);
    EXPECT_FALSE(device.kernels().all_finite(x, DType::kF32, 1024));
    EXPECT_TRUE(absl::IsDeadlineExceeded(bound.status())) << bound.status();
    const int64_t before = Clock::Real().Now();
    for (int i = 0; i < 100; ++i) {  // returns at once each time
      EXPECT_TRUE(std::isnan(device.kernels().sum_of_squares(x, 1024)));
    }
    EXPECT_LT(Clock::Real().Now() - before, kSecond);
  }
  // The result of that kernel comes while the next waits for its own, on a stream that is held as
  // well.
  numbers[0] = NAN;
  ASSERT_TRUE(device.Copy(twos.get(), numbers, 4096, stream.get()).ok());
  stream.Finish();
  auto* const other_word = word + 8;
  *other_word = 0;
  TestStream other(device);
  ASSERT_TRUE(device.AwaitWord(other.get(), other_word, 1).ok());
  std::thread opener([&] {
    // The call below has begun to wait by then.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    held.Finish();
    __atomic_store_n(other_word, 1, __ATOMIC_RELEASE);
  });
  {
    KernelStream bound(device, other.get());
    EXPECT_TRUE(device.kernels().all_finite(ones.get(), DType::kF32, 1024));
    EXPECT_TRUE(bound.status().ok()) << bound.status();
  }
  opener.join();
  device.FreePinned(*pinned);
}

TEST(CudaKernels, MoreArraysThanALaunchTakesAreRefused) {
  Device& device = TestDevice();
  TestStream stream(device);
  const TestMemory memory(device, 64);
  const std::vector<const void*> in(241, memory.get());
  const std::vector<double> weights(241, 1.0);
  for (const int n : {240, 241}) {
    KernelStream bound(device, stream.get());
    device.kernels().combine_weighted(DType::kF32, memory.get(), in.data(), weights.data(), n, 16);
    EXPECT_EQ(bound.status().ok(), n == 240);
    if (n == 241) {
      EXPECT_TRUE(absl::IsUnimplemented(bound.status()));
      EXPECT_THAT(std::string(bound.status().message()), HasSubstr("at most 240 arrays, not 241"));
    }
  }
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
    device.kernels().axpy(x, 1, x, 16);
    EXPECT_THAT(std::string(bound.status().message()),
                HasSubstr("entrain_axpy: cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY"));
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
  device.kernels().axpy(nullptr, 1, nullptr, 0);
  EXPECT_EQ(device.kernels().sum_of_squares(nullptr, 0), 0);
  EXPECT_TRUE(device.kernels().all_finite(nullptr, DType::kF32, 0));
  EXPECT_TRUE(bound.status().ok());
  EXPECT_EQ(CallsOf("cuLaunchKernel"), before);
}

}  // namespace
}  // namespace entrain
