// optim.h through the C ABI. tests/optim tests the steps themselves.
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

TEST(Optim, AnSgdStepIsTheFormula) {
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  config.momentum = 0.5;
  entrain_optim_t* optim = nullptr;
  ASSERT_OK(entrain_optim_create(&config, &optim));
  int32_t arrays = 0;
  ASSERT_OK(entrain_optim_state_arrays(optim, &arrays));
  ASSERT_EQ(arrays, 1);
  float params[2] = {1, 2}, grads[2] = {4, 8}, momentum[2] = {0, 0};
  void* state[1] = {momentum};
  ASSERT_OK(entrain_optim_step(optim, params, grads, state, 2, ENTRAIN_F32, 1, 0.25));
  EXPECT_EQ(params[0], 0.0f);
  EXPECT_EQ(params[1], 0.0f);
  ASSERT_OK(entrain_optim_step(optim, params, grads, state, 2, ENTRAIN_F32, 2, 0.25));
  EXPECT_EQ(momentum[1], 12.0f);  // 0.5 * 8 + 8
  EXPECT_EQ(params[1], -3.0f);
  entrain_optim_destroy(optim);
}

TEST(Optim, APreviewIsTheStepWithoutItsEffects) {
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  config.kind = ENTRAIN_OPTIM_ADAMW;
  config.weight_decay = 0.1;
  entrain_optim_t* optim = nullptr;
  ASSERT_OK(entrain_optim_create(&config, &optim));
  std::vector<float> params(101), grads(101), m(101), v(101), out(101);
  for (size_t i = 0; i < params.size(); ++i) {
    params[i] = std::sin(static_cast<float>(i));
    grads[i] = std::cos(static_cast<float>(i));
  }
  void* state[2] = {m.data(), v.data()};
  const void* seen[2] = {m.data(), v.data()};
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<float> params_before = params, m_before = m, v_before = v;
    ASSERT_OK(entrain_optim_preview(optim, params.data(), grads.data(), seen, out.data(),
                                    out.size(), ENTRAIN_F32, step, 0.01));
    EXPECT_EQ(params, params_before);
    EXPECT_EQ(m, m_before);
    EXPECT_EQ(v, v_before);
    ASSERT_OK(entrain_optim_step(optim, params.data(), grads.data(), state, params.size(),
                                 ENTRAIN_F32, step, 0.01));
    EXPECT_EQ(out, params);
    EXPECT_NE(params, params_before);
  }
  entrain_optim_destroy(optim);
}

TEST(Optim, AgdCountsWhatItsCommitsDoOnEitherBranch) {
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  config.kind = ENTRAIN_OPTIM_AGD;
  config.delta = 0.25;
  config.amsgrad = 1;
  config.win = 1;
  entrain_optim_t* optim = nullptr;
  ASSERT_OK(entrain_optim_create(&config, &optim));
  int32_t arrays = 0;
  ASSERT_OK(entrain_optim_state_arrays(optim, &arrays));
  ASSERT_EQ(arrays, 4);
  float params[3] = {1, 2, 3}, grads[3] = {1, 0.125f, -1}, out[3] = {};
  float m[3] = {}, b[3] = {}, largest[3] = {}, z[3] = {};
  void* state[4] = {m, b, largest, z};
  const void* seen[4] = {m, b, largest, z};
  ASSERT_OK(entrain_optim_preview(optim, params, grads, seen, out, 3, ENTRAIN_F32, 1, 0.5));
  entrain_optim_info_t info;
  entrain_optim_info_init(&info);
  ASSERT_OK(entrain_optim_info(optim, &info));
  EXPECT_EQ(info.elements, 0u);
  EXPECT_EQ(info.adaptive, 0u);
  ASSERT_OK(entrain_optim_step(optim, params, grads, state, 3, ENTRAIN_F32, 1, 0.5));
  ASSERT_OK(entrain_optim_info(optim, &info));
  EXPECT_EQ(info.elements, 3u);
  EXPECT_EQ(info.adaptive, 2u);
  // z = p - 0.5, p = (p + 2 z - 2 * 0.5 * u) / 3.
  EXPECT_NEAR(params[0], 1 - 2.0 / 3, 1e-6);
  EXPECT_NEAR(z[0], 0.5, 1e-6);
  EXPECT_EQ(params[0], out[0]);
  EXPECT_FAILS(entrain_optim_info(nullptr, &info), ENTRAIN_INVALID_ARGUMENT, "optim is NULL");
  entrain_optim_destroy(optim);
}

