// WSAM beyond the published trajectories: every option with every optimizer, compared with the rule
// in double; slices; previews.
#include "lib/optim/wsam.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/optim/optimizer.h"
#include "tests/optim/reference.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr size_t kCount = 9001;  // more than two parts of a step
constexpr double kRate = 0.01;

// Returns the gradient of a sum of quadratics that couple neighbours.
template <typename T>
std::vector<T> Gradient(const std::vector<T>& x) {
  std::vector<T> g(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const T next = x[(i + 1) % x.size()];
    g[i] = static_cast<T>(0.25 * static_cast<double>(i % 7)) * x[i] + (x[i] - next) / 2;
  }
  return g;
}

double SumOfSquares(const Floats& x) {
  double sum = 0;
  for (const float value : x) {
    sum += double{value} * value;
  }
  return sum;
}

struct WsamCase {
  const char* name;
  OptimizerKind kind;
  bool decouple, adaptive;
  double max_norm;
};

class WsamTest : public testing::TestWithParam<WsamCase> {
 protected:
  void SetUp() override {
    const WsamCase& given = GetParam();
    base_.kind = given.kind;
    base_.momentum = 0.9;
    base_.delta = 0.01;
    base_.weight_decay = 0.01;
    config_ = {.rho = 0.5,
               .gamma = 0.8,
               .max_norm = given.max_norm,
               .adaptive = given.adaptive,
               .decouple = given.decouple};
    optimizer_ = MakeOptimizer(base_).value();
    wsam_ = Wsam::Make(config_, optimizer_).value();
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    x_.resize(kCount);
    std::generate(x_.begin(), x_.end(), [&] { return normal(random); });
    states_.resize(static_cast<size_t>(optimizer_->state_arrays()), Floats(kCount));
  }
  // Computes both gradients at x_, and restores x_.
  void TakeGradients() {
    g_ = Gradient(x_);
    Floats moved = x_, saved(kCount);
    const double sum = wsam_->AscentSum(x_.data(), g_.data(), kCount);
    wsam_->Ascend(moved.data(), saved.data(), g_.data(), kCount, sum);
    ASSERT_EQ(saved, x_);
    ASSERT_NE(moved, x_);
    g2_ = Gradient(moved);
  }
  void StepPart(size_t from, size_t to, int64_t step, Apply apply, Floats& x,
                std::vector<Floats>& states, float* out) {
    std::vector<float*> state;
    for (Floats& array : states) {
      state.push_back(array.data() + from);
    }
    EXPECT_TRUE(wsam_
                    ->Step({.args = {.count = static_cast<int64_t>(to - from),
                                     .master = x.data() + from,
                                     .grads = g_.data() + from,
                                     .state = state,
                                     .out = out,
                                     .step = step,
                                     .lr = kRate},
                            .second = g2_.data() + from,
                            .sum = SumOfSquares(g_),
                            .second_sum = SumOfSquares(g2_)},
                           apply)
                    .ok());
  }

  OptimizerConfig base_;
  WsamConfig config_;
  std::shared_ptr<const Optimizer> optimizer_;
  std::unique_ptr<Wsam> wsam_;
  Floats x_, g_, g2_;
  std::vector<Floats> states_;
};

TEST_P(WsamTest, FollowsTheRuleInDouble) {
  std::vector<ReferenceElement> reference(kCount);
  Doubles x(x_.begin(), x_.end());
  for (size_t i = 0; i < kCount; ++i) {
    reference[i].x = x[i];
  }
  for (int64_t step = 1; step <= 20; ++step) {
    const Doubles g = Gradient(x), e = ReferencePerturbation(config_, x, g);
    Doubles moved = x;
    for (size_t i = 0; i < kCount; ++i) {
      moved[i] += e[i];
    }
    ReferenceWsamStep(config_, base_, kRate, step, g, Gradient(moved), reference);
    TakeGradients();
    StepPart(0, kCount, step, Apply::kCommit, x_, states_, nullptr);
    for (size_t i = 0; i < kCount; ++i) {
      x[i] = reference[i].x;
      const double bound = 1e-6 * static_cast<double>(step) * std::max(1.0, std::abs(x[i]));
      ASSERT_NEAR(x_[i], x[i], bound) << "step " << step << ", element " << i;
    }
  }
}

