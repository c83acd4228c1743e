// Tracks the stage of each layer's gradients in a step: lent, being reduced, or waited for.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace entrain {

class ReductionStages {
 public:
  // `training` lists the layers that train, out of `layers`.
  ReductionStages(int layers, std::vector<int> training)
      : training_(std::move(training)), stages_(static_cast<size_t>(layers), Stage::kNone) {}

  void BeginStep();
  void Lent(int layer) { stages_[static_cast<size_t>(layer)] = Stage::kLent; }
  void Reduced(int layer) { stages_[static_cast<size_t>(layer)] = Stage::kReduced; }
  // Must be called after a wait for all reductions started so far.
  void Finished();
  // Returns OK if no gradients were lent since BeginStep: then the caller reduces gradients itself.
  // Otherwise returns kFailedPrecondition unless all layers that train were reduced and waited for.
  // The message names the missing layers.
  absl::Status CheckReduced() const;

  // Counts the reductions that have begun since creation.
  void CountBegun() { ++begun_; }
  uint64_t begun() const { return begun_; }

 private:
  enum class Stage : uint8_t { kNone, kLent, kReduced, kFinished };

  const std::vector<int> training_;
  std::vector<Stage> stages_;  // by layer
  uint64_t begun_ = 0;
};

}  // namespace entrain