TEST(Optim, BadHyperParametersAndArraysAreNamed) {
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  entrain_optim_t* optim = nullptr;
  config.momentum = 1.5;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "momentum");
  config.momentum = 0.5;
  config.kind = 9;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "kind 9");
  config.kind = ENTRAIN_OPTIM_SGD;
  config.nesterov = 2;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "nesterov 2");
  config.nesterov = 0;
  config.kind = ENTRAIN_OPTIM_AGD;
  config.delta = -1;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "delta -1");
  config.delta = 1e-5;
  config.decay = 3;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "decay 3");
  config.decay = ENTRAIN_DECAY_FIXED;
  config.win = 1;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "win");
  config.win = -1;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "win -1");
  config.win = 0;
  config.amsgrad = 5;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "amsgrad 5");
  config.amsgrad = 0;
  config.memory = ENTRAIN_MEMORY_HOST_PINNED;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "memory 2");
  config.memory = ENTRAIN_MEMORY_HOST;
  config.stream = &config;
  EXPECT_FAILS(entrain_optim_create(&config, &optim), ENTRAIN_INVALID_ARGUMENT, "stream");
  config.stream = nullptr;
  config.kind = ENTRAIN_OPTIM_SGD;
  ASSERT_OK(entrain_optim_create(&config, &optim));
  float params[4] = {}, grads[4] = {}, momentum[4] = {};
  void* state[1] = {momentum};
  void* missing[1] = {nullptr};
  void* same[1] = {params + 1};
  const auto step = [&](void* const* with, int64_t number, double lr) {
    return entrain_optim_step(optim, params, grads, with, 3, ENTRAIN_F32, number, lr);
  };
  EXPECT_FAILS(step(nullptr, 1, 0.1), ENTRAIN_INVALID_ARGUMENT, "state is NULL");
  EXPECT_FAILS(step(missing, 1, 0.1), ENTRAIN_INVALID_ARGUMENT, "state[0] is NULL");
  EXPECT_FAILS(step(same, 1, 0.1), ENTRAIN_INVALID_ARGUMENT, "overlap");
  EXPECT_FAILS(step(state, 0, 0.1), ENTRAIN_INVALID_ARGUMENT, "step 0");
  EXPECT_FAILS(step(state, 1, NAN), ENTRAIN_INVALID_ARGUMENT, "lr nan");
  EXPECT_FAILS(entrain_optim_step(optim, nullptr, grads, state, 3, ENTRAIN_F32, 1, 0.1),
               ENTRAIN_INVALID_ARGUMENT, "params is NULL");
  EXPECT_FAILS(entrain_optim_step(optim, params, grads, state, 3, ENTRAIN_BF16, 1, 0.1),
               ENTRAIN_UNIMPLEMENTED, "dtype bf16: optimizers step arrays of f32");
  const void* seen[1] = {momentum};
  float out[4] = {};
  EXPECT_FAILS(entrain_optim_preview(optim, params, grads, seen, out, 3, ENTRAIN_F64, 1, 0.1),
               ENTRAIN_UNIMPLEMENTED, "dtype f64: optimizers step arrays of f32");
  EXPECT_FAILS(entrain_optim_step(optim, params, grads, state, 3, 99, 1, 0.1),
               ENTRAIN_INVALID_ARGUMENT, "dtype 99");
  EXPECT_OK(step(state, 1, 0.1));
  entrain_optim_destroy(optim);
}

}  // namespace
}  // namespace entrain_test
