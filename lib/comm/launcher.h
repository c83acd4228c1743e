// Who this process is, from the variables that its launcher set: torchrun, Open MPI, MPICH (and
// Intel MPI), Slurm. A pure function of two look-ups; nothing here touches the environment itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "lib/comm/launching_process.h"

namespace entrain {

struct Launch {
  std::string
      launcher;  // "torchrun", "Open MPI", "MPICH", "Slurm"; several that agree: the first of these
  int rank = -1, size = 0;
  int local_rank = -1, local_size = 0;  // on this host; -1 and 0 when the launcher does not say
  std::string store_url;                // for OpenStore, or for ServeStore when `serve`
  bool serve = false;        // this rank must serve the store at store_url, the others open it
  std::string store_origin;  // who serves it and why there, for messages; empty: ENTRAIN_STORE
  std::string incarnation;   // changes when the job is started again; empty: unknown
};

// The value of a variable, nullopt when it is unset or empty.
using EnvLookUp = std::function<std::optional<std::string>(const char* name)>;
// What names the process that started the ranks of this host, as LaunchingProcess does.
using ProcessLookUp = std::function<absl::StatusOr<std::string>(const std::string& rank_variable)>;

// The store is the first of these that applies:
//   ENTRAIN_STORE, served by somebody else
//   MASTER_ADDR and MASTER_PORT, which torchrun sets, and anybody may: rank 0 serves there, on
//     MASTER_PORT + 1 (the port itself is torch's)
//   a world of one: of this process
//   all ranks on this host: "local:", rank 0 serves
//   a Slurm step: the first task of its first node serves there, on the first of
//     SLURM_STEP_RESV_PORTS, else on a port from 20000 to 29999 by the numbers of job and step
//
// Slurm may differ from a launcher inside it when its tasks count that launcher's hosts (tasks
// times local size is the inner size), or when it started no step.
//
//   kFailedPrecondition: no launcher recognised (lists what was looked for), two that disagree on
//     rank or size (lists both), no store, or variables of a launcher that cannot be meant (a
//     Slurm batch script without srun)
//   kInvalidArgument: a variable that is malformed or missing beside its partners, named with its
//     value
absl::StatusOr<Launch> DetectLaunch(const EnvLookUp& env,
                                    const ProcessLookUp& launching_process = LaunchingProcess);

}  // namespace entrain
