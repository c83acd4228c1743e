// Exchanges behind further steps: how snapshots of the live parameters are taken, and how results
// are merged.
#include <algorithm>

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/exchange.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Computes out = x + b y + c z, in this order.
void AddThree(float* out, const float* x, double b, const float* y, double c, const float* z,
              int64_t count) {
  const void* const arrays[] = {x, y, z};
  const double weights[] = {1, b, c};
  CurrentKernels().combine_weighted(DType::kF32, out, arrays, weights, 3, count);
}

}  // namespace

absl::Status Exchange::ReserveSnapshots() {
  const int64_t bytes = slab_.count() * kFloat;
  if (taken_ == nullptr && room_ != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(std::byte* const memory, room_->Keep(bytes));
    taken_ = reinterpret_cast<float*>(memory);
  } else if (taken_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(snapshot_, OwnedBuffer::Allocate(bytes));
    taken_ = reinterpret_cast<float*>(snapshot_.data());
  }
  return absl::OkStatus();
}

absl::Status Exchange::Snapshot(const std::vector<int>& layers) {
  ENTRAIN_RETURN_IF_ERROR(ReserveSnapshots());
  for (const int layer : layers) {
    const int64_t count = slab_.layer(layer).valid;
    live_.Read(layer, Taken(layer), count);
    if (options_.overlap_merge == OverlapMerge::kRestart) {
      live_.Write(layer, anchors_.anchor(layer), count);
    }
  }
  return absl::OkStatus();
}

void Exchange::UseSnapshot(const std::vector<int>& layers) {
  for (const int layer : layers) {
    overlapped_[static_cast<size_t>(layer)] = 1;
  }
}

float* Exchange::Open(int layer) const {
  if (live_.dtype == DType::kF32) {
    return live_.f32(layer);
  }
  live_.Read(layer, merging_.theta, slab_.layer(layer).valid);
  return merging_.theta;
}

void Exchange::Close(int layer, const float* theta) const {
  if (live_.dtype != DType::kF32) {
    live_.Write(layer, theta, slab_.layer(layer).valid);
  }
}

void Exchange::Merge(const std::vector<int>& layers) {
  const auto keep = static_cast<float>(options_.overlap_mix);
  for (const int layer : layers) {
    const int64_t count = slab_.layer(layer).valid;
    const float* const anchor = anchors_.anchor(layer);
    float* const live = Open(layer);
    // With kRestart, theta became the anchor at the snapshot. So theta was finite, even if the
    // snapshot was not.
    if (options_.overlap_merge != OverlapMerge::kRestart &&
        finite_[static_cast<size_t>(layer)] == 0) {
      CopyArray(live, anchor, count * kFloat);  // theta and any sum with it may be invalid
    } else if (options_.overlap_merge == OverlapMerge::kMix) {
      const void* const arrays[] = {live, anchor};
      const double weights[] = {keep, 1 - keep};
      CurrentKernels().combine_weighted(DType::kF32, live, arrays, weights, 2, count);
    } else {
      AddThree(live, live, -1, Taken(layer), 1, anchor, count);
    }
    Close(layer, live);
    overlapped_[static_cast<size_t>(layer)] = 0;
  }
}

void Exchange::DropSnapshot(const std::vector<int>& layers) {
  for (const int layer : layers) {
    if (options_.overlap_merge == OverlapMerge::kRestart) {
      float* const live = Open(layer);
      const float* began = anchors_.anchor(layer);
      if (live_.dtype != DType::kF32) {
        RoundAnchor(merging_, layer, merging_.anchor);
        began = merging_.anchor;
      }
      AddThree(live, live, -1, began, 1, Taken(layer), slab_.layer(layer).valid);
      Close(layer, live);
    }
    overlapped_[static_cast<size_t>(layer)] = 0;
  }
}

absl::Status Exchange::BeginLate() {
  if (options_.carries()) {
    ENTRAIN_RETURN_IF_ERROR(ReserveSnapshots());
  }
  for (const int layer : slab_.training()) {
    int32_t& in_use = overlapped_[static_cast<size_t>(layer)];
    if (in_use == 0 && options_.carries()) {
      RoundAnchor(wide_, layer, Taken(layer));  // the replica trains from this anchor
    }
    in_use = 1;
  }
  return absl::OkStatus();
}

bool Exchange::late() const {
  return std::any_of(slab_.training().begin(), slab_.training().end(),
                     [this](int layer) { return late(layer); });
}

bool Exchange::CatchUp(int64_t missed) {
  for (const int layer : slab_.training()) {
    const int64_t count = slab_.layer(layer).valid;
    if (options_.carries()) {
      float* const live = Open(layer);
      AddThree(live, live, -1, Taken(layer), 1, anchors_.anchor(layer), count);
      Close(layer, live);
    } else {
      live_.Write(layer, anchors_.anchor(layer), count);
    }
    overlapped_[static_cast<size_t>(layer)] = 0;
  }
  carried_late_ += options_.late == Late::kWeighted ? missed : 0;
  return options_.carries();
}

}  // namespace entrain
