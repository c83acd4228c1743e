// A task whose loss is known in closed form: batch k has the loss sum_i a_ki w_i^2 / 2.
#include "examples/trainer/loss_rise.h"

#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace trainer {
namespace {

constexpr int kBatches = 5;

class Bowl final : public Pass {
 public:
  void SetBatch(const Batch& batch) override { number_ = batch.inputs[0]; }
  void Forward(int layer, const float* params) override {
    loss_ = layer == 0 ? 0.0 : loss_;
    for (int i = 0; i < 2; ++i) {
      loss_ +=
          Curvature(layer, i) / 2 * static_cast<double>(params[i]) * static_cast<double>(params[i]);
    }
  }
  void Backward(int layer, const float* params, float scale, float* grads) override {
    for (int i = 0; i < 2; ++i) {
      grads[i] += scale * static_cast<float>(Curvature(layer, i)) * params[i];
    }
  }
  double loss() const override { return loss_; }
  int64_t hits() const override { return 0; }

 private:
  double Curvature(int layer, int i) const { return 1.0 + 2 * layer + i + number_; }

  int number_ = 0;
  double loss_ = 0.0;
};

class BowlTask final : public Task {
 public:
  int layers() const override { return 2; }
  int64_t layer_size(int) const override { return 2; }
  void InitialiseLayer(int, float*) const override {}
  std::unique_ptr<Pass> NewPass() const override { return std::make_unique<Bowl>(); }
  void DrawTraining(int rank, int /*replica*/, int64_t draw, Batch* batch) const override {
    ++drawn[{rank, draw}];
    batch->inputs = {static_cast<uint8_t>(draw)};
    batch->targets = {0};
  }
  int64_t validation_batches() const override { return kBatches; }
  void TakeValidation(int64_t, Batch*) const override { ADD_FAILURE() << "validation is read"; }
  const char* unit() const override { return "bowl"; }
  double Entropy() const override { return 0.0; }
  std::string Sample(const std::vector<std::vector<float>>&) const override { return ""; }

  mutable std::map<std::pair<int, int64_t>, int> drawn;
};

const std::vector<std::vector<float>> kPlace = {{0.5f, -1.0f}, {2.0f, 0.25f}};

// The mean over the batches 0 .. 4 has the curvatures 1 + 2 l + i + 2.
std::vector<double> Expected(const std::vector<double>& rhos) {
  double slope = 0.0, bend = 0.0;  // of the loss along the unit gradient
  for (int l = 0; l < 2; ++l) {
    for (int i = 0; i < 2; ++i) {
      const double g = (3.0 + 2 * l + i) * static_cast<double>(kPlace[l][i]);
      slope += g * g;
      bend += (3.0 + 2 * l + i) * g * g;
    }
  }
  std::vector<double> rises;
  for (const double rho : rhos) {
    rises.push_back(rho * std::sqrt(slope) + rho * rho / 2 * bend / slope);
  }
  return rises;
}

TEST(LossRises, AreThoseOfAQuadratic) {
  const std::vector<double> rhos = {0.01, 0.5, 3.0};
  const BowlTask task;
  const auto pass = task.NewPass();
  const auto alone = [](double*, int) {};
  const std::vector<double> rises = LossRises(rhos, task, {0, 1, alone}, pass.get(), kPlace);
  const std::vector<double> expected = Expected(rhos);
  ASSERT_EQ(rises.size(), 3u);
  for (size_t n = 0; n < rhos.size(); ++n) {
    EXPECT_NEAR(rises[n], expected[n], 1e-5 * expected[n]);
  }
  // The batches are those that no rank trains on at this number. Each is drawn once for the loss
  // here and once per rho.
  ASSERT_EQ(task.drawn.size(), static_cast<size_t>(kBatches));
  for (const auto& [key, times] : task.drawn) {
    EXPECT_LT(key.first, 0);
    EXPECT_EQ(times, 4);
  }
}

TEST(LossRises, AreZeroWhereTheGradientIs) {
  const BowlTask task;
  const auto pass = task.NewPass();
  const auto alone = [](double*, int) {};
  EXPECT_EQ(LossRises({0.1}, task, {0, 1, alone}, pass.get(), {{0, 0}, {0, 0}}),
            std::vector<double>{0.0});
}

}  // namespace
}  // namespace trainer
