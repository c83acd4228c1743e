// What the model is worth: its loss on the validation subset, and how often it is right.
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
  double accuracy = 0.0;  // share of targets that were the most probable
};

// Over the task's validation batches, divided over the ranks; each batch is read by one rank with
// the parameters that its replica has. `forward` runs a pass that has its batch through all layers;
// every rank calls it as often. The same numbers on every rank. Collective.
Validation Validate(const Task& task, Session* session, Pass* pass,
                    const std::function<void(Pass*)>& forward);

// What a summary says of the model: its size, `validation`, how sharp its minimum is, what it
// writes. `layers`: all of it, on every rank, in host memory. Collective.
void Judge(const Options& options, const Task& task, Session* session, const Computing& on,
           const Validation& validation, const std::vector<std::vector<float>>& layers,
           Summary* summary);

}  // namespace trainer
