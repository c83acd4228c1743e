// The digits' network, compared with the same network in double: its loss, and its gradients, which
// are compared with central differences of the loss.
#include "examples/trainer/mlp.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "examples/trainer/random.h"
#include "tests/trainer/passes.h"

namespace trainer {
namespace {

Parameters Initial(const MlpConfig& config, uint64_t seed) {
  Parameters params;
  for (int l = 0; l <= config.layers; ++l) {
    params.emplace_back(static_cast<size_t>(config.layer_size(l)));
    InitialiseLayer(config, l, seed, params.back().data());
  }
  return params;
}

// Returns starting parameters with biases and a head that are not negligible.
Parameters Rough(const MlpConfig& config, uint64_t seed) {
  Parameters params = Initial(config, seed);
  Random random(seed);
  for (std::vector<float>& layer : params) {
    for (float& w : layer) {
      w += static_cast<float>(0.3 * random.Normal());
    }
  }
  return params;
}

Batch Images(int count, uint64_t seed) {
  Random random(seed);
  Batch batch;
  for (int i = 0; i < count * kPixels; ++i) {
    batch.inputs.push_back(static_cast<uint8_t>(random.Below(kDarkest + 1)));
  }
  for (int i = 0; i < count; ++i) {
    batch.targets.push_back(static_cast<uint8_t>(random.Below(kDigits)));
  }
  return batch;
}

struct Judged {
  double loss = 0.0;
  int64_t hits = 0;
};

// Computes one image after the other by the formulas of the header. `params` are in double.
Judged Reference(const MlpConfig& config, const std::vector<std::vector<double>>& params,
                 const Batch& batch) {
  Judged judged;
  for (size_t image = 0; image < batch.targets.size(); ++image) {
    std::vector<double> x(kPixels);
    for (size_t i = 0; i < kPixels; ++i) {
      x[i] = batch.inputs[image * kPixels + i] / 16.0;
    }
    for (int layer = 0; layer <= config.layers; ++layer) {
      const std::vector<double>& w = params[static_cast<size_t>(layer)];
      const auto out = static_cast<size_t>(config.outputs(layer));
      std::vector<double> y(w.end() - static_cast<std::ptrdiff_t>(out), w.end());
      for (size_t o = 0; o < out; ++o) {
        for (size_t i = 0; i < x.size(); ++i) {
          y[o] += w[o * x.size() + i] * x[i];
        }
        if (layer < config.layers) {
          const double inner = std::sqrt(2.0 / M_PI) * (y[o] + 0.044715 * y[o] * y[o] * y[o]);
          y[o] *= 0.5 * (1.0 + std::tanh(inner));
        }
      }
      x = y;
    }
    double sum = 0.0;
    for (const double logit : x) {
      sum += std::exp(logit);
    }
    judged.loss +=
        (std::log(sum) - x[batch.targets[image]]) / static_cast<double>(batch.targets.size());
    judged.hits += std::max_element(x.begin(), x.end()) - x.begin() == batch.targets[image];
  }
  return judged;
}

std::vector<std::vector<double>> Widened(const Parameters& params) {
  std::vector<std::vector<double>> wide;
  for (const auto& layer : params) {
    wide.emplace_back(layer.begin(), layer.end());
  }
  return wide;
}

class MlpTest : public testing::TestWithParam<MlpConfig> {
 protected:
  MlpTest() : params_(Rough(config_, 7)), batch_(Images(5, 3)), pass_(config_, 5) {
    pass_.SetBatch(batch_);
  }

  const MlpConfig config_ = GetParam();
  const Parameters params_;
  const Batch batch_;
  MlpPass pass_;
};

TEST_P(MlpTest, LossAndHitsAreThoseOfTheFormulas) {
  const Judged expected = Reference(config_, Widened(params_), batch_);
  EXPECT_NEAR(Loss(&pass_, params_), expected.loss, 1e-5 * expected.loss);
  EXPECT_EQ(pass_.hits(), expected.hits);
}

TEST_P(MlpTest, GradientsAreCentralDifferencesInEveryCoordinate) {
  Parameters grads = ZerosLike(params_);
  Loss(&pass_, params_);
  AddGradient(&pass_, params_, 1.0f, &grads);
  auto wide = Widened(params_);
  constexpr double kStep = 1e-5;
  for (size_t l = 0; l < wide.size(); ++l) {
    double largest = 0.0;
    for (const float g : grads[l]) {
      largest = std::max(largest, std::fabs(static_cast<double>(g)));
    }
    ASSERT_GT(largest, 1e-3) << "layer " << l;
    for (size_t i = 0; i < wide[l].size(); ++i) {
      const double start = wide[l][i];
      wide[l][i] = start + kStep;
      const double above = Reference(config_, wide, batch_).loss;
      wide[l][i] = start - kStep;
      const double below = Reference(config_, wide, batch_).loss;
      wide[l][i] = start;
      ASSERT_NEAR(static_cast<double>(grads[l][i]), (above - below) / (2 * kStep), 1e-5 * largest)
          << "layer " << l << ", coordinate " << i;
    }
  }
}

TEST_P(MlpTest, GradientsAreAddedAndScaledAndTheSameBitsTwice) {
  Parameters once = ZerosLike(params_);
  Loss(&pass_, params_);
  AddGradient(&pass_, params_, 1.0f, &once);
  MlpPass other(config_, 9);
  other.SetBatch(batch_);
  Parameters again = ZerosLike(params_);
  Loss(&other, params_);
  AddGradient(&other, params_, 1.0f, &again);
  EXPECT_EQ(once, again);
  Loss(&other, params_);
  AddGradient(&other, params_, 0.5f, &again);
  for (size_t l = 0; l < once.size(); ++l) {
    for (size_t i = 0; i < once[l].size(); ++i) {
      ASSERT_NEAR(again[l][i], 1.5f * once[l][i], 1e-6f) << "layer " << l << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlpTest,
                         testing::Values(MlpConfig{.hidden = 6, .layers = 1},
                                         MlpConfig{.hidden = 12, .layers = 3}),
                         [](const testing::TestParamInfo<MlpConfig>& config) {
                           return "layers" + std::to_string(config.param.layers);
                         });

TEST(Mlp, ABatchMayBeSmallerThanTheLargest) {
  const MlpConfig config{.hidden = 8, .layers = 2};
  const Parameters params = Rough(config, 2);
  MlpPass pass(config, 8);
  pass.SetBatch(Images(8, 1));
  Loss(&pass, params);
  const Batch three = Images(3, 9);
  pass.SetBatch(three);
  EXPECT_NEAR(Loss(&pass, params), Reference(config, Widened(params), three).loss, 1e-5);
}

TEST(Mlp, StartsNearTheUniformGuess) {
  const MlpConfig config;
  MlpPass pass(config, 50);
  pass.SetBatch(Images(50, 4));
  EXPECT_NEAR(Loss(&pass, Initial(config, 1)), std::log(10.0), 0.2);
}

TEST(Mlp, LayersAreMatricesAndBiases) {
  const MlpConfig config{.hidden = 32, .layers = 2};
  EXPECT_EQ(config.layer_size(0), 64 * 32 + 32);
  EXPECT_EQ(config.layer_size(1), 32 * 32 + 32);
  EXPECT_EQ(config.layer_size(2), 32 * 10 + 10);
}

}  // namespace
}  // namespace trainer
