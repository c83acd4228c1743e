// What a small quiet machine lacks, emulated: steps that take as long as a large model's, replicas
// that are late, replicas that are fed nonsense. A function of (seed, step, replica), so that all
// ranks know alike whose turn it is.
#pragma once

#include <cstdint>
#include <optional>

#include "examples/trainer/flags.h"
#include "examples/trainer/pass.h"

namespace trainer {

class Conditions {
 public:
  Conditions(const ConditionOptions& options, uint64_t seed, int replicas)
      : options_(options), seed_(seed), replicas_(replicas) {}

  // Throws Error when a flag names a replica that there is not.
  void CheckReplicas() const;

  // The replica that is late in its step number `step`, if any.
  std::optional<int> Late(int64_t step) const;
  // How long `replica` must still sleep in a step that has kept it for `own_s` seconds, waiting for
  // other replicas not counted; or in one of `parts` of a step.
  double Rest(int64_t step, int replica, double own_s, int64_t parts = 1) const;

  // Whether `replica` learns from shuffled labels in interval number `interval` (0: warm-up).
  bool Shuffles(int64_t interval, int replica) const;
  // Deals the targets of `batch` anew among its places. `draw`: of this batch, as DrawTraining has
  // it.
  void Shuffle(int rank, int64_t draw, Batch* batch) const;

 private:
  const ConditionOptions options_;
  const uint64_t seed_;
  const int replicas_;
};

}  // namespace trainer
