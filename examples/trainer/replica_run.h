// Training by replicas, each sharded over its ranks. Method exchanges data between the replicas.
#pragma once

#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

// Trains and writes the results as the options say. Collective. Throws Error.
void TrainReplicas(const Options& options, const Task& task, Session* session);

}  // namespace trainer
