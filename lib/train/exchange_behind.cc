// Exchanges behind further steps: what is taken from the live parameters, and how what comes of it is merged with them.
#include <cstring>

#include "lib/base/status.h"
#include "lib/train/exchange.h"

namespace entrain {
namespace {

size_t BytesOf(int64_t floats) {
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

absl::Status Exchange::ReserveSnapshots() {
  if (snapshot_.size() == 0) {
    ENTRAIN_ASSIGN_OR_RETURN(
        snapshot_, OwnedBuffer::Allocate(slab_.count() * static_cast<int64_t>(sizeof(float))));
  }
  return absl::OkStatus();
}

absl::Status Exchange::Snapshot(const std::vector<int>& layers) {
  ENTRAIN_RETURN_IF_ERROR(ReserveSnapshots());
  for (const int layer : layers) {
    const auto bytes = BytesOf(slab_.layer(layer).valid);
    std::memcpy(Taken(layer), Live(layer), bytes);
    if (options_.overlap_merge == OverlapMerge::kRestart) {
      std::memcpy(Live(layer), anchors_.anchor(layer), bytes);
    }
    overlapped_[static_cast<size_t>(layer)] = 1;
  }
  return absl::OkStatus();
}

void Exchange::Merge(const std::vector<int>& layers) {
  const auto keep = static_cast<float>(options_.overlap_mix);
  for (const int layer : layers) {
    const int64_t count = slab_.layer(layer).valid;
    const float* const anchor = anchors_.anchor(layer);
    const float* const then = Taken(layer);
    float* const live = Live(layer);
    // What restarted from the anchor was finite then, whatever had been taken.
    if (options_.overlap_merge != OverlapMerge::kRestart &&
        finite_[static_cast<size_t>(layer)] == 0) {
      std::memcpy(live, anchor, BytesOf(count));
    } else if (options_.overlap_merge == OverlapMerge::kMix) {
      for (int64_t i = 0; i < count; ++i) {
        live[i] = keep * live[i] + (1 - keep) * anchor[i];
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        live[i] = anchor[i] + (live[i] - then[i]);
      }
    }
    overlapped_[static_cast<size_t>(layer)] = 0;
  }
}

void Exchange::DropSnapshot(const std::vector<int>& layers) {
  for (const int layer : layers) {
    if (options_.overlap_merge == OverlapMerge::kRestart) {
      const int64_t count = slab_.layer(layer).valid;
      const float* const anchor = anchors_.anchor(layer);
      const float* const then = Taken(layer);
      float* const live = Live(layer);
      for (int64_t i = 0; i < count; ++i) {
        live[i] = then[i] + (live[i] - anchor[i]);
      }
    }
    overlapped_[static_cast<size_t>(layer)] = 0;
  }
}

}  // namespace entrain
