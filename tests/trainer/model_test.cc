// The model's gradients compared with finite differences, and the properties of a causal language
// model.
#include "examples/trainer/model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "examples/trainer/kernels.h"
#include "examples/trainer/random.h"
#include "tests/trainer/passes.h"

namespace trainer {
namespace {

Parameters Initial(const ModelConfig& config, uint64_t seed) {
  Parameters params;
  for (int l = 0; l < LayerCount(config); ++l) {
    params.emplace_back(static_cast<size_t>(LayerSize(config, l)));
    InitialiseLayer(config, l, seed, params.back().data());
  }
  return params;
}

std::vector<uint8_t> Text(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> text(count);
  for (auto& byte : text) {
    byte = static_cast<uint8_t>('a' + random.Below(26));
  }
  return text;
}

void SetText(LanguagePass* pass, const std::vector<uint8_t>& text) {
  pass->SetBatch({{text.begin(), text.end() - 1}, {text.begin() + 1, text.end()}});
}

// Returns the derivative of the loss as layer `l` moves along `direction`. Uses central differences
// of steps h and 2h, extrapolated: the error is of fourth order, so h may be large enough for f32's
// noise.
double Derivative(LanguagePass* pass, Parameters* params, size_t l,
                  const std::vector<float>& direction, double h) {
  const std::vector<float> start = (*params)[l];
  const auto at = [&](double step) {
    for (size_t i = 0; i < start.size(); ++i) {
      (*params)[l][i] = start[i] + static_cast<float>(step) * direction[i];
    }
    return Loss(pass, *params);
  };
  const double near = (at(h) - at(-h)) / (2 * h);
  const double far = (at(2 * h) - at(-2 * h)) / (4 * h);
  (*params)[l] = start;
  return (4 * near - far) / 3;
}

double Norm(const std::vector<float>& v) {
  return std::sqrt(SumOfSquares(v.data(), static_cast<int64_t>(v.size())));
}

struct Shape {
  const char* name;
  ModelConfig config;
  int rows;
};

class GradientTest : public testing::TestWithParam<Shape> {
 protected:
  GradientTest()
      : config_(GetParam().config), pass_(config_, GetParam().rows), params_(Initial(config_, 7)) {
    // The head is larger than at the start, so that all gradients are far from zero.
    for (auto& w : params_.back()) {
      w *= 4.0f;
    }
    SetText(&pass_, Text(static_cast<size_t>(GetParam().rows * config_.length) + 1, 11));
    grads_ = ZerosLike(params_);
    Loss(&pass_, params_);
    AddGradient(&pass_, params_, 1.0f, &grads_);
  }

  const ModelConfig config_;
  LanguagePass pass_;
  Parameters params_, grads_;
};

TEST_P(GradientTest, AgreesAlongItselfAndAlongRandomDirections) {
  Random random(3);
  for (size_t l = 0; l < params_.size(); ++l) {
    const double norm = Norm(grads_[l]);
    ASSERT_GT(norm, 1e-3) << "layer " << l;
    std::vector<float> direction = grads_[l];
    Scale(direction.data(), static_cast<float>(1.0 / norm), static_cast<int64_t>(direction.size()));
    EXPECT_NEAR(Derivative(&pass_, &params_, l, direction, 0.02) / norm, 1.0, 2e-3)
        << "layer " << l << " along its gradient";
    for (int sample = 0; sample < 4; ++sample) {
      double expected = 0.0;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = static_cast<float>(random.Normal());
      }
      const double length = Norm(direction);
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] /= static_cast<float>(length);
        expected += static_cast<double>(direction[i]) * static_cast<double>(grads_[l][i]);
      }
      EXPECT_NEAR(Derivative(&pass_, &params_, l, direction, 0.05), expected, 2e-3 * norm)
          << "layer " << l << ", random direction " << sample;
    }
  }
}

// Compares single coordinates of the gradient. Each agrees within 1 % of its value, or within 1 %
// of a hundredth of the layer's largest value if its own value is smaller than that.
TEST_P(GradientTest, AgreesCoordinateByCoordinate) {
  Random random(5);
  for (size_t l = 0; l < params_.size(); ++l) {
    float largest = 0.0f;
    for (const float g : grads_[l]) {
      largest = std::max(largest, std::fabs(g));
    }
    for (int sample = 0; sample < 24; ++sample) {
      const size_t i = random.Below(grads_[l].size());
      std::vector<float> direction(grads_[l].size());
      direction[i] = 1.0f;
      const double expected = static_cast<double>(grads_[l][i]);
      const double bound =
          1e-2 * std::max(std::fabs(expected), 1e-1 * static_cast<double>(largest));
      EXPECT_NEAR(Derivative(&pass_, &params_, l, direction, 0.03), expected, bound)
          << "layer " << l << ", coordinate " << i;
    }
  }
}

