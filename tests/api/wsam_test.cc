// WSAM through the C ABI: a run as its header describes it, and mistakes. tests/optim tests the
// steps themselves.
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

using Floats = std::vector<float>;

class WsamApi : public testing::Test {
 protected:
  void SetUp() override {
    entrain_optim_config_init(&optim_config_);
    entrain_optim_config_init(&config_);
    config_.kind = ENTRAIN_OPTIM_WSAM;
  }
  void TearDown() override {
    entrain_optim_destroy(wsam_);
    entrain_optim_destroy(optim_);
  }
  void Create() {
    ASSERT_OK(entrain_optim_create(&optim_config_, &optim_));
    config_.base = optim_;
    ASSERT_OK(entrain_optim_create(&config_, &wsam_));
  }
  entrain_optim_config_t optim_config_;
  entrain_optim_config_t config_;
  entrain_optim_t* optim_ = nullptr;
  entrain_optim_t* wsam_ = nullptr;
};

// f(x) = sum of c x^2 / 2 with curvatures 1 and 3.
Floats Gradient(const Floats& x) {
  return {x[0], 3 * x[1]};
}

TEST_F(WsamApi, AStepIsWhatTheHeaderSays) {
  config_.rho = 0.5;
  config_.gamma = 0.75;  // alpha 3
  Create();
  entrain_optim_destroy(optim_);  // wsam_ still holds it
  optim_ = nullptr;
  Floats x = {3, 4.0f / 3}, saved(2), out(2);
  const Floats g = Gradient(x);  // 3, 4: norm 5
  double sum = 0;
  ASSERT_OK(entrain_wsam_ascent_sum(wsam_, x.data(), g.data(), 2, ENTRAIN_F32, &sum));
  EXPECT_DOUBLE_EQ(sum, 25);
  ASSERT_OK(entrain_wsam_ascend(wsam_, x.data(), saved.data(), g.data(), 2, ENTRAIN_F32, sum));
  EXPECT_NEAR(x[0], 3.3, 1e-6);
  EXPECT_NEAR(x[1], 4.0 / 3 + 0.4, 1e-6);
  const Floats g2 = Gradient(x);
  ASSERT_OK(entrain_wsam_return(wsam_, x.data(), saved.data(), 2, ENTRAIN_F32));
  EXPECT_EQ(x, saved);
  ASSERT_OK(entrain_wsam_preview(wsam_, x.data(), g.data(), g2.data(), nullptr, nullptr, out.data(),
                                 2, ENTRAIN_F32, 1, 0.1));
  EXPECT_EQ(x, saved);
  ASSERT_OK(entrain_wsam_step(wsam_, x.data(), g.data(), g2.data(), nullptr, nullptr, 2,
                              ENTRAIN_F32, 1, 0.1));
  EXPECT_EQ(x, out);
  EXPECT_NEAR(x[0], 3 - 0.1 * 3 - 0.1 * 3 * 0.3, 1e-6);
  EXPECT_NEAR(x[1], 4.0 / 3 - 0.1 * 4 - 0.1 * 3 * 1.2, 1e-6);
}

