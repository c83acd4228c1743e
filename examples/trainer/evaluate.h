// What the model is worth: its loss on the validation subset, and text that it writes.
#pragma once

#include <string>
#include <vector>

#include "examples/trainer/data.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/method.h"
#include "examples/trainer/model.h"
#include "examples/trainer/session.h"
#include "examples/trainer/sharded_model.h"

namespace trainer {

// Mean loss over --val-batches batches spread evenly over the validation part, divided over the
// ranks; each batch is read by one rank with the parameters that its replica has. The same number
// on every rank. Collective.
double ValidationLoss(const Options& options, const Text& text, Session* session,
                      ShardedModel* model, Method* method, Pass* pass);

// Continues the prompt by `options.sample` bytes drawn from the model. A function of the parameters
// and the seed.
std::string Sample(const Options& options, const Text& text,
                   const std::vector<std::vector<float>>& layers);

}  // namespace trainer
