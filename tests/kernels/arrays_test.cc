// Hashes, arithmetic on f32 arrays and the search for non-finite values, compared with one element
// at a time.
#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr int64_t kCounts[] = {0, 1, 2, 15, 16, 17, 31, 33, 511, 512, 513, 528, 1000, 4099};

class ArraysTest : public KernelTableTest {};

TEST_P(ArraysTest, HashIsTheSameInEveryTable) {
  for (const int64_t steps : {0, 1, 2, 33}) {
    const int64_t count = steps * kHashStep;
    Array x(DType::kF32, count, count % 7);
    Fill(x, random_);
    uint64_t want[kHashChains], got[kHashChains];
    for (uint64_t c = 0; c < kHashChains; ++c) {
      want[c] = got[c] = 0x9e3779b97f4a7c15u * (c + 1);
    }
    for (int64_t i = 0; i < count / 2; ++i) {
      uint64_t word;
      std::memcpy(&word, x.floats() + 2 * i, sizeof(word));
      uint64_t& chain = want[i % kHashChains];
      chain = (chain ^ word) * 0x100000001b3u;
    }
    kernels().hash(got, x.floats(), count);
    EXPECT_EQ(std::memcmp(got, want, sizeof(want)), 0) << count;
  }
}

TEST_P(ArraysTest, DeltaIsAnchorMinusParams) {
  for (const int64_t count : kCounts) {
    for (const bool in_place : {false, true}) {
      Array anchor(DType::kF32, count, 1), params(DType::kF32, count, 2), apart(DType::kF32, count);
      FillNormal(anchor, random_);
      FillNormal(params, random_);
      Array delta(DType::kF32, count), want(DType::kF32, count);
      for (int64_t i = 0; i < count; ++i) {
        delta.Set(i, anchor.At<float>(i) - params.At<float>(i));
        want.Set(i, 0.3f * delta.At<float>(i));
      }
      EXPECT_EQ(kernels().square_of_delta(anchor.floats(), params.floats(), count),
                ReferenceSquares(delta))
          << count;
      Array& got = in_place ? params : apart;
      kernels().weighted_delta(got.floats(), anchor.floats(), params.floats(), 0.3f, count);
      EXPECT_TRUE(SameArrays(got, want)) << count;
    }
  }
}

// Such arrays are written past the cache.
TEST_P(ArraysTest, LongDeltasAreAnchorMinusParams) {
  constexpr int64_t kCount = (256 << 10) + 5;
  std::vector<float> anchor(kCount), params(kCount), want(kCount);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < anchor.size(); ++i) {
    anchor[i] = normal(random_);
    params[i] = normal(random_);
    want[i] = 0.3f * (anchor[i] - params[i]);
  }
  std::vector<float> room(kCount + 32);
  for (const size_t shift : {0, 1}) {
    const size_t line = (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) / sizeof(float) % 16;
    float* const delta = room.data() + line + shift;
    kernels().weighted_delta(delta, anchor.data(), params.data(), 0.3f, kCount);
    EXPECT_EQ(std::memcmp(delta, want.data(), kCount * sizeof(float)), 0);
  }
  kernels().weighted_delta(params.data(), anchor.data(), params.data(), 0.3f, kCount);
  EXPECT_EQ(params, want);
}

TEST_P(ArraysTest, ScaleAndAxpyRoundTheProductFirst) {
  for (const int64_t count : kCounts) {
    Array x(DType::kF32, count, 1), y(DType::kF32, count, 3);
    Fill(x, random_);
    Fill(y, random_);
    Array scaled = x, sum = y;
    for (int64_t i = 0; i < count; ++i) {
      scaled.Set(i, x.At<float>(i) * 0.3f);
      const volatile float product = 0.7f * x.At<float>(i);  // volatile: no fused multiply-add here
      sum.Set(i, y.At<float>(i) + product);
    }
    kernels().axpy(y.floats(), 0.7f, x.floats(), count);
    kernels().scale_any(DType::kF32, x.floats(), x.floats(), count, 0.3f);
    EXPECT_TRUE(SameArrays(y, sum)) << count;
    EXPECT_TRUE(SameArrays(x, scaled)) << count;
  }
}

// Returns the value in the type in which two elements are combined. volatile: no fused multiply-add
// here.
double Rounded(DType dtype, double x) {
  const volatile auto single = static_cast<float>(x);
  return dtype == DType::kF64 ? x : double{single};
}

constexpr DType kFloats[] = {DType::kF32, DType::kF64,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};

