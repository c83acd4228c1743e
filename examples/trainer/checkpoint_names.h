// What both kinds of runs tell the library about checkpoints.
#pragma once

#include <string>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"

namespace trainer {

// All but the names.
entrain_checkpoint_config_t CheckpointConfig(const Options& options);

// A path as a user gives it, DIR/NAME.ckpt, as the library wants it.
struct CheckpointPath {
  explicit CheckpointPath(const std::string& path);
  std::string directory, name;
};

}  // namespace trainer
