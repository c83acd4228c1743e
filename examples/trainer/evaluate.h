// What the model is worth: its loss on the validation subset, and how often it is right.
#pragma once

#include "examples/trainer/method.h"
#include "examples/trainer/session.h"
#include "examples/trainer/sharded_model.h"
#include "examples/trainer/task.h"

namespace trainer {

struct Validation {
  double loss = 0.0;      // the mean over all targets, nats
  double accuracy = 0.0;  // share of targets that were the most probable
};

// Over the task's validation batches, divided over the ranks; each batch is read by one rank with
// the parameters that its replica has. The same numbers on every rank. Collective.
Validation Validate(const Task& task, Session* session, ShardedModel* model, Method* method,
                    Pass* pass);

}  // namespace trainer
