// The passes of model.h and mlp.h on a GPU. Parameters and gradients are device addresses, and
// activations stay on the device. Only the loss and the hits are copied to the host, when the
// caller asks for them. block.h describes the arithmetic of a block.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/block.h"
#include "examples/trainer/gpu.h"
#include "examples/trainer/mlp.h"
#include "examples/trainer/model.h"
#include "examples/trainer/pass.h"

namespace trainer {

// The mean -log p(target) over the rows, and the number of hits. loss() and hits() wait for the
// device.
class GpuCriterion {
 public:
  GpuCriterion(Gpu* gpu, int most_rows, int vocabulary);
  // Turns logits[rows, vocabulary] into probabilities.
  void Forward(float* logits, const uint8_t* targets, int rows);
  // Turns these probabilities into the gradient of (scale * mean loss) by the logits.
  void Backward(float* probabilities, const uint8_t* targets, int rows, float scale);
  double loss() const { return results_.Read()[0] / rows_; }
  int64_t hits() const { return static_cast<int64_t>(results_.Read()[1]); }

 private:
  Gpu* const gpu_;
  const int vocabulary_;
  int rows_ = 1;
  Array<double> of_rows_;
  GpuNumbers results_;
};

class GpuLanguagePass final : public Pass {
 public:
  GpuLanguagePass(Gpu* gpu, const ModelConfig& config, int rows);

  void SetBatch(const Batch& batch) override { batch_.Set(batch); }
  void Forward(int layer, const float* params) override;
  void Backward(int layer, const float* params, float scale, float* grads) override;
  double loss() const override { return criterion_.loss(); }
  int64_t hits() const override { return criterion_.hits(); }

 private:
  // The values of a block that the backward pass needs. Heads are separate: query, key and value
  // each have [rows, heads, length, head_dim].
  struct Kept {
    Array<float> normed1, heads, probabilities, mixed, middle, normed2, gate_up, activated;
    Array<float> inverse_rms1, inverse_rms2;
  };

  Array<float> PerToken(int64_t width) { return {gpu_, shape_.tokens() * width}; }
  float* Part(Array<float>* heads, int part) const {
    return heads->data() + part * int64_t{shape_.tokens()} * shape_.hidden;
  }
  void ForwardBlock(const float* weights, const float* x, float* y, Kept* kept);
  void BackwardBlock(const float* weights, const float* x, Kept* kept, float* gradient);
  void ForwardHead(const float* params);
  void BackwardHead(const float* params, float scale, float* grads);
  void Attend(Kept* kept);
  void AttendBackward(Kept* kept);
  void Norm(const float* x, const float* gain, float* y, float* inverse_rms);
  // Adds the gradient of the norm's input to stream_gradient_. narrow_ holds the gradient of the
  // norm's output.
  void NormBackward(const float* x, const float* gain, float* inverse_rms, float* dgain);
  GpuHeadsArgs Heads(float* joined, float* split, int parts, int turned) const;

  Gpu* const gpu_;
  const ModelConfig config_;
  const BlockShape shape_;
  GpuBatch batch_;
  GpuCriterion criterion_;
  Array<float> cosine_, sine_;
  std::vector<Array<float>> streams_;  // [l]: the input of layer l + 1
  std::vector<Kept> blocks_;
  Array<float> normed_, inverse_rms_, logits_, stream_gradient_;
  Array<float> narrow_, wide_, heads_gradient_, scores_gradient_, mixed_gradient_;  // temporaries
                                                                                    // of one block
};

class GpuMlpPass final : public Pass {
 public:
  GpuMlpPass(Gpu* gpu, const MlpConfig& config, int rows);

  void SetBatch(const Batch& batch) override;
  void Forward(int layer, const float* params) override;
  void Backward(int layer, const float* params, float scale, float* grads) override;
  double loss() const override { return criterion_.loss(); }
  int64_t hits() const override { return criterion_.hits(); }

 private:
  Gpu* const gpu_;
  const MlpConfig config_;
  int rows_ = 0;  // rows of the batch
  GpuBatch batch_;
  GpuCriterion criterion_;
  std::vector<Array<float>> activations_;  // [l]: the input of layer l
  std::vector<Array<float>> sums_;         // [l]: the output of layer l before GELU
  Array<float> gradient_, next_gradient_;  // gradients of a layer's output and input
};

}  // namespace trainer
