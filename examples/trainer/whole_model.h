// The model's parameters, whole on this rank: one flat vector, layer after layer, as a gradient
// channel wants them. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/trainer/device.h"
#include "examples/trainer/task.h"

namespace trainer {

class WholeModel {
 public:
  // The starting parameters, on the device; in bf16 they are rounded to it.
  WholeModel(const Task& task, Device* device, bool bf16);

  int layers() const { return static_cast<int>(offsets_.size()) - 1; }
  int64_t size(int layer) const { return offset(layer + 1) - offset(layer); }
  // Where the layer begins in vectors of the whole model; of layers(): how long they are.
  int64_t offset(int layer) const { return offsets_[static_cast<size_t>(layer)]; }
  // offset(layers()) elements, f32 or bf16; whoever writes them writes all.
  void* params() { return bf16_ ? static_cast<void*>(narrow_.data()) : wide_.data(); }
  // The layer as f32, until the next call.
  const float* Layer(int layer);

  // What a layer's pass sees instead of its parameters, until the next call.
  using Moved = std::function<const float*(int layer, const float* params)>;
  // What becomes of a layer after its pass.
  using Seen = std::function<void(int layer, const float* params)>;

  // Runs all layers of `pass`, upwards.
  void Forward(Pass* pass, const Moved& moved = nullptr);
  // Runs all layers backwards; each layer's gradient of the mean loss is added to what
  // `place` says; then `seen`.
  void Backward(Pass* pass, const std::function<float*(int layer)>& place,
                const Moved& moved = nullptr, const Seen& seen = nullptr);

  // Every layer as f32, in host memory.
  std::vector<std::vector<float>> Collect();

 private:
  Device* const device_;
  const bool bf16_;
  std::vector<int64_t> offsets_;  // of layers, and the end
  Array<uint16_t> narrow_;        // bf16: the parameters
  Array<float> wide_;             // f32: the parameters; bf16: one layer
};

}  // namespace trainer
