#include "examples/trainer/whole_model.h"

#include <algorithm>

#include "examples/trainer/kernels.h"

namespace trainer {

WholeModel::WholeModel(const Task& task, bool bf16) : bf16_(bf16), offsets_(1, 0) {
  int64_t largest = 0;
  for (int layer = 0; layer < task.layers(); ++layer) {
    largest = std::max(largest, task.layer_size(layer));
    offsets_.push_back(offsets_.back() + task.layer_size(layer));
  }
  narrow_.resize(static_cast<size_t>(bf16 ? offsets_.back() : 0));
  wide_.resize(static_cast<size_t>(bf16 ? largest : offsets_.back()));
  for (int layer = 0; layer < layers(); ++layer) {
    task.InitialiseLayer(layer, wide_.data() + (bf16 ? 0 : offset(layer)));
    if (bf16) {
      NarrowBf16(wide_.data(), narrow_.data() + offset(layer), size(layer));
    }
  }
}

const float* WholeModel::Layer(int layer) {
  if (!bf16_) {
    return wide_.data() + offset(layer);
  }
  WidenBf16(narrow_.data() + offset(layer), wide_.data(), size(layer));
  return wide_.data();
}

void WholeModel::Forward(Pass* pass, const Moved& moved) {
  for (int layer = 0; layer < layers(); ++layer) {
    const float* const params = Layer(layer);
    pass->Forward(layer, moved ? moved(layer, params) : params);
  }
}

void WholeModel::Backward(Pass* pass, const std::function<float*(int layer)>& place,
                          const Moved& moved, const Seen& seen) {
  for (int layer = layers() - 1; layer >= 0; --layer) {
    const float* const params = Layer(layer);
    pass->Backward(layer, moved ? moved(layer, params) : params, 1.0f, place(layer));
    if (seen) {
      seen(layer, params);
    }
  }
}

std::vector<std::vector<float>> WholeModel::Collect() {
  std::vector<std::vector<float>> all;
  for (int layer = 0; layer < layers(); ++layer) {
    const float* const params = Layer(layer);
    all.emplace_back(params, params + size(layer));
  }
  return all;
}

}  // namespace trainer
