#include "lib/train/penalty.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

MATCHER(NearPublished, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-6;
}

TEST(Weigh, SoftmaxOfNegativeNormsMatchesPublishedVectors) {
  EXPECT_THAT(Weigh(Weighting::kSoftmax, 1, {1, 2, 3, 4}).weights,
              Pointwise(NearPublished(), {0.643914, 0.236883, 0.087144, 0.032059}));
  EXPECT_THAT(Weigh(Weighting::kSoftmax, 2, {1, 2, 3, 4}).weights,
              Pointwise(NearPublished(), {0.455054, 0.276004, 0.167405, 0.101536}));
  EXPECT_THAT(Weigh(Weighting::kSoftmax, 1, {1, 2, kInf, 4}).weights,
              Pointwise(NearPublished(), {0.705385, 0.259496, 0.0, 0.035119}));
}

TEST(Weigh, LargeNormsDoNotVanish) {
  const Verdict verdict = Weigh(Weighting::kSoftmax, 1, {1e6, 1e6 + 1});
  EXPECT_THAT(verdict.weights,
              ElementsAre(DoubleNear(0.7310586, 1e-6), DoubleNear(0.2689414, 1e-6)));
}

TEST(Weigh, RejectedMassIsSharedByTheAccepted) {
  const Verdict verdict = Weigh(Weighting::kUniform, 1, {1, kNan, 3, kInf});
  EXPECT_THAT(verdict.weights, ElementsAre(0.5, 0, 0.5, 0));
  EXPECT_EQ(verdict.accepted, 2);
}

TEST(Weigh, SumCountsEachAcceptedOnce) {
  EXPECT_THAT(Weigh(Weighting::kSum, 1, {1, kNan, 3}).weights, ElementsAre(1, 0, 1));
}

TEST(Weigh, AllRejectedHaveNoWeight) {
  for (const Weighting weighting : {Weighting::kUniform, Weighting::kSum, Weighting::kSoftmax}) {
    const Verdict verdict = Weigh(weighting, 1, {kNan, kInf, -kInf});
    EXPECT_EQ(verdict.accepted, 0);
    EXPECT_THAT(verdict.weights, ElementsAre(0, 0, 0));
  }
}

TEST(ClipFactor, BringsLongVectorsToTheLimit) {
  EXPECT_EQ(ClipFactor(0.5, 1), 1);
  EXPECT_EQ(ClipFactor(0, 1), 1);
  EXPECT_DOUBLE_EQ(ClipFactor(4, 1), 1 / (4 + 1e-6));
  EXPECT_DOUBLE_EQ(ClipFactor(0.4392957747874332, 0.25), 0.5690913622595338);
}

}  // namespace
}  // namespace entrain
