// What a sparsified contribution keeps, found on the device, against sorting and against the draws
// one by one.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"

#include "lib/kernels/packing.h"
#include "tests/device/cuda/on_device.h"
#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF64,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};

uint64_t MagnitudeAt(const Array& x, int64_t i) {
  return BitsAt(x, i) & ((uint64_t{1} << (8 * SizeOf(x.dtype()) - 1)) - 1);
}

// x with what is not kept set to zero bits.
Array Zeroed(const Array& x, const std::vector<bool>& kept) {
  Array out = x;
  const auto element = static_cast<size_t>(SizeOf(x.dtype()));
  for (int64_t i = 0; i < x.count(); ++i) {
    if (!kept[static_cast<size_t>(i)]) {
      std::memset(static_cast<char*>(out.data()) + static_cast<size_t>(i) * element, 0, element);
    }
  }
  return out;
}

std::vector<bool> LargestOf(const Array& x, int64_t k) {
  std::vector<int64_t> order(static_cast<size_t>(x.count()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return MagnitudeAt(x, a) > MagnitudeAt(x, b); });
  std::vector<bool> kept(order.size());
  for (int64_t i = 0; i < k; ++i) {
    kept[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
  }
  return kept;
}

class Sift : public ::testing::Test {
 protected:
  // Runs sift(dst, src) on the device, over x at an odd place; in place, too.
  template <typename F>
  void Check(const Array& x, const std::vector<bool>& kept, F sift) {
    const int64_t bytes = x.count() * SizeOf(x.dtype()), shift = SizeOf(x.dtype());
    const TestMemory in(device_, bytes + 64), apart(device_, bytes + 64);
    const Array want = Zeroed(x, kept);
    for (char* const dst : {apart.get(), in.get() + shift}) {
      Array got = x;
      ASSERT_TRUE(device_.Copy(in.get() + shift, x.data(), bytes, stream_.get()).ok());
      const absl::Status status = sift(dst, in.get() + shift);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(device_.Copy(got.data(), dst, bytes, stream_.get()).ok());
      stream_.Finish();
      ASSERT_TRUE(SameArrays(got, want));
    }
  }
  void CheckLargest(const Array& x, int64_t k) {
    SCOPED_TRACE(absl::StrCat(NameOf(x.dtype()), ", ", k, " of ", x.count()));
    Check(x, LargestOf(x, k), [&](void* dst, const void* src) {
      return device_.KeepLargest(x.dtype(), dst, src, x.count(), k, stream_.get(),
                                 Deadline::Never());
    });
  }

  Device& device_ = TestDevice();
  TestStream stream_{device_};
  Random random_{20260101};
};

TEST_F(Sift, TheLargestAreThoseThatSortingFinds) {
  for (const DType dtype : kFloats) {
    for (const int64_t count : {1, 2, 17, 255, 513, 5003}) {
      Array x(dtype, count);
      Fill(x, random_);  // with NaN and infinities
      for (const int64_t k : {int64_t{0}, int64_t{1}, count / 10, count / 2, count - 1, count}) {
        CheckLargest(x, k);
      }
    }
  }
}

TEST_F(Sift, OfEqualOnesTheFirstAreKept) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kF64}) {
    for (const int64_t count : {7, 512, 513, 3001, 300007}) {
      Array x(dtype, count);
      for (int64_t i = 0; i < count; ++i) {
        SetFloat(x, i, static_cast<double>(random_() % 4) - 1.5);  // two magnitudes
      }
      for (const int64_t k : {int64_t{1}, count / 5, count / 2, count - 1}) {
        CheckLargest(x, k);
      }
    }
  }
}

