#include "lib/kernels/packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF64,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};

std::vector<std::byte> Packed(const Packing& packing, Sieve sieve, const void* x, int64_t count,
                              double factor = 1, const Draws& draws = {}) {
  const Chosen chosen = Choose(packing, sieve, x, 0, count);
  std::vector<std::byte> out(static_cast<size_t>(chosen.bytes), std::byte{0xee});
  Pack(BestKernels(), packing, chosen, x, factor, draws, 0, out.data());
  return out;
}

// Unpacks everything, in pieces.
template <typename T>
std::vector<T> Unpacked(const Packing& packing, const std::vector<std::byte>& packed,
                        int64_t count) {
  auto unpacker = Unpacker::Open(packing, packed, count);
  EXPECT_TRUE(unpacker.ok()) << unpacker.status();
  std::vector<T> out(static_cast<size_t>(count));
  for (int64_t start = 0; unpacker.ok() && start < count; start += Unpacker::kPiece) {
    unpacker->Next(BestKernels(), out.data() + start, std::min(Unpacker::kPiece, count - start));
  }
  return out;
}

Sieve SieveOf(Sieve::Kind kind, uint64_t threshold = 0) {
  Sieve sieve;
  sieve.kind = kind;
  sieve.threshold = threshold;
  sieve.draws = Draws(1, 2, 3, 4);
  return sieve;
}

// Returns a vector in which one of `every` elements is not zero.
std::vector<float> Sparse(int64_t count, int64_t every) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i += every) {
    x[static_cast<size_t>(i)] = static_cast<float>(i + 1) / 8;
  }
  return x;
}

