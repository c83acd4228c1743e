// One contract for every optimizer. Each rule is also compared with numbers that were computed
// elsewhere.
#include "lib/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/optim/reference.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

// Parameters and state of one optimizer, for `count` elements.
struct Model {
  Model(const OptimizerConfig& config, const Floats& initial)
      : optimizer(MakeOptimizer(config).value()), params(initial) {
    states.resize(static_cast<size_t>(optimizer->state_arrays()), Floats(initial.size(), 0.0f));
  }
  // Steps only the elements [from, to).
  void StepPart(size_t from, size_t to, const Floats& grads, int64_t step, double lr, Apply apply,
                float* out) {
    std::vector<float*> pointers;
    for (Floats& state : states) {
      pointers.push_back(state.data() + from);
    }
    StepArgs args;
    args.count = static_cast<int64_t>(to - from);
    args.master = params.data() + from;
    args.grads = grads.data() + from;
    args.state = pointers;
    args.out = out;
    args.step = step;
    args.lr = lr;
    optimizer->Step(args, apply);
  }
  void Commit(const Floats& grads, int64_t step, double lr) {
    StepPart(0, params.size(), grads, step, lr, Apply::kCommit, nullptr);
  }
  Floats Preview(const Floats& grads, int64_t step, double lr) {
    Floats out(params.size());
    StepPart(0, params.size(), grads, step, lr, Apply::kPreview, out.data());
    return out;
  }

  std::unique_ptr<Optimizer> optimizer;
  Floats params;
  std::vector<Floats> states;
};

struct Case {
  const char* name;
  OptimizerConfig config;
  int state_arrays;
};

OptimizerConfig Sgd(double momentum, bool nesterov, double weight_decay) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  config.momentum = momentum;
  config.nesterov = nesterov;
  config.weight_decay = weight_decay;
  return config;
}
OptimizerConfig Adamw(double beta1, double beta2, double weight_decay) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdamw;
  config.beta1 = beta1;
  config.beta2 = beta2;
  config.weight_decay = weight_decay;
  return config;
}
OptimizerConfig Lion(double beta1, double beta2, double weight_decay) {
  OptimizerConfig config = Adamw(beta1, beta2, weight_decay);
  config.kind = OptimizerKind::kLion;
  return config;
}
OptimizerConfig Agd(double delta, double weight_decay) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAgd;
  config.beta2 = 0.99;
  config.delta = delta;
  config.weight_decay = weight_decay;
  return config;
}
OptimizerConfig AgdWith(bool amsgrad, bool win, double clip, WeightDecay decay) {
  OptimizerConfig config = Agd(0.02, 0.01);
  config.amsgrad = amsgrad;
  config.win = win;
  config.clip = clip;
  config.decay = decay;
  return config;
}

constexpr WeightDecay kDecoupled = WeightDecay::kDecoupled, kFixed = WeightDecay::kFixed,
                      kCoupled = WeightDecay::kCoupled;

class OptimizerTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr size_t kCount = 1003;
  Floats Random(float scale) {
    std::normal_distribution<float> normal(0, scale);
    Floats x(kCount);
    std::generate(x.begin(), x.end(), [&] { return normal(random_); });
    return x;
  }
  std::mt19937 random_{11};
};

TEST_P(OptimizerTest, PreviewIsTheCommitWithoutItsTraces) {
  Model model(GetParam().config, Random(1));
  for (int64_t step = 1; step <= 5; ++step) {
    const Floats grads = Random(0.5f);
    const Floats params = model.params;
    const std::vector<Floats> states = model.states;
    const Floats preview = model.Preview(grads, step, 0.03);
    EXPECT_EQ(model.params, params);
    EXPECT_EQ(model.states, states);
    EXPECT_NE(preview, params);
    model.Commit(grads, step, 0.03);
    EXPECT_EQ(model.params, preview) << "step " << step;
  }
}

TEST_P(OptimizerTest, ShardsMakeTheWhole) {
  const Floats initial = Random(1);
  Model whole(GetParam().config, initial), shards(GetParam().config, initial);
  for (int64_t step = 1; step <= 5; ++step) {
    const Floats grads = Random(0.5f);
    whole.Commit(grads, step, 0.03);
    const size_t cuts[] = {0, 1, 18, 500, 500, kCount};
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      shards.StepPart(cuts[i], cuts[i + 1], grads, step, 0.03, Apply::kCommit, nullptr);
    }
    ASSERT_EQ(shards.params, whole.params) << "step " << step;
    ASSERT_EQ(shards.states, whole.states) << "step " << step;
  }
}