TEST_F(Sift, AreThoseOfTheSieve) {
  Array x(DType::kF32, 4099);
  Fill(x, random_);
  constexpr int64_t kKept = 400;
  const Sieve sieve = Sieve::Largest(DType::kF32, x.data(), x.count(), kKept);
  std::vector<bool> kept(static_cast<size_t>(x.count()));
  int64_t ties = sieve.ties;
  for (int64_t i = 0; i < x.count(); ++i) {
    const bool tie = MagnitudeAt(x, i) == sieve.threshold;
    kept[static_cast<size_t>(i)] = MagnitudeAt(x, i) > sieve.threshold || (tie && ties > 0);
    ties -= tie ? 1 : 0;
  }
  EXPECT_EQ(kept, LargestOf(x, kKept));
  CheckLargest(x, kKept);
}

TEST_F(Sift, ARandomMaskIsTheDraws) {
  const Draws draws(7, 1, 2, 3);
  const auto threshold = static_cast<uint64_t>(std::ldexp(0.3, 32));
  for (const DType dtype : kFloats) {
    for (const int64_t count : {1, 33, 5003}) {
      Array x(dtype, count);
      Fill(x, random_);
      constexpr int64_t kFirst = 1000003;
      std::vector<bool> kept;
      for (int64_t i = 0; i < count; ++i) {
        kept.push_back(draws.At(static_cast<uint64_t>(kFirst + i)) < threshold);
      }
      Check(x, kept, [&](void* dst, const void* src) {
        return device_.KeepRandom(dtype, dst, src, kFirst, count, draws, threshold, stream_.get());
      });
    }
  }
}

// What the device does later than anybody waits for it disturbs nobody.
TEST_F(Sift, NobodyWaitsForLongerThanTheirTime) {
  Array x(DType::kF32, 5003), got(DType::kF32, 5003);
  Fill(x, random_);
  const Array want = Zeroed(x, LargestOf(x, 100));
  const int64_t bytes = x.count() * 4;
  const TestMemory in(device_, bytes), words(device_, bytes), values(device_, bytes),
      apart(device_, bytes);
  const auto word = device_.AllocatePinned(64);
  ASSERT_TRUE(word.ok());
  const std::atomic_ref<uint32_t> open(*static_cast<uint32_t*>(*word));
  open.store(0);
  TestStream held(device_);
  ASSERT_TRUE(device_.Copy(in.get(), x.data(), bytes, held.get()).ok());
  ASSERT_TRUE(device_.AwaitWord(held.get(), static_cast<uint32_t*>(*word), 1).ok());
  const Deadline soon = Deadline::After(50 * kMillisecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      device_.KeepLargest(DType::kF32, apart.get(), in.get(), x.count(), 10, held.get(), soon)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(device_
                                           .PackNonzero(DType::kF32, in.get(), x.count(),
                                                        reinterpret_cast<uint64_t*>(words.get()),
                                                        values.get(), held.get(), soon)
                                           .status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      device_.Hash(in.get(), x.count(), held.get(), Deadline::After(50 * kMillisecond)).status()));
  for (int i = 0; i < 30; ++i) {
    if (i == 15) {
      open.store(1);
    }
    ASSERT_TRUE(device_
                    .KeepLargest(DType::kF32, apart.get(), in.get(), x.count(), 100, stream_.get(),
                                 Deadline::Never())
                    .ok());
    ASSERT_TRUE(device_.Copy(got.data(), apart.get(), bytes, stream_.get()).ok());
    stream_.Finish();
    ASSERT_TRUE(SameArrays(got, want)) << i;
  }
  held.Finish();
  device_.FreePinned(*word);
}

