// A Llama-style language model over bytes, cut into layers that each have one flat parameter
// vector:
//
//   layer 0            embedding [256, D]
//   layers 1 .. L      decoder blocks (block.h)
//   layer L + 1        final norm [D] and head [256, D]
//
// The layers differ in size on purpose: the sharding must support that.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/block.h"
#include "examples/trainer/pass.h"

namespace trainer {

inline constexpr int kVocabulary = 256;

struct ModelConfig {
  int hidden = 64;
  int layers = 4;
  int heads = 4;
  int length = 32;  // tokens in a sequence

  // Returns Llama's 8/3 of the hidden size, rounded up to a multiple of 16.
  int feed_forward() const { return (hidden * 8 / 3 + 15) / 16 * 16; }
};

// Returns L + 2.
int LayerCount(const ModelConfig& config);
// Returns the number of elements of a layer's flat parameters.
int64_t LayerSize(const ModelConfig& config, int layer);
// Fills in the starting parameters of a layer, which are a function of (config, layer, seed) only.
// Gains are 1. Matrices are normal with deviation 1 / sqrt(inputs). For matrices that write into
// the residual stream this deviation is divided by sqrt(2 L).
void InitialiseLayer(const ModelConfig& config, int layer, uint64_t seed, float* params);

// A batch has at most `rows` sequences of config.length tokens, and for each token the token to
// predict.
class LanguagePass final : public Pass {
 public:
  LanguagePass(const ModelConfig& config, int rows);

  void SetBatch(const Batch& batch) override { batch_ = batch; }
  void Forward(int layer, const float* params) override;
  // The call for layer L + 1 overwrites the probabilities.
  void Backward(int layer, const float* params, float scale, float* grads) override;

  double loss() const override { return loss_; }
  int64_t hits() const override;
  // Returns p(next byte) after the token at `position` of row 0: kVocabulary entries. Valid after
  // Forward(L + 1).
  const float* probabilities(int position) const;

 private:
  void ForwardEmbedding(const float* params);
  void BackwardEmbedding(float* grads);
  void ForwardHead(const float* params);
  void BackwardHead(const float* params, float scale, float* grads);

  const ModelConfig config_;
  const BlockShape shape_;
  const Rotary rotary_;
  BlockScratch scratch_;
  Batch batch_;
  std::vector<std::vector<float>> streams_;  // streams_[l]: the input of layer l + 1
  std::vector<BlockState> blocks_;
  std::vector<float> normed_, inverse_rms_, probabilities_, dstream_;
  double loss_ = 0.0;
};

}  // namespace trainer
