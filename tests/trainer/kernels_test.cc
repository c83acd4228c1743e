#include "examples/trainer/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "examples/trainer/random.h"

namespace trainer {
namespace {

float FromBits(uint32_t bits) {
  float value;
  static_assert(sizeof(value) == sizeof(bits));
  std::copy_n(reinterpret_cast<const char*>(&bits), sizeof(bits), reinterpret_cast<char*>(&value));
  return value;
}

TEST(Bf16, NarrowingRoundsToNearestEven) {
  const std::vector<float> in = {1.0f,
                                 FromBits(0x3F808000),  // half-way above 1.0: to even, down
                                 FromBits(0x3F818000),  // half-way above an odd one: up
                                 FromBits(0x3F808001),  // just above half-way: up
                                 -0.0f,
                                 FromBits(0x7F7FFFFF),  // the largest f32: infinity
                                 std::numeric_limits<float>::infinity()};
  std::vector<uint16_t> out(in.size());
  NarrowBf16(in.data(), out.data(), static_cast<int64_t>(in.size()));
  EXPECT_EQ(out, (std::vector<uint16_t>{0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8000, 0x7F80, 0x7F80}));
}

TEST(Bf16, NanStaysNan) {
  const float in[] = {std::numeric_limits<float>::quiet_NaN(), FromBits(0x7F800001)};
  uint16_t narrow[2];
  float out[2];
  NarrowBf16(in, narrow, 2);
  WidenBf16(narrow, out, 2);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST(Bf16, EveryValueSurvivesTheWayThere) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const auto in = static_cast<uint16_t>(bits);
    float wide;
    uint16_t back;
    WidenBf16(&in, &wide, 1);
    NarrowBf16(&wide, &back, 1);
    ASSERT_EQ(back, in);
  }
}

TEST(CausalSoftmax, AgreesWithDoubleAndHidesTheFuture) {
  constexpr int kRows = 5, kFirst = 40, kColumns = kFirst + kRows, kStride = 50;
  Random random(1);
  std::vector<float> scores(kRows * kStride);
  for (auto& s : scores) {
    s = static_cast<float>(random.Normal() * 4);
  }
  const std::vector<float> in = scores;
  CausalSoftmax(scores.data(), kRows, kColumns, kStride, kFirst);
  for (int r = 0; r < kRows; ++r) {
    double sum = 0.0;
    double top = -1e30;
    for (int c = 0; c <= kFirst + r; ++c) {
      top = std::max(top, static_cast<double>(in[static_cast<size_t>(r * kStride + c)]));
    }
    for (int c = 0; c <= kFirst + r; ++c) {
      sum += std::exp(static_cast<double>(in[static_cast<size_t>(r * kStride + c)]) - top);
    }
    for (int c = 0; c < kColumns; ++c) {
      const auto i = static_cast<size_t>(r * kStride + c);
      const double expected =
          c <= kFirst + r ? std::exp(static_cast<double>(in[i]) - top) / sum : 0.0;
      EXPECT_NEAR(static_cast<double>(scores[i]), expected, 3e-6 * expected);
    }
  }
}

TEST(CausalSoftmax, ANanIsNotHidden) {
  std::vector<float> scores = {1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f};
  CausalSoftmax(scores.data(), 1, 3, 3, 2);
  EXPECT_TRUE(std::isnan(scores[1]) || std::isnan(scores[0]));
}

TEST(Rotate, ProductsDependOnTheDistanceOnly) {
  constexpr int kDim = 8, kLength = 20;
  std::vector<float> cosine(kLength * kDim / 2), sine(cosine.size());
  RotaryTables(kLength, kDim, cosine.data(), sine.data());
  const auto product = [&](int at_q, int at_k) {
    float q[kDim], k[kDim];
    double sum = 0.0;
    for (int i = 0; i < kDim; ++i) {
      q[i] = static_cast<float>(i + 1);
      k[i] = static_cast<float>(3 - i);
    }
    Rotate(q, 1, kDim, &cosine[static_cast<size_t>(at_q * kDim / 2)],
           &sine[static_cast<size_t>(at_q * kDim / 2)], 1.0f);
    Rotate(k, 1, kDim, &cosine[static_cast<size_t>(at_k * kDim / 2)],
           &sine[static_cast<size_t>(at_k * kDim / 2)], 1.0f);
    for (int i = 0; i < kDim; ++i) {
      sum += static_cast<double>(q[i]) * static_cast<double>(k[i]);
    }
    return sum;
  };
  EXPECT_NEAR(product(5, 2), product(19, 16), 1e-3);
  EXPECT_GT(std::fabs(product(5, 2) - product(5, 3)), 1e-2);
}

TEST(CrossEntropy, IsTheSumOfNats) {
  std::vector<float> logits = {0.0f,           0.0f, 0.0f,           0.0f,
                               std::log(8.0f), 0.0f, std::log(4.0f), std::log(3.0f)};
  const uint8_t targets[] = {2, 0};
  EXPECT_NEAR(CrossEntropy(logits.data(), targets, 2, 4), std::log(4.0) + std::log(2.0), 1e-6);
  EXPECT_NEAR(static_cast<double>(logits[4]), 0.5, 1e-6);
}

TEST(Gelu, AgreesWithDoubleAndItsDerivative) {
  std::vector<float> x;
  for (int i = -300; i <= 300; ++i) {
    x.push_back(static_cast<float>(i) / 30.0f);
  }
  std::vector<float> y(x.size()), dy(x.size(), 2.0f);
  Gelu(x.data(), y.data(), static_cast<int64_t>(x.size()));
  GeluBackward(dy.data(), x.data(), static_cast<int64_t>(x.size()));
  const auto gelu = [](double v) {
    return 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const auto v = static_cast<double>(x[i]);
    EXPECT_NEAR(y[i], gelu(v), 1e-6 * std::max(1.0, std::fabs(v))) << v;
    EXPECT_NEAR(dy[i], (gelu(v + 1e-5) - gelu(v - 1e-5)) / 1e-5, 4e-6) << v;
  }
}

TEST(CountHits, CountsRowsWhoseTargetIsTheLargest) {
  const std::vector<float> p = {0.2f, 0.5f, 0.3f, 0.6f, 0.2f, 0.2f, 0.1f, 0.1f, 0.8f};
  const std::vector<uint8_t> targets = {1, 2, 2};
  EXPECT_EQ(CountHits(p.data(), targets.data(), 3, 3), 2);
}

}  // namespace
}  // namespace trainer
