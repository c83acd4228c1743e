// The library's settings for checkpoints, for both kinds of runs.
#pragma once

#include <string>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"

namespace trainer {

// Returns the settings of checkpoints that `options` give. Sets neither the directory nor the name.
entrain_checkpoint_config_t CheckpointConfig(const Options& options);

// Splits a user's path, DIR/NAME.ckpt, for the library.
struct CheckpointPath {
  explicit CheckpointPath(const std::string& path);
  std::string directory, name;
};

}  // namespace trainer