// Every step adds an error of a few units in the last place of the parameter and of the update.
TEST_P(OptimizerTest, FollowsTheRuleInDouble) {
  const Floats initial = Random(1);
  Model model(GetParam().config, initial);
  std::vector<ReferenceElement> reference(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    reference[i].x = initial[i];
  }
  constexpr double kRate = 0.01;
  int64_t adaptive = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    const Floats grads = Random(0.5f);
    model.Preview(grads, step, kRate);
    model.Commit(grads, step, kRate);
    for (size_t i = 0; i < kCount; ++i) {
      ReferenceStep(GetParam().config, kRate, step, grads[i], reference[i]);
      const double bound =
          4e-7 * static_cast<double>(step) * std::max(1.0, std::abs(reference[i].x));
      ASSERT_NEAR(model.params[i], reference[i].x, bound) << "step " << step << ", element " << i;
      adaptive += reference[i].adaptive;
    }
  }
  // Commits are counted and previews are not. An element just at the limit may be rounded to either
  // side.
  const BranchCounts counts = model.optimizer->branches();
  const bool switches = GetParam().config.kind == OptimizerKind::kAgd;
  EXPECT_EQ(counts.elements, switches ? 100 * static_cast<int64_t>(kCount) : 0);
  EXPECT_NEAR(static_cast<double>(counts.adaptive), static_cast<double>(adaptive), 2);
}

TEST_P(OptimizerTest, HasTheStateItSays) {
  EXPECT_EQ(MakeOptimizer(GetParam().config).value()->state_arrays(), GetParam().state_arrays);
}

TEST_P(OptimizerTest, NoElementsAreNoWork) {
  Model model(GetParam().config, {});
  model.Commit({}, 1, 0.1);
  EXPECT_TRUE(model.Preview({}, 1, 0.1).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Rules, OptimizerTest,
    ::testing::Values(
        Case{"sgd", Sgd(0, false, 0), 0}, Case{"sgd_decay", Sgd(0, false, 0.1), 0},
        Case{"sgd_momentum", Sgd(0.9, false, 0), 1},
        Case{"sgd_nesterov_decay", Sgd(0.85, true, 0.01), 1},
        Case{"adamw", Adamw(0.9, 0.999, 0), 2}, Case{"adamw_decay", Adamw(0.9, 0.95, 0.1), 2},
        Case{"adamw_no_memory", Adamw(0, 0, 0), 2}, Case{"lion", Lion(0.9, 0.99, 0), 1},
        Case{"lion_decay", Lion(0.5, 0.9, 0.1), 1}, Case{"agd", Agd(1e-5, 0), 2},
        Case{"agd_all_sgd", Agd(10, 0), 2}, Case{"agd_both_branches", Agd(0.04, 0.1), 2},
        Case{"agd_clip", AgdWith(false, false, 0.5, kDecoupled), 2},
        Case{"agd_fixed_decay", AgdWith(false, false, 0, kFixed), 2},
        Case{"agd_coupled_decay", AgdWith(false, false, 0, kCoupled), 2},
        Case{"agd_amsgrad", AgdWith(true, false, 0, kDecoupled), 3},
        Case{"agd_win", AgdWith(false, true, 0, kDecoupled), 3},
        Case{"agd_win_amsgrad_clip", AgdWith(true, true, 2, kDecoupled), 4}),
    [](const auto& rule) { return std::string(rule.param.name); });

// η = 0.8, μ = 0.85, from 1 with gradients 0, 0.5, 0.25, -0.1. This checks the rule of the outer
// optimizer.
TEST(Sgd, NesterovGivesTheKnownSeries) {
  Model model(Sgd(0.85, true, 0), {1.0f});
  const float grads[] = {0, 0.5f, 0.25f, -0.1f};
  const double expected[] = {1, 0.26, -0.399, -0.64115};
  for (int64_t step = 1; step <= 4; ++step) {
    model.Commit({grads[step - 1]}, step, 0.8);
    EXPECT_NEAR(model.params[0], expected[step - 1], 1e-6) << "step " << step;
  }
}

struct GoldenStep {
  double grads[7], params[7];
};
constexpr GoldenStep kAdamwSteps[] = {
#include "tests/optim/testdata/adamw_steps.inc"
};

TEST(Adamw, GivesTheKnownSeries) {
  Model model(Adamw(0.9, 0.95, 0.1), {2, -1.5f, 1, -3, 4, -0.5f, 2.5f});
  int64_t step = 0;
  for (const GoldenStep& golden : kAdamwSteps) {
    model.Commit(Floats(std::begin(golden.grads), std::end(golden.grads)), ++step, 0.05);
    for (size_t i = 0; i < 7; ++i) {
      const double want = golden.params[i];
      ASSERT_NEAR(model.params[i], want, 2e-6 * std::max(1.0, std::abs(want)))
          << "step " << step << ", coordinate " << i;
    }
  }
  EXPECT_EQ(step, 10);
}

TEST(Adamw, AZeroGradientOnFreshStateMovesNothing) {
  Model model(Adamw(0.9, 0.999, 0), {3.0f});
  model.Commit({0.0f}, 1, 0.1);
  EXPECT_EQ(model.params[0], 3.0f);
}

// The first step has size lr for every gradient that is not below delta.
TEST(Agd, TheFirstStepGoesBySignOrByDelta) {
  Model model(Agd(0.25, 0), {1, 1, 1, 1, 1});
  model.Commit({8, -0.5f, 0.125f, 0.0f, -0.0625f}, 1, 0.5);
  const double expected[] = {0.5, 1.5, 0.75, 1, 1.125};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(model.params[i], expected[i], 1e-6) << i;
  }
  EXPECT_EQ(model.optimizer->branches().elements, 5);
  EXPECT_EQ(model.optimizer->branches().adaptive, 2);
}