// Found on the device and spread again on the host: the vector itself, but that zeros have no sign.
TEST_F(Sift, WhatIsNotZeroIsPacked) {
  for (const DType dtype : kFloats) {
    for (const int64_t count : {int64_t{1}, int64_t{64}, int64_t{65}, int64_t{5003},
                                SizeOf(dtype) == 1 ? int64_t{9'000'001} : int64_t{300'007}}) {
      SCOPED_TRACE(absl::StrCat(NameOf(dtype), ", ", count));
      Array x(dtype, count);
      const int64_t bytes = count * SizeOf(dtype);
      std::memset(x.data(), 0, static_cast<size_t>(bytes));
      int64_t kept = 0;
      for (int64_t i = 0; i < count; i += 1 + static_cast<int64_t>(random_() % 20)) {
        SetFloat(x, i, static_cast<double>(random_() % 7) + 1);
        ++kept;
      }
      const int64_t word_bytes = (count + 63) / 64 * 8;
      const TestMemory in(device_, bytes), words(device_, word_bytes), values(device_, bytes);
      ASSERT_TRUE(device_.Copy(in.get(), x.data(), bytes, stream_.get()).ok());
      const auto found =
          device_.PackNonzero(dtype, in.get(), count, reinterpret_cast<uint64_t*>(words.get()),
                              values.get(), stream_.get(), Deadline::Never());
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(*found, kept);
      std::vector<uint64_t> host_words(static_cast<size_t>(word_bytes) / 8);
      std::vector<char> host_values(static_cast<size_t>(*found * SizeOf(dtype)));
      ASSERT_TRUE(device_.Copy(host_words.data(), words.get(), word_bytes, stream_.get()).ok());
      ASSERT_TRUE(device_
                      .Copy(host_values.data(), values.get(),
                            static_cast<int64_t>(host_values.size()), stream_.get())
                      .ok());
      stream_.Finish();
      Array got(dtype, count);
      Spread(dtype, host_words.data(), host_values.data(), count, got.data());
      EXPECT_TRUE(SameArrays(got, x));
    }
  }
}

TEST_F(Sift, NothingOfNothing) {
  EXPECT_TRUE(
      device_.KeepLargest(DType::kF32, nullptr, nullptr, 0, 0, stream_.get(), Deadline::Never())
          .ok());
  EXPECT_TRUE(
      device_.KeepRandom(DType::kF32, nullptr, nullptr, 0, 0, Draws(), 1, stream_.get()).ok());
}

TEST_F(Sift, AHashIsOfTheBitsAndTheirPlaces) {
  for (const int64_t count : {int64_t{1}, int64_t{5}, int64_t{1000}, int64_t{600'001}}) {
    std::vector<uint32_t> words(static_cast<size_t>(count));
    std::iota(words.begin(), words.end(), 7u);
    // At two places, of which one is not aligned for packs.
    const TestMemory x(device_, 4 * count + 64);
    const auto hash = [&](int64_t shift) {
      EXPECT_TRUE(device_.Copy(x.get() + shift, words.data(), 4 * count, stream_.get()).ok());
      const auto got = device_.Hash(x.get() + shift, count, stream_.get(), Deadline::Never());
      EXPECT_TRUE(got.ok()) << got.status();
      return got.value_or(0);
    };
    const uint64_t first = hash(0);
    EXPECT_EQ(hash(4), first);
    words.back() ^= 0x80000000u;  // a sign
    EXPECT_NE(hash(0), first);
    words.back() ^= 0x80000000u;
    if (count > 1) {
      std::swap(words[0], words[static_cast<size_t>(count) / 2]);
      EXPECT_NE(hash(0), first);
    }
  }
}

TEST_F(Sift, ErrorsComeBack) {
  ENTRAIN_NEEDS_FAKE();
  const TestMemory x(device_, 400);
  ASSERT_TRUE(device_.Fill(x.get(), 1, 400, stream_.get()).ok());
  for (const char* const function : {"cuLaunchKernel", "cuEventRecord", "cuMemsetD8Async"}) {
    FailCall(function, 1, 2);
    const absl::Status status = device_.KeepLargest(DType::kF32, x.get(), x.get(), 100, 10,
                                                    stream_.get(), Deadline::Never());
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << function;
  }
  EXPECT_TRUE(
      device_.KeepLargest(DType::kF32, x.get(), x.get(), 100, 10, stream_.get(), Deadline::Never())
          .ok());
}

}  // namespace
}  // namespace entrain
