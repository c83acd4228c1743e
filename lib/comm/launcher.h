// Who this process is, from the variables that its launcher set: torchrun, Open MPI, MPICH (and
// Intel MPI), Slurm. A pure function of a look-up; nothing here touches the environment itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace entrain {

struct Launch {
  std::string
      launcher;  // "torchrun", "Open MPI", "MPICH", "Slurm"; several that agree: the first of these
  int rank = -1, size = 0;
  int local_rank = -1, local_size = 0;  // on this host; -1 and 0 when the launcher does not say
  std::string store_url;                // for OpenStore, or for ServeStore when `serve`
  bool serve = false;       // this rank must serve the store at store_url, the others open it
  std::string incarnation;  // changes when the job is started again; empty: unknown
};

// The value of a variable, nullopt when it is unset or empty.
using EnvLookUp = std::function<std::optional<std::string>(const char* name)>;

// ENTRAIN_STORE is the store's URL; without it, under torchrun, rank 0 serves at MASTER_ADDR on
// MASTER_PORT + 1 (the port itself is torch's). Slurm may differ from a launcher inside it when its
// tasks count that launcher's hosts (tasks times local size is the inner size), or when it started
// no step.
//   kFailedPrecondition: no launcher recognised (lists what was looked for), two that disagree on
//   rank or size (lists both), no store's URL, or variables of a launcher that cannot be meant (a
//   Slurm batch script without srun) kInvalidArgument: a variable that is malformed or missing
//   beside its partners, named with its value
absl::StatusOr<Launch> DetectLaunch(const EnvLookUp& env);

}  // namespace entrain