TEST_F(WsamApi, BothGradientsAreClippedByTheSumsThatAreGiven) {
  config_.max_norm = 1;
  config_.gamma = 0.5;
  config_.decouple = 0;
  config_.adaptive = 1;
  Create();
  Floats x = {1, 2}, g = {3, 4}, g2 = {0, 10};
  double sum = 0;
  ASSERT_OK(entrain_wsam_ascent_sum(wsam_, x.data(), g.data(), 2, ENTRAIN_F32, &sum));
  EXPECT_DOUBLE_EQ(sum, 9 + 64);
  const double sums[2] = {25, 100};
  ASSERT_OK(entrain_wsam_step(wsam_, x.data(), g.data(), g2.data(), sums, nullptr, 2, ENTRAIN_F32,
                              1, 0.5));
  EXPECT_NEAR(x[0], 1, 1e-6);
  EXPECT_NEAR(x[1], 2 - 0.5, 1e-6);
  const auto step = [&](const double* with) {
    return entrain_wsam_step(wsam_, x.data(), g.data(), g2.data(), with, nullptr, 2, ENTRAIN_F32, 1,
                             0.5);
  };
  const double negative[2] = {25, -1};
  const double infinite[2] = {std::numeric_limits<double>::infinity(), 1};
  EXPECT_FAILS(step(nullptr), ENTRAIN_INVALID_ARGUMENT, "sums is NULL");
  EXPECT_FAILS(step(negative), ENTRAIN_INVALID_ARGUMENT, "sums[1] -1");
  EXPECT_FAILS(step(infinite), ENTRAIN_INVALID_ARGUMENT, "sums[0] inf");
  EXPECT_FAILS(entrain_wsam_combine(wsam_, g.data(), g2.data(), g.data(), 2, ENTRAIN_F32),
               ENTRAIN_FAILED_PRECONDITION, "max_norm");
}

TEST_F(WsamApi, CombineIsTheCoupledGradientInPlaceOfEither) {
  config_.decouple = 0;
  Create();
  for (const int place : {0, 1, 2}) {
    Floats g = {1, 2}, g2 = {1.5f, 2}, other(2);
    Floats& out = place == 0 ? g : place == 1 ? g2 : other;
    ASSERT_OK(entrain_wsam_combine(wsam_, g.data(), g2.data(), out.data(), 2, ENTRAIN_F32));
    EXPECT_NEAR(out[0], 9 * 1.5 - 8, 1e-5);
    EXPECT_EQ(out[1], 2.0f);
  }
  Floats g = {1, 2, 3}, g2 = {1, 2};
  EXPECT_FAILS(entrain_wsam_combine(wsam_, g.data(), g2.data(), g.data() + 1, 2, ENTRAIN_F32),
               ENTRAIN_INVALID_ARGUMENT, "overlap");
}

// Each kind of step refuses the other kind of optimizer.
TEST_F(WsamApi, AnOptimizerOfAnotherKindIsRefused) {
  Create();
  Floats x = {1, 2}, g = {3, 4}, saved(2);
  EXPECT_FAILS(entrain_optim_step(wsam_, x.data(), g.data(), nullptr, 2, ENTRAIN_F32, 1, 0.1),
               ENTRAIN_INVALID_ARGUMENT, "optim is WSAM, whose step needs two gradients");
  EXPECT_FAILS(entrain_wsam_return(optim_, x.data(), saved.data(), 2, ENTRAIN_F32),
               ENTRAIN_INVALID_ARGUMENT, "wsam is an optimizer of another kind");
  EXPECT_EQ(x, (Floats{1, 2}));
  entrain_optim_t* around = nullptr;
  config_.base = wsam_;
  EXPECT_FAILS(entrain_optim_create(&config_, &around), ENTRAIN_INVALID_ARGUMENT, "base is WSAM");
  int32_t arrays = -1;
  EXPECT_OK(entrain_optim_state_arrays(wsam_, &arrays));
  EXPECT_EQ(arrays, 0);  // those of its base
  RunWorld(1, [&](const Rank& self) {
    entrain_acco_config_t acco_config;
    entrain_acco_config_init(&acco_config);
    acco_config.params = x.data();
    acco_config.count = x.size();
    acco_config.optim = wsam_;
    entrain_acco_t* acco = nullptr;
    EXPECT_FAILS(entrain_acco_create(self.comm, &acco_config, &acco), ENTRAIN_INVALID_ARGUMENT,
                 "config.optim is WSAM");
  });
}