TEST_P(ArraysTest, ScaleAnyRoundsTheProductOnce) {
  for (const DType dtype : kFloats) {
    for (const double factor : {0.3, -2.0, 1.0 / 3, 1e-3, 0.0}) {
      for (const int64_t count : kCounts) {
        Array x(dtype, count, count % 3), apart(dtype, count, 1), want(dtype, count);
        Fill(x, random_);
        for (int64_t i = 0; i < count; ++i) {
          const double exact = FloatAt(x, i) * Rounded(dtype, factor);
          SetFloat(want, i, Rounded(dtype, exact));
        }
        kernels().scale_any(dtype, apart.data(), x.data(), count, factor);
        EXPECT_TRUE(SameArrays(apart, want)) << factor << " × " << count;
        kernels().scale_any(dtype, x.data(), x.data(), count, factor);
        EXPECT_TRUE(SameArrays(x, want)) << factor << " × " << count << " in place";
      }
    }
  }
}

template <typename T>
void CheckScaledIntegers(const Kernels& kernels, DType dtype, double factor, Random& random) {
  for (const int64_t count : kCounts) {
    Array x(dtype, count, count % 3), want(dtype, count);
    Fill(x, random);
    for (int64_t i = 0; i < count; ++i) {
      want.Set(i,
               static_cast<T>(static_cast<__int128>(x.At<T>(i)) * static_cast<__int128>(factor)));
    }
    kernels.scale_any(dtype, x.data(), x.data(), count, factor);
    EXPECT_TRUE(SameArrays(x, want)) << factor << " × " << count;
  }
}

TEST_P(ArraysTest, ScaledIntegersWrap) {
  for (const double factor : {0.0, 1.0, -1.0, 3.0, -7.0, 1e6, 0x1p62, -0x1p63, 0x1.8p63}) {
    CheckScaledIntegers<int8_t>(kernels(), DType::kI8, factor, random_);
    CheckScaledIntegers<uint8_t>(kernels(), DType::kU8, factor, random_);
    CheckScaledIntegers<int16_t>(kernels(), DType::kI16, factor, random_);
    CheckScaledIntegers<uint16_t>(kernels(), DType::kU16, factor, random_);
    CheckScaledIntegers<int32_t>(kernels(), DType::kI32, factor, random_);
    CheckScaledIntegers<uint32_t>(kernels(), DType::kU32, factor, random_);
    CheckScaledIntegers<int64_t>(kernels(), DType::kI64, factor, random_);
    CheckScaledIntegers<uint64_t>(kernels(), DType::kU64, factor, random_);
  }
}

TEST_P(ArraysTest, WeightedSumsRoundEveryProductAndSum) {
  constexpr double kWeights[] = {0.25, 1.0 / 3, -0.7, 1e-3, 2, 0.1};
  for (const DType dtype : kFloats) {
    for (int n = 1; n <= 6; ++n) {
      for (int in_place = -1; in_place < n; ++in_place) {
        const int64_t count = in_place < 0 ? 1037 : 601;
        std::vector<Array> in;
        std::vector<const void*> pointers;
        for (int j = 0; j < n; ++j) {
          in.emplace_back(dtype, count, j % 3);
          Fill(in.back(), random_);
        }
        Array want(dtype, count), apart(dtype, count, 1);
        for (int64_t i = 0; i < count; ++i) {
          double sum = Rounded(dtype, FloatAt(in[0], i) * Rounded(dtype, kWeights[0]));
          for (int j = 1; j < n; ++j) {
            const volatile double product =
                FloatAt(in[static_cast<size_t>(j)], i) * Rounded(dtype, kWeights[j]);
            sum = Rounded(dtype, sum + Rounded(dtype, product));
          }
          SetFloat(want, i, sum);
        }
        for (const Array& x : in) {
          pointers.push_back(x.data());
        }
        Array& out = in_place < 0 ? apart : in[static_cast<size_t>(in_place)];
        kernels().combine_weighted(dtype, out.data(), pointers.data(), kWeights, n, count);
        EXPECT_TRUE(SameArrays(out, want)) << NameOf(dtype) << " of " << n << " into " << in_place;
      }
    }
  }
}

// Rounds every product, sum and quotient separately. Filled arrays have zeros, NaN and infinities.
double AgreeingAt(DType dtype, Consensus consensus, bool normalize, const std::vector<double>& x,
                  const double* weights) {
  double total = 0, sum = 0, divisor = 0;
  const auto product = [&](size_t j) { return Rounded(dtype, x[j] * Rounded(dtype, weights[j])); };
  for (size_t j = 0; j < x.size(); ++j) {
    const double y = product(j);
    total = consensus == Consensus::kSum ? Rounded(dtype, total + y) : total + (y > 0) - (y < 0);
  }
  for (size_t j = 0; j < x.size(); ++j) {
    const double y = product(j);
    if (total >= 0 ? y > 0 : y < 0) {
      sum = Rounded(dtype, sum + y);
      divisor = Rounded(dtype, divisor + Rounded(dtype, weights[j]));
    }
  }
  const bool divides = normalize && std::abs(divisor) >= Rounded(dtype, 1e-8);
  return divides ? Rounded(dtype, sum / divisor) : sum;
}