TEST_P(GradientTest, IsAddedAndScaled) {
  Parameters twice = grads_;
  Loss(&pass_, params_);
  AddGradient(&pass_, params_, 0.5f, &twice);
  for (size_t l = 0; l < params_.size(); ++l) {
    std::vector<float> excess = twice[l];
    for (size_t i = 0; i < excess.size(); ++i) {
      excess[i] -= 1.5f * grads_[l][i];
    }
    EXPECT_LE(Norm(excess), 1e-5 * Norm(grads_[l])) << "layer " << l;
  }
}

TEST_P(GradientTest, IsTheSameBitsTwice) {
  LanguagePass other(config_, GetParam().rows);
  SetText(&other, Text(static_cast<size_t>(GetParam().rows * config_.length) + 1, 11));
  Parameters grads = ZerosLike(params_);
  EXPECT_EQ(Loss(&other, params_), Loss(&pass_, params_));
  AddGradient(&other, params_, 1.0f, &grads);
  EXPECT_EQ(grads, grads_);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GradientTest,
    testing::Values(Shape{"short", {.hidden = 16, .layers = 2, .heads = 2, .length = 12}, 3},
                    // Longer than one strip of queries, and no multiple of it.
                    Shape{"strips", {.hidden = 12, .layers = 1, .heads = 3, .length = 150}, 1},
                    Shape{"one_head", {.hidden = 8, .layers = 1, .heads = 1, .length = 1}, 4}),
    [](const testing::TestParamInfo<Shape>& shape) { return std::string(shape.param.name); });

TEST(Model, StartsNearTheUniformGuess) {
  const ModelConfig config{.hidden = 64, .layers = 4, .heads = 4, .length = 32};
  LanguagePass pass(config, 4);
  SetText(&pass, Text(4 * 32 + 1, 1));
  EXPECT_NEAR(Loss(&pass, Initial(config, 1)), std::log(256.0), 0.1);
}

TEST(Model, DoesNotSeeTheFuture) {
  const ModelConfig config{.hidden = 16, .layers = 2, .heads = 2, .length = 90};
  const Parameters params = Initial(config, 2);
  std::vector<uint8_t> text = Text(91, 4);
  LanguagePass pass(config, 1);
  SetText(&pass, text);
  Loss(&pass, params);
  const std::vector<float> before(pass.probabilities(0), pass.probabilities(90));
  text[80] = 'Z';
  SetText(&pass, text);
  Loss(&pass, params);
  const std::vector<float> after(pass.probabilities(0), pass.probabilities(90));
  const auto difference = std::mismatch(before.begin(), before.end(), after.begin()).first;
  EXPECT_EQ((difference - before.begin()) / kVocabulary, 80);
}

TEST(Model, LearnsATextByHeart) {
  const ModelConfig config{.hidden = 32, .layers = 2, .heads = 2, .length = 24};
  Parameters params = Initial(config, 3);
  LanguagePass pass(config, 2);
  SetText(&pass, Text(49, 9));
  for (int step = 0; step < 150; ++step) {
    Loss(&pass, params);
    Parameters grads = ZerosLike(params);
    AddGradient(&pass, params, 1.0f, &grads);
    for (size_t l = 0; l < params.size(); ++l) {
      for (size_t i = 0; i < params[l].size(); ++i) {
        params[l][i] -= 0.3f * grads[l][i];
      }
    }
  }
  EXPECT_LT(Loss(&pass, params), 0.3);
}

TEST(Model, LayersAreUneven) {
  const ModelConfig config{.hidden = 64, .layers = 3, .heads = 4, .length = 32};
  EXPECT_EQ(LayerCount(config), 5);
  EXPECT_EQ(LayerSize(config, 0), 256 * 64);
  EXPECT_EQ(LayerSize(config, 1), 2 * 64 + 4 * 64 * 64 + 3 * 64 * 176);
  EXPECT_EQ(LayerSize(config, 4), 64 + 256 * 64);
}

}  // namespace
}  // namespace trainer