TEST_F(WsamApi, MistakesAreNamed) {
  EXPECT_FAILS(entrain_optim_create(&config_, &wsam_), ENTRAIN_INVALID_ARGUMENT, "base is NULL");
  ASSERT_OK(entrain_optim_create(&optim_config_, &optim_));
  config_.base = optim_;
  config_.gamma = 1;
  EXPECT_FAILS(entrain_optim_create(&config_, &wsam_), ENTRAIN_INVALID_ARGUMENT, "gamma 1");
  config_.gamma = 0.9;
  config_.rho = NAN;
  EXPECT_FAILS(entrain_optim_create(&config_, &wsam_), ENTRAIN_INVALID_ARGUMENT, "rho nan");
  config_.rho = 0.05;
  config_.decouple = 2;
  EXPECT_FAILS(entrain_optim_create(&config_, &wsam_), ENTRAIN_INVALID_ARGUMENT, "decouple 2");
  config_.decouple = 1;
  config_.adaptive = -1;
  EXPECT_FAILS(entrain_optim_create(&config_, &wsam_), ENTRAIN_INVALID_ARGUMENT, "adaptive -1");
  config_.adaptive = 0;
  ASSERT_OK(entrain_optim_create(&config_, &wsam_));
  Floats x(2), g(2), g2(2), saved(2);
  const auto ascend = [&](float* params, float* to, entrain_dtype_t dtype, double sum) {
    return entrain_wsam_ascend(wsam_, params, to, g.data(), 2, dtype, sum);
  };
  EXPECT_FAILS(ascend(nullptr, saved.data(), ENTRAIN_F32, 1), ENTRAIN_INVALID_ARGUMENT, "params");
  EXPECT_FAILS(ascend(x.data(), x.data(), ENTRAIN_F32, 1), ENTRAIN_INVALID_ARGUMENT, "overlap");
  EXPECT_FAILS(ascend(x.data(), saved.data(), ENTRAIN_F32, NAN), ENTRAIN_INVALID_ARGUMENT,
               "sum nan is not a finite number");
  EXPECT_FAILS(ascend(x.data(), saved.data(), ENTRAIN_F32, -1), ENTRAIN_INVALID_ARGUMENT, "sum -1");
  EXPECT_FAILS(ascend(x.data(), saved.data(), ENTRAIN_BF16, 1), ENTRAIN_UNIMPLEMENTED, "bf16");
  EXPECT_FAILS(entrain_wsam_return(wsam_, x.data(), nullptr, 2, ENTRAIN_F32),
               ENTRAIN_INVALID_ARGUMENT, "saved is NULL");
  EXPECT_FAILS(entrain_wsam_step(wsam_, x.data(), g.data(), nullptr, nullptr, nullptr, 2,
                                 ENTRAIN_F32, 1, 0.1),
               ENTRAIN_INVALID_ARGUMENT, "second is NULL");
  EXPECT_FAILS(entrain_wsam_step(wsam_, x.data(), g.data(), g.data(), nullptr, nullptr, 2,
                                 ENTRAIN_F32, 1, 0.1),
               ENTRAIN_INVALID_ARGUMENT, "overlap");
  EXPECT_FAILS(entrain_wsam_step(wsam_, x.data(), g.data(), g2.data(), nullptr, nullptr, 2,
                                 ENTRAIN_F32, 0, 0.1),
               ENTRAIN_INVALID_ARGUMENT, "step 0");
  EXPECT_FAILS(entrain_wsam_combine(wsam_, g.data(), g2.data(), saved.data(), 2, ENTRAIN_F32),
               ENTRAIN_FAILED_PRECONDITION, "decouple");
  EXPECT_FAILS(entrain_wsam_ascent_sum(nullptr, x.data(), g.data(), 2, ENTRAIN_F32, nullptr),
               ENTRAIN_INVALID_ARGUMENT, "wsam is NULL");
  EXPECT_OK(entrain_wsam_ascend(wsam_, nullptr, nullptr, nullptr, 0, ENTRAIN_F32, 0));
}

}  // namespace
}  // namespace entrain_test
