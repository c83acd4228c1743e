// Training with all parameters on every rank. A gradient channel exchanges the gradients: acco and
// its baselines.
#pragma once

#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

// Trains and writes the results as the options say. Collective. Throws Error.
void TrainByChannel(const Options& options, const Task& task, Session* session);

}  // namespace trainer