TEST_P(WsamTest, SlicesMakeTheWholeAndPreviewsTheCommit) {
  Floats sliced = x_, preview(kCount);
  std::vector<Floats> sliced_states = states_;
  for (int64_t step = 1; step <= 3; ++step) {
    TakeGradients();
    const Floats before = x_;
    const std::vector<Floats> states_before = states_;
    StepPart(0, kCount, step, Apply::kPreview, x_, states_, preview.data());
    ASSERT_EQ(x_, before);
    ASSERT_EQ(states_, states_before);
    StepPart(0, kCount, step, Apply::kCommit, x_, states_, nullptr);
    ASSERT_EQ(x_, preview);
    const size_t cuts[] = {0, 1, 18, 4000, 4000, 8500, kCount};
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      StepPart(cuts[i], cuts[i + 1], step, Apply::kCommit, sliced, sliced_states, nullptr);
    }
    ASSERT_EQ(sliced, x_);
    ASSERT_EQ(sliced_states, states_);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, WsamTest,
    testing::Values(WsamCase{"sgd_decoupled", OptimizerKind::kSgd, true, false, 0},
                    WsamCase{"sgd_coupled_clipped", OptimizerKind::kSgd, false, false, 5},
                    WsamCase{"sgd_adaptive", OptimizerKind::kSgd, true, true, 0},
                    WsamCase{"adamw_decoupled_clipped", OptimizerKind::kAdamw, true, false, 5},
                    WsamCase{"adamw_coupled", OptimizerKind::kAdamw, false, false, 0},
                    WsamCase{"agd_decoupled", OptimizerKind::kAgd, true, false, 0},
                    WsamCase{"agd_coupled_adaptive", OptimizerKind::kAgd, false, true, 0},
                    WsamCase{"agd_loose_clip", OptimizerKind::kAgd, true, false, 1e6}),
    [](const auto& rule) { return std::string(rule.param.name); });

std::shared_ptr<const Optimizer> Sgd() {
  return MakeOptimizer({.kind = OptimizerKind::kSgd, .momentum = 0.9}).value();
}

// With gamma 0 the result has the same bits as the optimizer alone. With gamma 1/2, coupled, it is
// SAM, which uses only the second gradient.
TEST(Wsam, AtTheEndsOfGammaItIsTheBaseOrSam) {
  const Floats g = {1, -2, 3}, g2 = {1.25f, -1, 4};
  for (const double gamma : {0.0, 0.5}) {
    Floats x = {1, 2, 3}, want = x, b(3), want_b(3);
    float* state[] = {b.data()};
    float* want_state[] = {want_b.data()};
    const auto wsam = Wsam::Make({.gamma = gamma, .decouple = gamma == 0}, Sgd()).value();
    const StepArgs args = {
        .count = 3, .master = x.data(), .grads = g.data(), .state = state, .step = 1, .lr = 0.1};
    EXPECT_TRUE(wsam->Step({.args = args, .second = g2.data()}, Apply::kCommit).ok());
    Sgd()->Step({.count = 3,
                 .master = want.data(),
                 .grads = gamma == 0 ? g.data() : g2.data(),
                 .state = want_state,
                 .step = 1,
                 .lr = 0.1},
                Apply::kCommit);
    EXPECT_EQ(x, want) << gamma;
    EXPECT_EQ(b, want_b) << gamma;
  }
}

TEST(Wsam, CombinedGradientsMakeTheCoupledStep) {
  const Floats g = {1, -2, 3}, g2 = {1.25f, -1, 4};
  Floats x = {1, 2, 3}, other = x, b(3), other_b(3), combined = g2;
  float* state[] = {b.data()};
  float* other_state[] = {other_b.data()};
  const auto wsam = Wsam::Make({.gamma = 0.9, .decouple = false}, Sgd()).value();
  const StepArgs args = {
      .count = 3, .master = x.data(), .grads = g.data(), .state = state, .step = 1, .lr = 0.1};
  EXPECT_TRUE(wsam->Step({.args = args, .second = g2.data()}, Apply::kCommit).ok());
  wsam->Combine(combined.data(), g.data(), combined.data(), 3);
  EXPECT_NEAR(combined[0], 9 * 1.25 - 8 * 1, 1e-6);
  StepArgs plain = args;
  plain.master = other.data();
  plain.grads = combined.data();
  plain.state = other_state;
  wsam->base().Step(plain, Apply::kCommit);
  EXPECT_EQ(x, other);
  EXPECT_EQ(b, other_b);
}

TEST(Wsam, AZeroGradientPerturbsNothing) {
  Floats x = {1, 2}, saved(2);
  const Floats g = {0, 0};
  const auto wsam = Wsam::Make({}, Sgd()).value();
  wsam->Ascend(x.data(), saved.data(), g.data(), 2, wsam->AscentSum(x.data(), g.data(), 2));
  EXPECT_EQ(x, (Floats{1, 2}));
}

TEST(Wsam, MistakesAreRefusedByNameAndValue) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const WsamConfig& config, const std::string& text) {
    const absl::Status status = Wsam::Make(config, Sgd()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused({.rho = -1}, "rho -1 ");
  refused({.rho = kNaN}, "rho nan ");
  refused({.gamma = 1}, "gamma 1 ");
  refused({.gamma = -0.5}, "gamma -0.5 ");
  refused({.gamma = kNaN}, "gamma nan ");
  refused({.eps = 0}, "sam_eps 0 ");
  refused({.max_norm = -2}, "max_norm -2 ");
}

}  // namespace
}  // namespace entrain
