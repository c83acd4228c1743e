// The training run: steps, evaluations, records, and the summary.
#pragma once

#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

// Trains as the options say and writes what they ask for. Collective. Throws Error.
void Train(const Options& options, const Task& task, Device* device, Session* session);

}  // namespace trainer
