#include "lib/train/edit/penalty.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/optim/optimizer.h"
#include "tests/support/golden.h"

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

std::vector<Candidate> Norms(const std::vector<double>& norms) {
  std::vector<Candidate> brought;
  for (const double norm : norms) {
    brought.push_back({.norm = norm});
  }
  return brought;
}

std::vector<double> Softmax(double temperature, const std::vector<double>& norms) {
  return Weigh({.kind = Weighting::kSoftmax, .temperature = temperature}, Norms(norms)).weights;
}

TEST(Weigh, SoftmaxOfNegativeNormsMatchesPublishedVectors) {
  EXPECT_THAT(Softmax(1, {1, 2, 3, 4}),
              Pointwise(NearPublished(), {0.643914, 0.236883, 0.087144, 0.032059}));
  EXPECT_THAT(Softmax(2, {1, 2, 3, 4}),
              Pointwise(NearPublished(), {0.455054, 0.276004, 0.167405, 0.101536}));
  EXPECT_THAT(Softmax(1, {1, 2, kInf, 4}),
              Pointwise(NearPublished(), {0.705385, 0.259496, 0.0, 0.035119}));
}

TEST(Weigh, LargeNormsDoNotVanish) {
  EXPECT_THAT(Softmax(1, {1e6, 1e6 + 1}),
              ElementsAre(DoubleNear(0.7310586, 1e-6), DoubleNear(0.2689414, 1e-6)));
}

TEST(Weigh, RejectedMassIsSharedByTheAccepted) {
  std::vector<Candidate> brought = Norms({1, kNan, 3, kInf, 2, 5});
  brought[4].rejected = true;
  brought[5].absent = true;
  const Verdict verdict = Weigh({}, brought);
  EXPECT_THAT(verdict.weights, ElementsAre(0.5, 0, 0.5, 0, 0, 0));
  EXPECT_EQ(verdict.accepted, 2);
}

TEST(Weigh, SumCountsEachAcceptedOnce) {
  EXPECT_THAT(Weigh({.kind = Weighting::kSum}, Norms({1, kNan, 3})).weights, ElementsAre(1, 0, 1));
}

// Sums of such contributions, and their squares, would not be finite in f32.
TEST(Weigh, NormsThatAreTooLargeForSumsCountAsNotFinite) {
  EXPECT_THAT(Weigh({}, Norms({1e18, 1.01e18, 3e38, 1})).weights, ElementsAre(0.5, 0, 0, 0.5));
}

TEST(Weigh, AllRejectedHaveNoWeight) {
  for (const Weighting kind : {Weighting::kUniform, Weighting::kSum, Weighting::kSoftmax}) {
    for (const double ratio : {0.0, 0.5}) {
      const Verdict verdict =
          Weigh({.kind = kind, .step_ratio = ratio}, Norms({kNan, kInf, -kInf}));
      EXPECT_EQ(verdict.accepted, 0);
      EXPECT_THAT(verdict.weights, ElementsAre(0, 0, 0));
    }
  }
}

TEST(Weigh, StepsMixAsPublishedAmongTheAccepted) {
  std::vector<Candidate> brought = {{.norm = 1, .trained = 30}, {.norm = 2, .trained = 10}};
  const Weighing how = {.kind = Weighting::kSoftmax, .step_ratio = 0.5};
  EXPECT_THAT(Weigh(how, brought).weights, Pointwise(NearPublished(), {0.740529, 0.259471}));
  // A further replica that is rejected has no share, however long it has trained.
  brought.push_back({.norm = 1, .rejected = true, .trained = 1000});
  EXPECT_THAT(Weigh(how, brought).weights, Pointwise(NearPublished(), {0.740529, 0.259471, 0.0}));
  EXPECT_THAT(Weigh({.step_ratio = 1}, brought).weights,
              Pointwise(NearPublished(), {0.75, 0.25, 0.0}));
}