TEST(Packing, TheSmallestFormIsTakenAndReadBack) {
  const Packing packing;
  for (const int64_t count : {0, 1, 63, 64, 65, 2048, 2049, 10'000}) {
    for (const int64_t every : {1, 2, 7, 31, 33, 200, 20'000}) {
      const std::vector<float> x = Sparse(count, every);
      const int64_t values = std::count_if(x.begin(), x.end(), [](float v) { return v != 0; });
      const auto packed = Packed(packing, SieveOf(Sieve::kNonzero), x.data(), count);
      EXPECT_EQ(Unpacked<float>(packing, packed, count), x) << count << " / " << every;
      const int64_t bitmap = (count + 63) / 64 * 8 + 4 * values;
      const int64_t least = std::min({4 * count, bitmap, 8 * values});
      EXPECT_LE(static_cast<int64_t>(packed.size()), count == 0 ? 0 : 8 + least + 7);
    }
  }
}

TEST(Packing, EveryTypeComesBackBitForBit) {
  Random random(7);
  for (const DType dtype : kFloats) {
    const Packing packing{.dtype = dtype};
    Array x(dtype, 5000);
    Fill(x, random);
    for (const Sieve::Kind kind : {Sieve::kAll, Sieve::kNonzero}) {
      const auto packed = Packed(packing, SieveOf(kind), x.data(), 5000);
      Array out(dtype, 5000);
      auto unpacker = Unpacker::Open(packing, packed, 5000);
      ASSERT_TRUE(unpacker.ok()) << unpacker.status();
      for (int64_t at = 0; at < 5000; at += Unpacker::kPiece) {
        unpacker->Next(BestKernels(), static_cast<char*>(out.data()) + at * SizeOf(dtype),
                       std::min(Unpacker::kPiece, 5000 - at));
      }
      for (int64_t i = 0; i < 5000; ++i) {
        const bool zero = FloatAt(x, i) == 0;
        ASSERT_TRUE(zero ? FloatAt(out, i) == 0 : BitsAt(out, i) == BitsAt(x, i))
            << NameOf(dtype) << " element " << i;
      }
    }
  }
}

TEST(Packing, TheLargestAreKeptAndOfEqualOnesTheFirst) {
  const std::vector<float> x = {0.5, -3, 1.25, -0.125, 7, -2, 0.75};
  const auto kept = [&](const std::vector<float>& of, int64_t k) {
    const auto count = static_cast<int64_t>(of.size());
    const Packing packing;
    return Unpacked<float>(
        packing,
        Packed(packing, Sieve::Largest(DType::kF32, of.data(), count, k), of.data(), count), count);
  };
  EXPECT_EQ(kept(x, 3), (std::vector<float>{0, -3, 0, 0, 7, -2, 0}));
  EXPECT_EQ(kept(x, 7), x);
  EXPECT_EQ(kept({1, -1, 2, 1, -2, 1}, 3), (std::vector<float>{1, 0, 2, 0, -2, 0}));
  EXPECT_EQ(kept({0, 0, 0, 5}, 3), (std::vector<float>{0, 0, 0, 5}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(kept({1, nan, 9}, 1)[1]));
}

TEST(Packing, EachChunkKeepsItsLargestAndAtLeastOne) {
  Merging merging;
  merging.sparsification = Sparsification::kMagnitude;
  merging.density = 0.04;
  merging.sparsify_chunk = 64;
  Sieve sieve = SieveOf(Sieve::kLargest);
  sieve.chunks = &merging;
  std::vector<float> x(64 + 64 + 7), want(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = (i % 2 == 0 ? 1.0f : -1.0f) * static_cast<float>(i % 64 + 1) * (i < 64 ? 100.0f : 1.0f);
  }
  for (const size_t at : {62, 63, 126, 127, 134}) {  // 2.56 of 64 values; one of 7 values
    want[at] = x[at];
  }
  const auto count = static_cast<int64_t>(x.size());
  EXPECT_EQ(Unpacked<float>({}, Packed({}, sieve, x.data(), count), count), want);
}

TEST(Packing, TwoBitsAreFourLevelsWithoutZero) {
  const Packing packing{.dtype = DType::kF32, .format = WireFormat::kInt2, .block = 16};
  std::vector<float> x(70);
  const float values[] = {3, -3, 1, -1, 0.01f, -0.01f, 1.99f, -1.99f, 2.01f, -2.01f};
  const float levels[] = {3, -3, 1, -1, 1, -1, 1, -1, 3, -3};
  std::vector<float> want(x.size());
  for (size_t i = 0; i < 10; ++i) {
    x[7 * i] = values[i];
    want[7 * i] = levels[i];
  }
  // Few of many values, and nearly all of few. No dense slice can hold the latter, because zeros
  // are between the values.
  for (const int64_t count : {int64_t{70}, int64_t{8}}) {
    const auto packed = Packed(packing, SieveOf(Sieve::kNonzero), x.data(), count);
    EXPECT_LE(static_cast<int64_t>(packed.size()), MostBytes(packing, count));
    const std::vector<float> got = Unpacked<float>(packing, packed, count);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-6) << i;
    }
  }
  // Blocks of 16, bytes of four codes, pieces: for 5000 values.
  std::vector<float> many(5000);
  for (size_t i = 0; i < many.size(); ++i) {
    const int level = static_cast<int>(i * 7 % 4);
    many[i] = static_cast<float>(2 * level - 3) * static_cast<float>(i / 16 % 5 + 1);
    many[i] = i % 16 == 0 ? 3 * static_cast<float>(i / 16 % 5 + 1) : many[i];
  }
  const auto packed = Packed(packing, SieveOf(Sieve::kNonzero), many.data(), 5000);
  const std::vector<float> got = Unpacked<float>(packing, packed, 5000);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], many[i], 1e-5) << i;
  }
}

// Compares with a sort, for all types, with many ties.
TEST(Packing, TheThresholdIsThatOfASort) {
  Random random(11);
  for (const DType dtype : kFloats) {
    for (const int64_t count : {1, 100, 3000}) {
      Array x(dtype, count);
      for (int64_t i = 0; i < count; ++i) {
        SetFloat(x, i, static_cast<double>(static_cast<int64_t>(random() % 41)) / 4 - 5);
      }
      for (const int64_t k : {int64_t{1}, (count + 2) / 3, count}) {
        std::vector<int64_t> order(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
          order[static_cast<size_t>(i)] = i;
        }
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
          return std::abs(FloatAt(x, a)) > std::abs(FloatAt(x, b));
        });
        std::vector<bool> want(static_cast<size_t>(count));
        for (int64_t i = 0; i < k; ++i) {
          const int64_t at = order[static_cast<size_t>(i)];
          want[static_cast<size_t>(at)] = FloatAt(x, at) != 0;
        }
        Sieve sieve = Sieve::Largest(dtype, x.data(), count, k);
        const Chosen chosen = Choose({.dtype = dtype}, sieve, x.data(), 0, count);
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<size_t>(i);
          ASSERT_EQ((chosen.words[at / 64] >> (at % 64) & 1) != 0, want[at])
              << NameOf(dtype) << " " << k << " of " << count << ", element " << i;
        }
      }
    }
  }
}

