// A batch of examples, and a model's forward and backward pass over it, layer by layer.
#pragma once

#include <cstdint>
#include <vector>

namespace trainer {

// Examples side by side: what the model sees, and what it is to predict.
struct Batch {
  std::vector<uint8_t> inputs, targets;
};

// Usage: SetBatch; Forward of all layers upwards; then, to train, Backward of all layers downwards.
// Parameters and gradients are where the pass computes (device.h). The caller brings the parameters
// of one layer at a time and may take them away again between calls; a pass keeps activations only.
// Not thread safe; deterministic.
class Pass {
 public:
  virtual ~Pass() = default;

  // Copies the batch.
  virtual void SetBatch(const Batch& batch) = 0;
  virtual void Forward(int layer, const float* params) = 0;
  // Adds this batch's gradient of (scale * mean loss) to `grads`. The same parameters as in
  // Forward.
  virtual void Backward(int layer, const float* params, float scale, float* grads) = 0;

  // After the last layer's Forward: the mean -log p(target) in nats, until the next one; and how
  // many targets were the most probable, until Backward. On a GPU these wait, and nothing else
  // does.
  virtual double loss() const = 0;
  virtual int64_t hits() const = 0;
};

}  // namespace trainer
