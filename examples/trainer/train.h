// The training run: steps, evaluations, records, and the summary.
#pragma once

#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

// Trains and writes the results as the options say. Collective. Throws Error.
void Train(const Options& options, const Task& task, Session* session);

}  // namespace trainer
