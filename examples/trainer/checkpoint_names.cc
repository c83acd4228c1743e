#include "examples/trainer/checkpoint_names.h"

#include <algorithm>

namespace trainer {

entrain_checkpoint_config_t CheckpointConfig(const Options& options) {
  entrain_checkpoint_config_t config;
  entrain_checkpoint_config_init(&config);
  config.kind =
      options.checkpoint_kind == "exact" ? ENTRAIN_CHECKPOINT_EXACT : ENTRAIN_CHECKPOINT_PORTABLE;
  config.full_state_dict = options.full_state_dict ? 1 : 0;
  config.rank0_only = options.rank0_only ? 1 : 0;
  return config;
}

CheckpointPath::CheckpointPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  directory = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::string ending = ".ckpt";
  if (name.size() > ending.size() && name.substr(name.size() - ending.size()) == ending) {
    name.resize(name.size() - ending.size());
  }
}

}  // namespace trainer
