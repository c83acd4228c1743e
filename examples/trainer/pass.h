// A batch of examples, and a model's forward and backward pass over it, layer by layer.
#pragma once

#include <cstdint>
#include <vector>

namespace trainer {

// Examples one after another: the inputs of the model, and its targets.
struct Batch {
  std::vector<uint8_t> inputs, targets;
};

// Usage: SetBatch; then Forward of all layers upwards; then, for training, Backward of all layers
// downwards. The caller provides the parameters of one layer at a time, and may remove
// them between calls, because a pass keeps activations only. Not thread safe; deterministic.
class Pass {
 public:
  virtual ~Pass() = default;

  // Copies the batch.
  virtual void SetBatch(const Batch& batch) = 0;
  virtual void Forward(int layer, const float* params) = 0;
  // Adds this batch's gradient of (scale * mean loss) to `grads`. `params` must be the same as in
  // Forward.
  virtual void Backward(int layer, const float* params, float scale, float* grads) = 0;

  // loss() returns the mean -log p(target) in nats. It is valid after Forward of the last layer,
  // until the next Forward of that layer. hits() returns the number of targets that got the highest
  // probability. It is valid until Backward.
  virtual double loss() const = 0;
  virtual int64_t hits() const = 0;
};

}  // namespace trainer
