// Emulates conditions that a small quiet machine does not have: steps as long as those of a large
// model, slow replicas, and replicas that learn from wrong labels. The conditions are a function of
// (seed, step, replica), so all ranks know which replica is affected. Replicas with unlike texts
// are drawn by Text (data.h).
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

  // Throws Error if a flag names a replica that does not exist.
  void CheckReplicas() const;

  // Returns the replica that is slow in step `step`, if any.
  std::optional<int> Late(int64_t step) const;
  // Returns the seconds that `replica` must still sleep in a step. `own_s`: the seconds that the
  // step has taken so far, without waits for other replicas. If `parts` > 1, the step is divided
  // into `parts` parts, and `own_s` and the result are seconds of one part.
  double Rest(int64_t step, int replica, double own_s, int64_t parts = 1) const;

  // Returns true if `replica` learns from shuffled labels in interval `interval` (0: warm-up).
  bool Shuffles(int64_t interval, int replica) const;
  // Permutes the targets of `batch` randomly. `draw` is the number of the batch in DrawTraining.
  void Shuffle(int rank, int64_t draw, Batch* batch) const;

 private:
  const ConditionOptions options_;
  const uint64_t seed_;
  const int replicas_;
};

}  // namespace trainer