TEST(Weigh, NobodyHasTrainedMeansEqualShares) {
  EXPECT_THAT(Weigh({.step_ratio = 1}, Norms({1, 2, kNan, 3, 4})).weights,
              ElementsAre(0.25, 0.25, 0, 0.25, 0.25));
}

// w'_n = f_n w_n / (sum of f_m w_m over the accepted replicas m), for any w.
TEST(Weigh, ANewcomersWeightGrowsAndWeightsSumToOne) {
  const std::vector<Candidate> whole = {
      {.norm = 1, .trained = 30}, {.norm = 2, .trained = 10}, {.norm = kNan, .trained = 9}};
  std::vector<Candidate> brought = whole;
  brought[1].grown = 1.0 / 3;
  brought[2].grown = 1.0 / 3;
  for (const Weighing& how :
       {Weighing{}, Weighing{.step_ratio = 1}, Weighing{.kind = Weighting::kSoftmax},
        Weighing{.kind = Weighting::kSoftmax, .step_ratio = 0.5}}) {
    const std::vector<double> w = Weigh(how, whole).weights;
    const double total = w[0] + w[1] / 3;
    EXPECT_THAT(Weigh(how, brought).weights, ElementsAre(DoubleNear(w[0] / total, 1e-15),
                                                         DoubleNear(w[1] / 3 / total, 1e-15), 0));
  }
  EXPECT_THAT(Weigh({.kind = Weighting::kSum}, brought).weights, ElementsAre(1, 1.0 / 3, 0));
  brought[0].rejected = true;
  EXPECT_THAT(Weigh({}, brought).weights, ElementsAre(0, 1, 0));
}

// The refined weights of the published code, if it weighs by norms.
TEST(Weigh, CompatRefinesAsThePublishedCode) {
  const nlohmann::json golden = Golden("reducers.json");
  int tried = 0;
  for (const auto& [name, want] : golden["refined_weights"]["4"]["float32"].items()) {
    const nlohmann::json& spec = golden["weight_specs"]["4"][name];
    if (spec.contains("weight") && !spec.contains("temperature")) {
      continue;  // not weighed by norms: gta_golden_test
    }
    Weighing how = {.temperature = spec.value("temperature", 1.0),
                    .step_ratio = spec.value("step_weight_ratio", 0.0),
                    .compat = true};
    how.kind = spec.contains("temperature") ? Weighting::kSoftmax : Weighting::kSum;
    std::vector<Candidate> brought(4);
    for (size_t n = 0; n < 4; ++n) {
      const double q = spec.contains("weight") ? spec["weight"][n].get<double>() : 1;
      brought[n].rejected = spec.value("zeroed_rank", -1) == static_cast<int>(n);
      brought[n].norm = -q;
      brought[n].trained = spec.contains("step_weight") ? spec["step_weight"][n].get<double>() : 0;
    }
    EXPECT_THAT(Weigh(how, brought).weights,
                Pointwise(NearPublished(), want.get<std::vector<double>>()))
        << name;
    ++tried;
  }
  EXPECT_EQ(tried, 13);
}

TEST(Weigh, CompatLeavesTheRejectedInTheDivisor) {
  std::vector<Candidate> brought = Norms({1, 2, 3, 4});
  brought[3].rejected = true;
  EXPECT_THAT(Weigh({.compat = true}, brought).weights, ElementsAre(0.25, 0.25, 0.25, 0));
}

TEST(ClipFactor, BringsLongVectorsToTheLimit) {
  EXPECT_EQ(ClipFactor(0.5, 1), 1);
  EXPECT_EQ(ClipFactor(0, 1), 1);
  EXPECT_DOUBLE_EQ(ClipFactor(4, 1), 1 / (4 + 1e-6));
  EXPECT_DOUBLE_EQ(ClipFactor(0.4392957747874332, 0.25), 0.5690913622595338);
}

}  // namespace
}  // namespace entrain
