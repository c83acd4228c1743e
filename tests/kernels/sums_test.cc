// Sums of squares, compared with one element at a time.
#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr int64_t kCounts[] = {0, 1, 2, 15, 16, 17, 31, 33, 511, 512, 513, 528, 1000, 4099};

// Compares sums of squares. A device adds in another order, but all terms are positive.
#if defined(ENTRAIN_TEST_STAGED)
#define EXPECT_SUM(got, want) EXPECT_NEAR(got, want, 1e-12 * (want))
#else
#define EXPECT_SUM(got, want) EXPECT_EQ(got, want)
#endif

class SumsTest : public KernelTableTest {};

TEST_P(SumsTest, SumOfSquaresIsTheSameToTheLastBit) {
  for (const int64_t count : kCounts) {
    Array x(DType::kF32, count, count % 7);
    FillNormal(x, random_);
    EXPECT_SUM(kernels().sum_of_squares(x.floats(), count), ReferenceSquares(x)) << count;
  }
}

TEST_P(SumsTest, SumOfSquaredProductsIsTheSameToTheLastBit) {
  for (const int64_t count : kCounts) {
    Array x(DType::kF32, count, count % 7), y(DType::kF32, count, 3);
    FillNormal(x, random_);
    FillNormal(y, random_);
    double sums[16] = {};
    for (int64_t i = 0; i < count; ++i) {
      const double product = double{x.At<float>(i)} * double{y.At<float>(i)};
      sums[i % 16] += product * product;
    }
    for (int stride = 8; stride > 0; stride /= 2) {
      for (int lane = 0; lane < stride; ++lane) {
        sums[lane] += sums[lane + stride];
      }
    }
    EXPECT_SUM(kernels().sum_of_squared_products(x.floats(), y.floats(), count), sums[0]) << count;
  }
}

TEST_P(SumsTest, SumOfSquaresOutlivesTheRangeOfFloat) {
  Array x(DType::kF32, 40);
  for (int64_t i = 0; i < 40; ++i) {
    x.Set(i, 3e38f);
  }
  const double square = double{3e38f} * double{3e38f};
  EXPECT_NEAR(kernels().sum_of_squares(x.floats(), 40) / square, 40, 1e-12);
  x.Set(39, NAN);
  EXPECT_TRUE(std::isnan(kernels().sum_of_squares(x.floats(), 40)));
}

ENTRAIN_FOR_ALL_TABLES(SumsTest);

}  // namespace
}  // namespace entrain
