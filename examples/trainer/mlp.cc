#include "examples/trainer/mlp.h"

#include <algorithm>
#include <cmath>

#include "examples/trainer/kernels.h"
#include "examples/trainer/random.h"

namespace trainer {

void InitialiseLayer(const MlpConfig& config, int layer, uint64_t seed, float* params) {
  Random random(Mix(seed, static_cast<uint64_t>(layer)));
  const int64_t matrix = static_cast<int64_t>(config.inputs(layer)) * config.outputs(layer);
  const double deviation =
      std::sqrt(2.0 / config.inputs(layer)) / (layer == config.layers ? 10 : 1);
  for (int64_t i = 0; i < matrix; ++i) {
    params[i] = static_cast<float>(deviation * random.Normal());
  }
  std::fill(params + matrix, params + config.layer_size(layer), 0.0f);
}

MlpPass::MlpPass(const MlpConfig& config, int rows) : config_(config) {
  const auto n = static_cast<size_t>(rows);
  for (int layer = 0; layer <= config.layers; ++layer) {
    activations_.emplace_back(n * static_cast<size_t>(config.inputs(layer)));
    sums_.emplace_back(n * static_cast<size_t>(config.outputs(layer)));
  }
  gradient_.resize(n * static_cast<size_t>(std::max(config.hidden, kDigits)));
  next_gradient_.resize(gradient_.size());
}

void MlpPass::SetBatch(const Batch& batch) {
  rows_ = static_cast<int>(batch.targets.size());
  targets_ = batch.targets;
  std::transform(batch.inputs.begin(), batch.inputs.end(), activations_[0].begin(),
                 [](uint8_t pixel) { return static_cast<float>(pixel) / kDarkest; });
}

void MlpPass::Forward(int layer, const float* params) {
  const auto l = static_cast<size_t>(layer);
  const int in = config_.inputs(layer);
  const int out = config_.outputs(layer);
  const float* const bias = params + static_cast<int64_t>(in) * out;
  float* const sums = sums_[l].data();
  for (int r = 0; r < rows_; ++r) {
    std::copy_n(bias, out, sums + static_cast<int64_t>(r) * out);
  }
  Product(activations_[l].data(), params, sums, rows_, in, out, 1.0f);
  if (layer < config_.layers) {
    Gelu(sums, activations_[l + 1].data(), static_cast<int64_t>(rows_) * out);
  } else {
    loss_ = CrossEntropy(sums, targets_.data(), rows_, out) / rows_;
  }
}

int64_t MlpPass::hits() const {
  return CountHits(sums_.back().data(), targets_.data(), rows_, kDigits);
}

void MlpPass::Backward(int layer, const float* params, float scale, float* grads) {
  const auto l = static_cast<size_t>(layer);
  const int in = config_.inputs(layer);
  const int out = config_.outputs(layer);
  const int64_t count = static_cast<int64_t>(rows_) * out;
  float* dsums = gradient_.data();
  if (layer < config_.layers) {
    GeluBackward(dsums, sums_[l].data(), count);
  } else {
    dsums = sums_[l].data();
    CrossEntropyBackward(dsums, targets_.data(), rows_, out, scale / static_cast<float>(rows_));
  }
  ProductWeightGradient(dsums, activations_[l].data(), grads, rows_, in, out);
  float* const dbias = grads + static_cast<int64_t>(in) * out;
  for (int r = 0; r < rows_; ++r) {
    Add(dbias, dsums + static_cast<int64_t>(r) * out, out);
  }
  if (layer > 0) {
    ProductInputGradient(dsums, params, next_gradient_.data(), rows_, in, out);
    gradient_.swap(next_gradient_);
  }
}

}  // namespace trainer
