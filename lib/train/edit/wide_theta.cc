#include "lib/train/edit/wide_theta.h"

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

absl::Status WideTheta::Reserve() {
  if (live_.dtype == DType::kF32) {
    return absl::OkStatus();
  }
  const int64_t most = slab_.largest().shard;
  const int64_t bytes = most * (2 * kFloat + SizeOf(live_.dtype));
  ENTRAIN_ASSIGN_OR_RETURN(memory_, OwnedBuffer::Allocate(bytes));
  theta_ = reinterpret_cast<float*>(memory_.data());
  anchor_ = theta_ + most;
  rounded_ = memory_.data() + 2 * most * kFloat;
  return absl::OkStatus();
}

const float* WideTheta::Source(int layer, const float* snapshot) {
  if (live_.dtype == DType::kF32) {
    return snapshot != nullptr ? snapshot : live_.f32(layer);
  }
  const int64_t count = slab_.layer(layer).valid;
  if (snapshot != nullptr) {
    CopyShared(theta_, snapshot, count * kFloat);
  } else {
    live_.Read(layer, theta_, count);
  }
  if (anchors_.exist()) {
    RoundAnchor(layer, anchor_);
    SharedKernels().axpy(theta_, -1, anchor_, count);
    SharedKernels().axpy(theta_, 1, anchors_.anchor(layer), count);
  }
  return theta_;
}

void WideTheta::RoundAnchor(int layer, float* to) {
  const int64_t count = slab_.layer(layer).valid;
  if (live_.dtype == DType::kF32) {
    CopyShared(to, anchors_.anchor(layer), count * kFloat);
    return;
  }
  SharedKernels().cast(rounded_, live_.dtype, anchors_.anchor(layer), DType::kF32, count);
  SharedKernels().cast(to, DType::kF32, rounded_, live_.dtype, count);
}

const float* WideTheta::RoundedAnchor(int layer) {
  if (live_.dtype == DType::kF32) {
    return anchors_.anchor(layer);
  }
  RoundAnchor(layer, anchor_);
  return anchor_;
}

float* WideTheta::Open(int layer) {
  if (live_.dtype == DType::kF32) {
    return live_.f32(layer);
  }
  live_.Read(layer, theta_, slab_.layer(layer).valid);
  return theta_;
}

void WideTheta::Close(int layer, const float* theta) const {
  if (live_.dtype != DType::kF32) {
    live_.Write(layer, theta, slab_.layer(layer).valid);
  }
}

}  // namespace entrain
