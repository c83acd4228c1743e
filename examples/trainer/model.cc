#include "examples/trainer/model.h"

#include <algorithm>
#include <cmath>

#include "examples/trainer/kernels.h"
#include "examples/trainer/random.h"

namespace trainer {
namespace {

BlockShape ShapeOf(const ModelConfig& config, int rows) {
  return {.rows = rows,
          .length = config.length,
          .hidden = config.hidden,
          .heads = config.heads,
          .feed_forward = config.feed_forward()};
}

void FillNormal(Random* random, double deviation, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(deviation * random->Normal());
  }
}

void InitialiseBlock(const ModelConfig& config, Random* random, float* params) {
  const BlockLayout at(ShapeOf(config, 1));
  const double by_hidden = 1.0 / std::sqrt(config.hidden);
  const double by_feed_forward = 1.0 / std::sqrt(config.feed_forward());
  const double residual = 1.0 / std::sqrt(2.0 * config.layers);
  std::fill(params + at.norm1, params + at.qkv, 1.0f);
  FillNormal(random, by_hidden, params + at.qkv, at.output - at.qkv);
  FillNormal(random, by_hidden * residual, params + at.output, at.norm2 - at.output);
  std::fill(params + at.norm2, params + at.gate_up, 1.0f);
  FillNormal(random, by_hidden, params + at.gate_up, at.down - at.gate_up);
  FillNormal(random, by_feed_forward * residual, params + at.down, at.end - at.down);
}

}  // namespace

int LayerCount(const ModelConfig& config) {
  return config.layers + 2;
}

int64_t LayerSize(const ModelConfig& config, int layer) {
  const int64_t table = static_cast<int64_t>(kVocabulary) * config.hidden;
  if (layer == 0) {
    return table;
  }
  return layer <= config.layers ? ShapeOf(config, 1).parameters() : config.hidden + table;
}

void InitialiseLayer(const ModelConfig& config, int layer, uint64_t seed, float* params) {
  Random random(Mix(seed, static_cast<uint64_t>(layer)));
  const int64_t size = LayerSize(config, layer);
  if (layer == 0) {
    FillNormal(&random, 1.0 / std::sqrt(config.hidden), params, size);
  } else if (layer <= config.layers) {
    InitialiseBlock(config, &random, params);
  } else {
    std::fill(params, params + config.hidden, 1.0f);
    // The head is small, so that the first predictions are nearly uniform.
    FillNormal(&random, 0.1 / std::sqrt(config.hidden), params + config.hidden,
               size - config.hidden);
  }
}

LanguagePass::LanguagePass(const ModelConfig& config, int rows)
    : config_(config), shape_(ShapeOf(config, rows)), rotary_(shape_), scratch_(shape_) {
  const auto tokens = static_cast<size_t>(shape_.tokens());
  const size_t stream = tokens * static_cast<size_t>(config.hidden);
  streams_.assign(static_cast<size_t>(config.layers) + 1, std::vector<float>(stream));
  blocks_.assign(static_cast<size_t>(config.layers), BlockState(shape_));
  normed_.resize(stream);
  inverse_rms_.resize(tokens);
  probabilities_.resize(tokens * kVocabulary);
  dstream_.resize(stream);
}

void LanguagePass::Forward(int layer, const float* params) {
  if (layer == 0) {
    ForwardEmbedding(params);
  } else if (layer <= config_.layers) {
    const auto l = static_cast<size_t>(layer);
    BlockForward(shape_, rotary_, params, streams_[l - 1].data(), streams_[l].data(),
                 &blocks_[l - 1]);
  } else {
    ForwardHead(params);
  }
}

void LanguagePass::Backward(int layer, const float* params, float scale, float* grads) {
  if (layer == 0) {
    BackwardEmbedding(grads);
  } else if (layer <= config_.layers) {
    const auto l = static_cast<size_t>(layer);
    BlockBackward(shape_, rotary_, params, streams_[l - 1].data(), blocks_[l - 1], &scratch_,
                  dstream_.data(), grads);
  } else {
    BackwardHead(params, scale, grads);
  }
}

int64_t LanguagePass::hits() const {
  return CountHits(probabilities_.data(), batch_.targets.data(), shape_.tokens(), kVocabulary);
}

const float* LanguagePass::probabilities(int position) const {
  return probabilities_.data() + static_cast<size_t>(position) * kVocabulary;
}

void LanguagePass::ForwardEmbedding(const float* params) {
  const auto width = static_cast<size_t>(config_.hidden);
  float* out = streams_[0].data();
  for (size_t t = 0; t < batch_.inputs.size(); ++t) {
    std::copy_n(params + batch_.inputs[t] * width, width, out + t * width);
  }
}

void LanguagePass::BackwardEmbedding(float* grads) {
  const auto width = static_cast<size_t>(config_.hidden);
  for (size_t t = 0; t < batch_.inputs.size(); ++t) {
    Add(grads + batch_.inputs[t] * width, dstream_.data() + t * width, config_.hidden);
  }
}

void LanguagePass::ForwardHead(const float* params) {
  const int n = shape_.tokens();
  RmsNorm(streams_.back().data(), params, normed_.data(), inverse_rms_.data(), n, config_.hidden);
  Product(normed_.data(), params + config_.hidden, probabilities_.data(), n, config_.hidden,
          kVocabulary);
  loss_ = CrossEntropy(probabilities_.data(), batch_.targets.data(), n, kVocabulary) / n;
}

void LanguagePass::BackwardHead(const float* params, float scale, float* grads) {
  const int n = shape_.tokens();
  const int width = config_.hidden;
  CrossEntropyBackward(probabilities_.data(), batch_.targets.data(), n, kVocabulary,
                       scale / static_cast<float>(n));
  ProductWeightGradient(probabilities_.data(), normed_.data(), grads + width, n, width,
                        kVocabulary);
  float* dnormed = scratch_.narrow.data();
  ProductInputGradient(probabilities_.data(), params + width, dnormed, n, width, kVocabulary);
  std::fill(dstream_.begin(), dstream_.end(), 0.0f);
  RmsNormBackward(dnormed, streams_.back().data(), params, inverse_rms_.data(), dstream_.data(),
                  grads, n, width);
}

}  // namespace trainer
