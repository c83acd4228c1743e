#include "lib/train/edit/snapshots.h"

#include <algorithm>

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Computes out = x + b y + c z, in this order.
void AddThree(float* out, const float* x, double b, const float* y, double c, const float* z,
              int64_t count) {
  const void* const arrays[] = {x, y, z};
  const double weights[] = {1, b, c};
  SharedKernels().combine_weighted(DType::kF32, out, arrays, weights, 3, count);
}

}  // namespace

Snapshots::Snapshots(const Slab& slab, const LayerArrays& live, const EditOptions& options,
                     const Anchors& anchors, WideTheta* worker_theta)
    : slab_(slab),
      live_(live),
      options_(options),
      anchors_(anchors),
      worker_theta_(*worker_theta),
      merging_(slab, live, anchors),
      in_use_(static_cast<size_t>(slab.layers()), 0),
      finite_(static_cast<size_t>(slab.layers()), 1),
      late_(static_cast<size_t>(slab.layers()), 0) {}

absl::Status Snapshots::ReserveMerge() {
  return options_.overlap_steps > 0 || options_.carries() ? merging_.Reserve() : absl::OkStatus();
}

absl::Status Snapshots::Reserve() {
  if (taken_.data() == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(taken_, OwnedBuffer::Allocate(slab_.count() * kFloat));
  }
  return absl::OkStatus();
}

absl::Status Snapshots::Take(const std::vector<int>& layers) {
  ENTRAIN_RETURN_IF_ERROR(Reserve());
  for (const int layer : layers) {
    const int64_t count = slab_.layer(layer).valid;
    live_.Read(layer, At(layer), count);
    if (options_.overlap_merge == OverlapMerge::kRestart) {
      live_.Write(layer, anchors_.anchor(layer), count);
    }
  }
  return absl::OkStatus();
}

void Snapshots::Use(const std::vector<int>& layers) {
  for (const int layer : layers) {
    in_use_[static_cast<size_t>(layer)] = 1;
  }
}

void Snapshots::Merge(const std::vector<int>& layers) {
  const auto keep = static_cast<float>(options_.overlap_mix);
  for (const int layer : layers) {
    const int64_t count = slab_.layer(layer).valid;
    const float* const anchor = anchors_.anchor(layer);
    float* const live = merging_.Open(layer);
    // With kRestart, theta became the anchor after the snapshot. So theta is finite, even if the
    // snapshot was not.
    if (options_.overlap_merge != OverlapMerge::kRestart &&
        finite_[static_cast<size_t>(layer)] == 0) {
      CopyShared(live, anchor, count * kFloat);  // theta and any sum with it may be invalid
    } else if (options_.overlap_merge == OverlapMerge::kMix) {
      const void* const arrays[] = {live, anchor};
      const double weights[] = {keep, 1 - keep};
      SharedKernels().combine_weighted(DType::kF32, live, arrays, weights, 2, count);
    } else {
      AddThree(live, live, -1, At(layer), 1, anchor, count);
    }
    merging_.Close(layer, live);
    in_use_[static_cast<size_t>(layer)] = 0;
  }
}

void Snapshots::Drop(const std::vector<int>& layers) {
  for (const int layer : layers) {
    if (options_.overlap_merge == OverlapMerge::kRestart) {
      float* const live = merging_.Open(layer);
      const float* const began = merging_.RoundedAnchor(layer);
      AddThree(live, live, -1, began, 1, At(layer), slab_.layer(layer).valid);
      merging_.Close(layer, live);
    }
    in_use_[static_cast<size_t>(layer)] = 0;
  }
}

void Snapshots::KeepOldAnchor(int layer) {
  if (in_use(layer) && options_.overlap_merge == OverlapMerge::kRestart) {
    worker_theta_.RoundAnchor(layer, At(layer));
  }
}

absl::Status Snapshots::BeginLate(const std::vector<int>& layers) {
  if (options_.carries()) {
    ENTRAIN_RETURN_IF_ERROR(Reserve());
  }
  for (const int layer : layers) {
    late_[static_cast<size_t>(layer)] = 1;
    int32_t& in_use = in_use_[static_cast<size_t>(layer)];
    if (in_use == 0 && options_.carries()) {
      worker_theta_.RoundAnchor(layer, At(layer));  // the replica trains from this anchor
    }
    in_use = 1;
  }
  return absl::OkStatus();
}

bool Snapshots::late() const {
  return std::any_of(slab_.training().begin(), slab_.training().end(),
                     [this](int layer) { return late(layer); });
}

void Snapshots::LeaveOut(const std::vector<int>& layers) {
  for (const int layer : layers) {
    if (in_use(layer) && !late(layer)) {
      worker_theta_.RoundAnchor(layer, At(layer));
      late_[static_cast<size_t>(layer)] = 1;
    }
  }
}

void Snapshots::EndLate(const std::vector<int>& layers) {
  for (const int layer : layers) {
    late_[static_cast<size_t>(layer)] = 0;
  }
}

bool Snapshots::CatchUp(const std::vector<int>& layers, int64_t missed) {
  EndLate(layers);
  for (const int layer : layers) {
    const int64_t count = slab_.layer(layer).valid;
    if (options_.carries()) {
      float* const live = merging_.Open(layer);
      AddThree(live, live, -1, At(layer), 1, anchors_.anchor(layer), count);
      merging_.Close(layer, live);
    } else {
      live_.Write(layer, anchors_.anchor(layer), count);
    }
    in_use_[static_cast<size_t>(layer)] = 0;
  }
  if (missed > 0 && options_.late == Late::kWeighted) {  // with background rounds `missed` is 0
    rounds_late_ += missed;
  }
  return options_.carries();
}

void Snapshots::VisitState(StateVisitor& visitor) {
  if (options_.overlap_steps > 0 && visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("behind/finite", Holder::kReplica, DType::kI32, finite_.data(),
                  static_cast<int64_t>(finite_.size()));
    visitor.Array("behind/taken", Holder::kRank, DType::kF32, Values(), slab_.count());
  }
}

}  // namespace entrain