TEST_P(ArraysTest, ThoseOfTheElectedSignAreSummed) {
  constexpr double kWeights[] = {0.25, 1.0 / 3, -0.7, 1e-3, 2, 1e-9};
  for (const DType dtype : kFloats) {
    for (int n = 1; n <= 6; ++n) {
      for (int variant = 0; variant < 4; ++variant) {
        const Consensus consensus = variant % 2 == 0 ? Consensus::kSum : Consensus::kCount;
        const bool normalize = variant / 2 == 0;
        const int in_place = variant == 3 ? n - 1 : -1;
        const int64_t count = in_place < 0 ? 1037 : 601;
        std::vector<Array> in;
        std::vector<const void*> pointers;
        for (int j = 0; j < n; ++j) {
          in.emplace_back(dtype, count, j % 3);
          Fill(in.back(), random_);
        }
        Array want(dtype, count), apart(dtype, count, 1);
        for (int64_t i = 0; i < count; ++i) {
          std::vector<double> x;
          for (const Array& one : in) {
            x.push_back(FloatAt(one, i));
          }
          SetFloat(want, i, AgreeingAt(dtype, consensus, normalize, x, kWeights));
        }
        for (const Array& x : in) {
          pointers.push_back(x.data());
        }
        Array& out = in_place < 0 ? apart : in[static_cast<size_t>(in_place)];
        kernels().combine_agreeing(consensus, normalize, dtype, out.data(), pointers.data(),
                                   kWeights, n, count);
        EXPECT_TRUE(SameArrays(out, want)) << NameOf(dtype) << " of " << n << ", " << variant;
      }
    }
  }
}

TEST_P(ArraysTest, OneBadElementAnywhereIsFound) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const double bad : {double{INFINITY}, -double{INFINITY}, double{NAN}}) {
      for (int64_t at = 0; at < 530; at += at < 40 ? 1 : 37) {
        Array x(dtype, 530, 1);
        for (int64_t i = 0; i < 530; ++i) {
          SetFloat(x, i, i % 2 == 0 ? 60000 : 1e-40);
        }
        ASSERT_TRUE(kernels().all_finite(x.data(), dtype, 530)) << NameOf(dtype);
        SetFloat(x, at, bad);
        ASSERT_FALSE(kernels().all_finite(x.data(), dtype, 530)) << NameOf(dtype) << " at " << at;
        ASSERT_TRUE(kernels().all_finite(x.data(), dtype, at)) << NameOf(dtype) << " before " << at;
      }
    }
  }
}

TEST_P(ArraysTest, EightBitFloatsAreJudgedByTheirFormat) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto x = static_cast<uint8_t>(bits);
    // e4m3 has no infinity: only s.1111.111 is NaN. e5m2 has both: s.11111.mm.
    EXPECT_EQ(kernels().all_finite(&x, DType::kF8E4M3, 1), (bits & 0x7f) != 0x7f) << bits;
    EXPECT_EQ(kernels().all_finite(&x, DType::kF8E5M2, 1), (bits >> 2 & 0x1f) != 0x1f) << bits;
  }
}

TEST_P(ArraysTest, OfPairsTheValuesAreJudged) {
  Located<float, int32_t> singles[3] = {{1, 0x7f800000}, {2, -1}, {3, 0}};
  Located<double, int64_t> doubles[3] = {{1, 0x7ff0000000000000}, {2, -1}, {3, 0}};
  EXPECT_TRUE(kernels().all_finite(singles, DType::kF32I32, 3));
  EXPECT_TRUE(kernels().all_finite(doubles, DType::kF64I64, 3));
  singles[2].value = NAN;
  doubles[2].value = INFINITY;
  EXPECT_FALSE(kernels().all_finite(singles, DType::kF32I32, 3));
  EXPECT_FALSE(kernels().all_finite(doubles, DType::kF64I64, 3));
  EXPECT_TRUE(kernels().all_finite(singles, DType::kF32I32, 2));
}

TEST_P(ArraysTest, IntegersAreFinite) {
  const uint64_t ones = ~uint64_t{0};
  for (const DType dtype : {DType::kI8, DType::kU16, DType::kI32, DType::kU64}) {
    EXPECT_TRUE(kernels().all_finite(&ones, dtype, 1));
  }
}

ENTRAIN_FOR_ALL_TABLES(ArraysTest);

}  // namespace
}  // namespace entrain