TEST(Packing, RandomOnesAreAsManyAsTheDensitySays) {
  constexpr int64_t kCount = 100'000;
  const std::vector<float> x(kCount, 1);
  const Packing packing;
  for (const double density : {0.01, 0.3, 0.9}) {
    const Sieve sieve = SieveOf(Sieve::kRandom, static_cast<uint64_t>(std::ldexp(density, 32)));
    const auto out = Unpacked<float>(packing, Packed(packing, sieve, x.data(), kCount, 4), kCount);
    const auto kept = static_cast<double>(std::count(out.begin(), out.end(), 4.0F));
    EXPECT_EQ(static_cast<int64_t>(kept) + std::count(out.begin(), out.end(), 0.0F), kCount);
    EXPECT_NEAR(kept, density * kCount, 5 * std::sqrt(density * (1 - density) * kCount));
  }
}

struct Format {
  WireFormat format;
  double bits, step;  // bits per value; step of the largest of its block, or of itself
};
constexpr Format kFormats[] = {{WireFormat::kBF16, 16, 0x1p-7},
                               {WireFormat::kInt8, 8, 1.0 / 127},
                               {WireFormat::kInt4, 4, 1.0 / 7}};

TEST(Packing, FormatsRoundToTheirStepsAndTakeTheirBytes) {
  Random random(3);
  for (const Format& format : kFormats) {
    for (const int64_t block : {16, 256}) {
      for (const WireRounding rounding : {WireRounding::kNearest, WireRounding::kStochastic}) {
        for (const int64_t count : {1, 15, 17, 5001}) {
          std::vector<float> x;
          for (int64_t i = 0; i < count; ++i) {
            x.push_back(static_cast<float>(random() % 20001) / 100 - 100);
          }
          const bool scaled = format.format != WireFormat::kBF16;
          const Packing packing{DType::kF32, format.format, scaled ? block : 0, rounding};
          const auto packed =
              Packed(packing, SieveOf(Sieve::kAll), x.data(), count, 1, Draws(5, 6, 7, 8));
          const auto scales = scaled ? 4 * ((count + block - 1) / block) : 0;
          EXPECT_LE(static_cast<double>(packed.size()),
                    8 + static_cast<double>(scales) +
                        std::ceil(format.bits * static_cast<double>(count) / 8) + 7);
          const auto out = Unpacked<float>(packing, packed, count);
          const double part = rounding == WireRounding::kNearest ? 0.5001 : 1.0001;
          for (int64_t i = 0; i < count; ++i) {
            const int64_t begin = i / block * block, end = std::min(begin + block, count);
            double largest = std::abs(x[static_cast<size_t>(i)]);
            for (int64_t j = begin; scaled && j < end; ++j) {
              largest = std::max(largest, double{std::abs(x[static_cast<size_t>(j)])});
            }
            ASSERT_NEAR(out[static_cast<size_t>(i)], x[static_cast<size_t>(i)],
                        part * format.step * largest)
                << static_cast<int>(format.format) << " element " << i << " of " << count;
          }
        }
      }
    }
  }
}

// The values that are left of a vector are written like a vector of their own. Their pieces begin
// anywhere in a block, or in a byte.
TEST(Packing, SparseValuesAreWrittenLikeDenseOnes) {
  for (const Format& format : kFormats) {
    for (const int64_t every : {2, 3, 7, 150}) {
      const bool scaled = format.format != WireFormat::kBF16;
      const Packing packing{DType::kF32, format.format, scaled ? 16 : 0, WireRounding::kNearest};
      const std::vector<float> x = Sparse(9999, every);
      std::vector<float> left;
      std::copy_if(x.begin(), x.end(), std::back_inserter(left), [](float v) { return v != 0; });
      const auto count = static_cast<int64_t>(left.size());
      const auto dense = Unpacked<float>(
          packing, Packed(packing, SieveOf(Sieve::kAll), left.data(), count), count);
      const auto sparse =
          Unpacked<float>(packing, Packed(packing, SieveOf(Sieve::kNonzero), x.data(), 9999), 9999);
      size_t next = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(sparse[i], x[i] == 0 ? 0 : dense[next++])
            << static_cast<int>(format.format) << " every " << every << ", element " << i;
      }
    }
  }
}

