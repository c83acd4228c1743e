// Finds this process's rank, the number of ranks and the store from the environment variables of a
// launcher: torchrun, Open MPI, MPICH (and Intel MPI), Slurm or Kubernetes. DetectLaunch is a pure
// function of its two look-up functions. It does not read the environment itself.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/comm/launch/launching_process.h"

namespace entrain {

struct Launch {
  // "torchrun", "Open MPI", "MPICH", "Slurm" or "Kubernetes". If the variables of several launchers
  // are set and agree, the first launcher in this order.
  std::string launcher;
  int rank = -1, size = 0;
  int local_rank = -1, local_size = 0;  // on this host; -1 and 0: unknown
  std::string store_url;                // for OpenStore, or for ServeStore when `serve`
  bool serve = false;  // this rank must serve the store at store_url; other ranks open the store
  // Not empty: the store is at store_url or at one of these. The rank that serves takes the first
  // place that is free, because other jobs and programs may have some of the ports.
  std::vector<std::string> other_urls;
  // With other_urls: the text by which ranks know the store of their own job.
  std::string job;
  // A text for messages: which rank serves the store, and where store_url comes from. Empty:
  // store_url is the value of ENTRAIN_STORE.
  std::string store_origin;
  // Differs between jobs, and changes when the job is started again; empty: unknown.
  std::string incarnation;
};

// A text that is the same on all ranks of a job and its newcomers, and differs between jobs. Jobs that
// share a store by mistake are told apart by it.
inline constexpr char kRunId[] = "ENTRAIN_RUN_ID";

// For jobs of entrain-run --elastic. entrain-run sets the environment variable kRestarts of each
// rank to the number of restarts of this rank. If the number is not 0, the process joins the
// communicator of the other ranks. When a process has a communicator, it sets MemberKey(RANK) in
// the store to its number of restarts. From these keys entrain-run knows whether a rank is left
// that can take newcomers in.
inline constexpr char kRestarts[] = "ENTRAIN_RESTARTS";
std::string MemberKey(int rank);
// Returns the prefix of all keys that this start of a job uses in its store; empty if nothing tells
// one start from another.
std::string StartPrefix(const Launch& launch);

// Returns the value of a variable, or nullopt if the variable is unset or empty.
using EnvLookUp = std::function<std::optional<std::string>(const char* name)>;
// Returns a name of the process that started the ranks of this host. See LaunchingProcess.
using ProcessLookUp = std::function<absl::StatusOr<std::string>(const std::string& rank_variable)>;

// Returns the launch of this process. The store is the first entry of this list that applies:
//   ENTRAIN_STORE: another process serves it
//   MASTER_ADDR and MASTER_PORT (set by torchrun or the user): rank 0 serves it at MASTER_ADDR, on
//     the first free one of eight ports that follow from MASTER_PORT (torch itself uses MASTER_PORT).
//     They are in ENTRAIN_PORTS, or from 10000 to 28999. They are never neighbours of MASTER_PORT,
//     because users give these to their next jobs
//   a world of one rank: a store inside this process
//   all ranks on this host: "local:", rank 0 serves it
//   a Slurm step on one node: "local:", rank 0 serves it
//   a Slurm step on several nodes: the first task on the first node serves it there. The port is
//     the first port of SLURM_STEP_RESV_PORTS, or else a port from 20000 to 29999 that is computed
//     from the ids of job and step
//
// Inside a Slurm job, the variables of Slurm may differ from the variables of another launcher in
// two cases. First, Slurm started one task per host, and each task started the ranks of its host.
// The size of the inner job is then the number of tasks times the local size. Second, Slurm started
// no step. The variables of Kubernetes are used only if no other launcher is found. An Indexed Job
// sets JOB_COMPLETION_INDEX in every pod. The Job's manifest must set WORLD_SIZE.
//
//   kFailedPrecondition: no launcher was recognised (the error lists the variables), two launchers
//     disagree on rank or size (the error lists both), there is no store, or the variables of a
//     launcher do not describe this process (a Slurm batch script without srun)
//   kInvalidArgument: a variable is malformed, or is missing although related variables are set.
//     The error names the variable and its value
absl::StatusOr<Launch> DetectLaunch(const EnvLookUp& env,
                                    const ProcessLookUp& launching_process = LaunchingProcess);

// Returns the launch of a process that joins others: only the members that describe the store are set.
// Such a process never serves the store, and needs no rank: ENTRAIN_STORE, or MASTER_ADDR and
// MASTER_PORT, are enough. Errors are those of DetectLaunch.
absl::StatusOr<Launch> DetectStore(const EnvLookUp& env,
                                   const ProcessLookUp& launching_process = LaunchingProcess);

}  // namespace entrain
