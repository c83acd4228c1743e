// The defaults of the methods.
#pragma once

#include <entrain/train.h>

#include "examples/trainer/flags.h"

namespace trainer {

// The options of EDiT for this command line, whose values win over the method's, but for the shard; for a model of so
// many layers. Not for methods without EDiT.
entrain_edit_config_t ConfigOf(const Options& options, int layers);

}  // namespace trainer