TEST(Packing, StochasticRoundingIsRightInTheMean) {
  constexpr int64_t kCount = 4096;
  for (const Format& format : kFormats) {
    const bool scaled = format.format != WireFormat::kBF16;
    const Packing packing{DType::kF32, format.format, scaled ? 64 : 0, WireRounding::kStochastic};
    const float value = 1 + 0.3F * static_cast<float>(format.step);
    std::vector<float> x(kCount, value);
    for (size_t i = 0; i < x.size(); i += 64) {
      x[i] = scaled ? 1.5F : value;
    }
    const auto out = Unpacked<float>(
        packing, Packed(packing, SieveOf(Sieve::kAll), x.data(), kCount, 1, Draws(9, 9, 9, 9)),
        kCount);
    double sum = 0, exact = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      sum += out[i];
      exact += x[i];
    }
    const double step = format.step * 1.5;
    EXPECT_NEAR(sum, exact, 5 * step * 0.5 * std::sqrt(kCount)) << static_cast<int>(format.format);
    EXPECT_NE(*std::min_element(out.begin() + 1, out.begin() + 64),
              *std::max_element(out.begin() + 1, out.begin() + 64));
  }
}

TEST(Packing, WhatIsNotFiniteIsNotHidden) {
  std::vector<float> x(64, 1);
  x[20] = std::numeric_limits<float>::infinity();
  for (const Format& format : kFormats) {
    const bool scaled = format.format != WireFormat::kBF16;
    const Packing packing{DType::kF32, format.format, scaled ? 16 : 0, WireRounding::kNearest};
    const auto out =
        Unpacked<float>(packing, Packed(packing, SieveOf(Sieve::kAll), x.data(), 64), 64);
    EXPECT_NEAR(out[0], 1, 1e-6);
    EXPECT_FALSE(std::isfinite(out[20]));
    EXPECT_EQ(std::isnan(out[16]), scaled);  // the block
    EXPECT_NEAR(out[32], 1, 1e-6);
  }
}

// The bytes of a peer may be wrong in any way. Each error is found before the bytes are used.
TEST(Packing, MalformedSlicesAreRefused) {
  Random random(13);
  for (const int64_t every : {1, 5, 100}) {
    const std::vector<float> x = Sparse(1000, every);
    const Packing packing;
    const auto good = Packed(packing, SieveOf(Sieve::kNonzero), x.data(), 1000);
    ASSERT_TRUE(Unpacker::Open(packing, good, 1000).ok());
    EXPECT_FALSE(Unpacker::Open(packing, good, 100).ok());
    EXPECT_FALSE(Unpacker::Open(packing, {good.data(), good.size() - 8}, 1000).ok());
    EXPECT_FALSE(Unpacker::Open(packing, {good.data(), 4}, 1000).ok());
    EXPECT_FALSE(Unpacker::Open(packing, {good.data(), 0}, 1000).ok());
    EXPECT_FALSE(Unpacker::Open(packing, good, 0).ok());
    int refused = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      auto bad = good;
      bad[random() % std::min<size_t>(bad.size(), 8 + 128)] ^= std::byte{1} << (random() % 8);
      auto unpacker = Unpacker::Open(packing, bad, 1000);
      if (!unpacker.ok()) {
        EXPECT_EQ(unpacker.status().code(), absl::StatusCode::kDataLoss);
        ++refused;
        continue;
      }
      std::vector<float> out(1000);  // reads stay inside (asan checks this)
      unpacker->Next(BestKernels(), out.data(), 1000);
    }
    EXPECT_GT(refused, 50) << every;
  }
}

}  // namespace
}  // namespace entrain
