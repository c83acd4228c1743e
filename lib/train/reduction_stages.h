// How far the gradients of each layer have come in a step: handed out, on their way, waited for.
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
  // `training`: the layers that train; the model has `layers`.
  ReductionStages(int layers, std::vector<int> training)
      : training_(std::move(training)), stages_(static_cast<size_t>(layers), Stage::kNone) {}

  void BeginStep();
  void Lent(int layer) { stages_[static_cast<size_t>(layer)] = Stage::kLent; }
  void Reduced(int layer) { stages_[static_cast<size_t>(layer)] = Stage::kReduced; }
  // Everything that was reduced so far has been waited for.
  void Finished();
  // kFailedPrecondition naming layers, where some layer's gradients were handed out since BeginStep, but those of another layer
  // that trains were not reduced, or nobody has waited for them. Where none were, somebody else reduces.
  absl::Status CheckReduced() const;

  // How many reductions have begun since creation.
  void CountBegun() { ++begun_; }
  uint64_t begun() const { return begun_; }

 private:
  enum class Stage : uint8_t { kNone, kLent, kReduced, kFinished };

  const std::vector<int> training_;
  std::vector<Stage> stages_;  // by layer
  uint64_t begun_ = 0;
};

}  // namespace entrain
