// The checkpoints of a run: their settings and names, which of them a run continues from, and which
// of them stay. For both kinds of runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"

namespace trainer {

// Returns the settings of checkpoints that `options` give. Sets neither the directory nor the name.
entrain_checkpoint_config_t CheckpointConfig(const Options& options);

// Splits a user's path, DIR/NAME.ckpt, for the library.
struct CheckpointPath {
  explicit CheckpointPath(const std::string& path);
  std::string directory, name;
};

// Decides how a run begins with --save-dir, and prints it: from --resume, from the newest checkpoint
// of the directory, or anew. Returns the files from which to continue; the first that is whole
// counts. Empty: the run begins anew. Rank 0 looks into the directory. Throws Error on all ranks if
// the run would overwrite checkpoints of an earlier run. Collective.
std::vector<std::string> FilesToResume(const Options& options, Session* session);
// Calls `load` with each of the files, until it does not throw Error. If it throws for all, throws
// the first of these errors. Prints a line for each file that is left out if `prints`. An exact
// checkpoint that a directory offers (not --resume FILE) may have been saved while replicas were
// away, and then fits as a portable one. Returns the options with the kind that was loaded.
Options LoadFirst(const Options& options, const std::vector<std::string>& files, bool prints,
                  const std::function<void(const Options& options, const std::string& file)>& load);

// Runs `save`, which throws the same Error on all ranks if it fails. If it succeeds, removes old
// checkpoints (--keep). If it fails, throws, or with --failed-saves continue prints the error and
// counts it. Collective.
void SaveOrCount(const Options& options, Session* session, const std::string& name, int64_t* failed,
                 const std::function<void()>& save);

// Returns the names of the complete checkpoints in a directory, without ".ckpt", the newest first:
// "step-00000120". The name of a checkpoint ends with a number.
std::vector<std::string> CheckpointsIn(const std::string& directory);
// Removes all checkpoints but the one that was just `saved`, and the newest ones up to `keep`. keep 0:
// removes none. A run that overwrites another one may find files of later steps.
void RemoveOldCheckpoints(const std::string& directory, int64_t keep, const std::string& saved);

}  // namespace trainer
