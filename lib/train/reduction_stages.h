// Tracks how far the gradients of each layer have come in a step: lent, being reduced, waited for.
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
  // Records that everything reduced so far has been waited for.
  void Finished();
  // Returns kFailedPrecondition, naming layers, if gradients of some layer were lent since
  // BeginStep, but another layer that trains was not reduced, or its reduction was not waited for.
  // If none were lent, the caller reduces gradients itself, and this returns OK.
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
