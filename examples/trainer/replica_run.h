// Training by replicas, each spread over its ranks, that stay together by `method`.
#pragma once

#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"

namespace trainer {

// Trains as the options say and writes what they ask for. Collective. Throws Error.
void TrainReplicas(const Options& options, const Task& task, Device* device, Session* session);

}  // namespace trainer