// A constant gradient does not change after the first step. Steps grow until delta limits them, and
// then are lr |g| / delta.
TEST(Agd, AConstantGradientEndsOnThePlainBranch) {
  OptimizerConfig config = Agd(0.125, 0);
  config.beta2 = 0.9;
  Model model(config, {0});
  float before = 0;
  for (int64_t step = 1; step <= 200; ++step) {
    before = model.params[0];
    model.Commit({1.0f}, step, 0.5);
  }
  EXPECT_NEAR(before - model.params[0], 0.5 / 0.125, 1e-3);
  const BranchCounts counts = model.optimizer->branches();
  EXPECT_GT(counts.adaptive, 10);
  EXPECT_LT(counts.adaptive, 100);
}

TEST(Agd, AZeroGradientMovesNothingWhateverDelta) {
  for (const double delta : {0.0, 1e-14, 1e-5}) {
    Model model(Agd(delta, 0), {3.0f});
    for (int64_t step = 1; step <= 3; ++step) {
      model.Commit({0.0f}, step, 0.1);
    }
    EXPECT_EQ(model.params[0], 3.0f) << delta;
  }
}

// Gradients whose squares are zero in f32 still step by at most what delta allows.
TEST(Agd, TinyGradientsStayFinite) {
  Model model(Agd(1e-14, 0), {3.0f, 3.0f});
  for (int64_t step = 1; step <= 50; ++step) {
    model.Commit({1e-30f, -1e-24f}, step, 0.1);
  }
  EXPECT_NEAR(model.params[0], 3.0f, 1e-6);
  EXPECT_NEAR(model.params[1], 3.0f, 1e-6);
}

TEST(Agd, ANaNIsNotHidden) {
  for (const double clip : {0.0, 1.0}) {
    Model model(AgdWith(true, false, clip, kDecoupled), {1.0f, 1.0f});
    model.Commit({std::numeric_limits<float>::quiet_NaN(), 1.0f}, 1, 0.1);
    EXPECT_TRUE(std::isnan(model.params[0]));
    EXPECT_FALSE(std::isnan(model.params[1]));
  }
}

void ExpectRefused(const OptimizerConfig& config, const std::string& text) {
  const absl::Status status = MakeOptimizer(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(OptimizerConfig, MistakesAreRefusedByNameAndValue) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  ExpectRefused(Sgd(1, false, 0), "momentum 1 ");
  ExpectRefused(Sgd(-0.1, false, 0), "momentum -0.1 ");
  ExpectRefused(Sgd(kNaN, false, 0), "momentum nan ");
  ExpectRefused(Sgd(0, true, 0), "nesterov");
  ExpectRefused(Sgd(0.9, false, -1), "weight_decay -1 ");
  ExpectRefused(Adamw(1, 0.9, 0), "beta1 1 ");
  ExpectRefused(Adamw(0.9, 1.5, 0), "beta2 1.5 ");
  ExpectRefused(Adamw(0.9, 0.9, kNaN), "weight_decay nan ");
  OptimizerConfig config = Adamw(0.9, 0.9, 0);
  config.eps = 0;
  ExpectRefused(config, "eps 0 ");
  ExpectRefused(Agd(-1, 0), "delta -1 ");
  ExpectRefused(Agd(kNaN, 0), "delta nan ");
  ExpectRefused(Agd(1e-5, -0.1), "weight_decay -0.1 ");
  ExpectRefused(AgdWith(false, false, -5, kDecoupled), "clip -5 ");
  ExpectRefused(AgdWith(false, true, 0, kCoupled), "decay 2 has no effect with win");
  OptimizerConfig fixed = AgdWith(false, false, 0, kFixed);
  fixed.weight_decay = 1;
  ExpectRefused(fixed, "weight_decay 1 is not in [0, 1), with a fixed decay");
  fixed.beta2 = 1;
  ExpectRefused(fixed, "beta2 1 ");
  config.kind = static_cast<OptimizerKind>(7);
  ExpectRefused(config, "kind 7 ");
}

}  // namespace
}  // namespace entrain
