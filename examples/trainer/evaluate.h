// The quality of the model: its loss on the validation subset, and the share of right predictions.
#pragma once

#include <functional>
#include <vector>

#include "examples/trainer/flags.h"
#include "examples/trainer/loss_rise.h"
#include "examples/trainer/metrics.h"
#include "examples/trainer/pass.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

struct Validation {
  double loss = 0.0;      // the mean over all targets, nats
  double accuracy = 0.0;  // share of targets that got the highest probability
};

// Evaluates the task's validation batches, which the ranks divide among themselves. Collective. A
// rank evaluates a batch with the parameters of its replica. `forward` must run a pass through all
// layers; the batch of the pass has been set. Every rank calls `forward` the same number of times.
// Returns equal numbers on every rank.
Validation Validate(const Task& task, Session* session, Pass* pass,
                    const std::function<void(Pass*)>& forward);

// Fills in the part of a summary that is about the model: its size, `validation`, the sharpness of
// its minimum, and a sample of its text. `layers` has all layers of the model, on every rank.
// Collective.
void Judge(const Options& options, const Task& task, Session* session, Pass* pass,
           const Validation& validation, const std::vector<std::vector<float>>& layers,
           Summary* summary);

}  // namespace trainer
