// A network of dense layers that recognises the digit in an image. Each layer has one flat
// parameter vector: the matrix row by row, then the biases:
//
//   layer 0            [D, 64], [D]   GELU
//   layers 1 .. L - 1  [D, D], [D]    GELU
//   layer L            [10, D], [10]
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/digits.h"
#include "examples/trainer/pass.h"

namespace trainer {

struct MlpConfig {
  int hidden = 64;  // D
  int layers = 4;   // L, the number of layers with GELU

  int inputs(int layer) const { return layer == 0 ? kPixels : hidden; }
  int outputs(int layer) const { return layer == layers ? kDigits : hidden; }
  // Returns the number of elements of a layer's flat parameters.
  int64_t layer_size(int layer) const {
    return static_cast<int64_t>(inputs(layer) + 1) * outputs(layer);
  }
};

// Fills in the starting parameters of layer 0 .. L, which are a function of (config, layer, seed)
// only. Matrices are normal with deviation sqrt(2 / inputs). The last matrix has a tenth of this
// deviation. Biases are 0.
void InitialiseLayer(const MlpConfig& config, int layer, uint64_t seed, float* params);

// A batch has at most `rows` images, and the digit of each.
class MlpPass final : public Pass {
 public:
  MlpPass(const MlpConfig& config, int rows);

  void SetBatch(const Batch& batch) override;
  void Forward(int layer, const float* params) override;
  // The call for layer L overwrites the probabilities.
  void Backward(int layer, const float* params, float scale, float* grads) override;

  double loss() const override { return loss_; }
  int64_t hits() const override;

 private:
  const MlpConfig config_;
  int rows_ = 0;  // rows of the batch
  std::vector<uint8_t> targets_;
  std::vector<std::vector<float>> activations_;  // [l]: the input of layer l
  std::vector<std::vector<float>> sums_;         // [l]: the output of layer l before GELU
  std::vector<float> gradient_, next_gradient_;  // gradients of a layer's output and input
  double loss_ = 0.0;
};

}  // namespace trainer
