// Training with whole parameters on every rank and gradients that travel through a channel: acco
// and its baselines.
#pragma once

#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

// Trains as the options say and writes what they ask for. Collective. Throws Error.
void TrainByChannel(const Options& options, const Task& task, Device* device, Session* session);

}  // namespace trainer
