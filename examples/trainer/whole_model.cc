#include "examples/trainer/whole_model.h"

#include <algorithm>

namespace trainer {

WholeModel::WholeModel(const Task& task, Device* device, bool bf16)
    : device_(device), bf16_(bf16), offsets_(1, 0) {
  int64_t largest = 0;
  for (int layer = 0; layer < task.layers(); ++layer) {
    largest = std::max(largest, task.layer_size(layer));
    offsets_.push_back(offsets_.back() + task.layer_size(layer));
  }
  narrow_ = Array<uint16_t>(device, bf16 ? offsets_.back() : 0);
  wide_ = Array<float>(device, bf16 ? largest : offsets_.back());
  std::vector<float> start(static_cast<size_t>(largest));
  for (int layer = 0; layer < layers(); ++layer) {
    task.InitialiseLayer(layer, start.data());
    device->Upload(wide_.data() + (bf16 ? 0 : offset(layer)), start.data(),
                   size(layer) * int64_t{sizeof(float)});
    if (bf16) {
      device->NarrowBf16(wide_.data(), narrow_.data() + offset(layer), size(layer));
    }
  }
}

const float* WholeModel::Layer(int layer) {
  if (!bf16_) {
    return wide_.data() + offset(layer);
  }
  device_->WidenBf16(narrow_.data() + offset(layer), wide_.data(), size(layer));
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
    all.emplace_back(static_cast<size_t>(size(layer)));
    device_->Download(all.back().data(), Layer(layer), size(layer) * int64_t{sizeof(float)});
  }
  return all;
}

}  // namespace trainer
