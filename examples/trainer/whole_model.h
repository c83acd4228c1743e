// All parameters of the model on this rank, as a gradient channel needs them: one flat vector,
// layer after layer. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/trainer/task.h"

namespace trainer {

class WholeModel {
 public:
  // Fills in the starting parameters. In bf16 they are rounded.
  WholeModel(const Task& task, bool bf16);

  int layers() const { return static_cast<int>(offsets_.size()) - 1; }
  int64_t size(int layer) const { return offset(layer + 1) - offset(layer); }
  // Returns the position of the layer in vectors of the whole model. offset(layers()) is the length
  // of such a vector.
  int64_t offset(int layer) const { return offsets_[static_cast<size_t>(layer)]; }
  // Returns offset(layers()) elements, f32 or bf16. A writer must write all of them.
  void* params() { return bf16_ ? static_cast<void*>(narrow_.data()) : wide_.data(); }
  // Returns the layer as f32, valid until the next call.
  const float* Layer(int layer);

  // Called before a layer's pass. Returns the parameters that the pass uses instead of the layer's
  // own (`params`), valid until the next call.
  using Moved = std::function<const float*(int layer, const float* params)>;
  // Called for each layer after its pass.
  using Seen = std::function<void(int layer, const float* params)>;

  // Runs all layers of `pass` upwards.
  void Forward(Pass* pass, const Moved& moved = nullptr);
  // Runs all layers backwards. Adds each layer's gradient of the mean loss to the memory that
  // `place` returns, then calls `seen`.
  void Backward(Pass* pass, const std::function<float*(int layer)>& place,
                const Moved& moved = nullptr, const Seen& seen = nullptr);

  // Returns every layer as f32.
  std::vector<std::vector<float>> Collect();

 private:
  const bool bf16_;
  std::vector<int64_t> offsets_;  // starts of the layers, then the total
  std::vector<uint16_t> narrow_;  // bf16: the parameters
  std::vector<float> wide_;       // f32: the parameters; bf16: one layer
};

}  // namespace trainer
