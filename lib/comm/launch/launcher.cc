#include "lib/comm/launch/launcher.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"
#include "lib/comm/launch/node_list.h"
#include "lib/net/listener.h"

namespace entrain {
namespace {

// The environment variables of one launcher. Null: the launcher has no such variable. If a size has
// several variables, the first variable that is set counts.
struct Kind {
  const char* name;
  const char* rank;
  std::vector<const char*> size;
  const char* local_rank;
  std::vector<const char*> local_size;
  std::vector<const char*> incarnation;  // the values of the variables that are set, joined by '.'
};

const std::vector<Kind>& Kinds() {
  static const auto* kinds = new std::vector<Kind>{
      {"torchrun",
       "RANK",
       {"WORLD_SIZE"},
       "LOCAL_RANK",
       {"LOCAL_WORLD_SIZE"},
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       {"OMPI_COMM_WORLD_SIZE"},
       "OMPI_COMM_WORLD_LOCAL_RANK",
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"PMIX_NAMESPACE"}},
      {"MPICH", "PMI_RANK", {"PMI_SIZE"}, "MPI_LOCALRANKID", {"MPI_LOCALNRANKS"}, {"PMI_JOBID"}},
      {"Slurm",
       "SLURM_PROCID",
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       "SLURM_LOCALID",
       {},
       {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
      {"Kubernetes", "JOB_COMPLETION_INDEX", {"WORLD_SIZE"}, nullptr, {}, {}},
  };
  return *kinds;
}

const Kind& KindOf(absl::string_view launcher) {
  return *std::find_if(Kinds().begin(), Kinds().end(),
                       [&](const Kind& kind) { return kind.name == launcher; });
}

// Returns the value of a variable as an integer in [low, high]. Returns nullopt if the variable is
// unset, or if `name` is null.
absl::StatusOr<std::optional<int>> Integer(const EnvLookUp& env, const char* name, int low,
                                           int high) {
  const auto text = name == nullptr ? std::nullopt : env(name);
  if (!text.has_value()) {
    return std::optional<int>();
  }
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=\"", *text, "\" is not a whole number from ", low, " to ", high));
  }
  return std::optional<int>(value);
}

constexpr int kPorts = 8;       // number of ports that a store at MASTER_ADDR may have
constexpr int kMost = 1 << 24;  // the largest rank or size that a variable may have

// Returns the value of the first variable of `names` that is set. Writes the variable's name to
// `*used`.
absl::StatusOr<std::optional<int>> FirstInteger(const EnvLookUp& env,
                                                const std::vector<const char*>& names,
                                                const char** used) {
  for (const char* name : names) {
    ENTRAIN_ASSIGN_OR_RETURN(const auto value, Integer(env, name, 1, kMost));
    if (value.has_value()) {
      *used = name;
      return value;
    }
  }
  return std::optional<int>();
}

// Returns true if the variable may have different values on different hosts. A torchrun agent
// counts only its own restarts. So for one start of the job, the agents of several hosts may have
// different counts.
bool DiffersByHost(const EnvLookUp& env, const char* name) {
  const auto agents = env("GROUP_WORLD_SIZE");
  return std::strcmp(name, "TORCHELASTIC_RESTART_COUNT") == 0 && agents.value_or("1") != "1";
}

std::string Incarnation(const EnvLookUp& env, const Kind& kind) {
  std::vector<std::string> parts;
  if (const auto run = env(kRunId); run.has_value()) {
    parts.push_back(*run);
  }
  for (const char* name : kind.incarnation) {
    if (const auto value = env(name); value.has_value() && !DiffersByHost(env, name)) {
      parts.push_back(*value);
    }
  }
  return absl::StrJoin(parts, ".");
}

absl::Status CheckRank(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(rank_name, "=", rank, " is not below ", size_name, "=", size));
  }
  return absl::OkStatus();
}

bool InSlurmStep(const EnvLookUp& env) {
  return env("SLURM_STEP_ID").has_value();
}

// Returns an error if this process is a Slurm batch script. Outside a step, Slurm gives the script
// the variables of task 0 of N tasks, but starts only one process. This process would wait forever
// for the other ranks.
absl::Status CheckSlurmStep(const EnvLookUp& env, int size) {
  if (size > 1 && !InSlurmStep(env)) {
    return absl::FailedPreconditionError(
        absl::StrCat("SLURM_PROCID is set for ", size,
                     " tasks, but SLURM_STEP_ID is not: this is the batch script itself, and Slurm "
                     "started it once; start the ranks with srun"));
  }
  return absl::OkStatus();
}

// Returns the error for a process that has RANK but not LOCAL_RANK. Some Kubernetes operators, for
// example Kubeflow's, set RANK to the index of the node and WORLD_SIZE to the number of nodes.
absl::Status CheckTorchLocalRank(int rank, int size) {
  return absl::InvalidArgumentError(absl::StrCat(
      "RANK=", rank, " and WORLD_SIZE=", size,
      " are set, but LOCAL_RANK is not, so they may count hosts and not processes; start the ranks "
      "with torchrun or entrain-run, or set LOCAL_RANK too"));
}

bool IsTorch(const Launch& launch) {
  return launch.launcher == KindOf("torchrun").name;
}

// Reads the variables of this launcher. Returns nullopt if the launcher's rank variable is not set.
absl::StatusOr<std::optional<Launch>> Detect(const EnvLookUp& env, const Kind& kind) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto rank, Integer(env, kind.rank, 0, kMost));
  if (!rank.has_value()) {
    return std::optional<Launch>();
  }
  Launch launch;
  launch.launcher = kind.name;
  launch.rank = *rank;
  const char* size_name = kind.size.front();
  ENTRAIN_ASSIGN_OR_RETURN(const auto size, FirstInteger(env, kind.size, &size_name));
  if (!size.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(kind.rank, "=", *rank, " is set, but ",
                                                   absl::StrJoin(kind.size, " or "), " is not"));
  }
  launch.size = *size;
  ENTRAIN_RETURN_IF_ERROR(CheckRank(kind.rank, launch.rank, size_name, launch.size));
  ENTRAIN_ASSIGN_OR_RETURN(const auto local_rank, Integer(env, kind.local_rank, 0, kMost));
  if (IsTorch(launch) && !local_rank.has_value()) {
    return CheckTorchLocalRank(launch.rank, launch.size);
  }
  launch.local_rank = local_rank.value_or(-1);
  const char* local_size_name = nullptr;
  ENTRAIN_ASSIGN_OR_RETURN(const auto local_size,
                           FirstInteger(env, kind.local_size, &local_size_name));
  launch.local_size = local_size.value_or(0);
  if (launch.local_size > launch.size) {
    return absl::InvalidArgumentError(absl::StrCat(local_size_name, "=", launch.local_size,
                                                   " is above ", size_name, "=", launch.size));
  }
  if (local_rank.has_value() && local_size.has_value()) {
    ENTRAIN_RETURN_IF_ERROR(CheckRank(kind.local_rank, *local_rank, local_size_name, *local_size));
  }
  launch.incarnation = Incarnation(env, kind);
  return std::optional<Launch>(std::move(launch));
}

std::string Describe(const Launch& launch) {
  return absl::StrCat(launch.launcher, " says rank ", launch.rank, " of ", launch.size);
}

absl::Status NothingFound() {
  const std::string list = absl::StrJoin(Kinds(), "; ", [](std::string* out, const Kind& kind) {
    absl::StrAppend(out, kind.name, ": ", kind.rank, " and ", absl::StrJoin(kind.size, " or "));
  });
  return absl::FailedPreconditionError(
      absl::StrCat("no launcher is recognised in the environment; looked for ", list,
                   ". Start the program with entrain-run -n N PROGRAM, or create the communicator "
                   "from a store, a rank and a size"));
}

bool IsSlurm(const Launch& launch) {
  return launch.launcher == KindOf("Slurm").name;
}

// Returns true if Slurm started one launcher per host and these launchers started the ranks.
// Slurm's variables then count hosts instead of ranks.
bool IsNested(const Launch& inner, const Launch& slurm) {
  return IsSlurm(slurm) && inner.local_size > 0 &&
         int64_t{slurm.size} * inner.local_size == inner.size;
}

bool Agree(const EnvLookUp& env, const Launch& first, const Launch& second) {
  if (first.rank == second.rank && first.size == second.size) {
    return true;
  }
  // Outside a step, Slurm's variables do not describe this process, so any difference is ignored.
  return IsNested(first, second) || (IsSlurm(second) && !InSlurmStep(env));
}

absl::StatusOr<Launch> DetectOne(const EnvLookUp& env) {
  std::optional<Launch> first;
  for (const Kind& kind : Kinds()) {
    if (first.has_value() && kind.name == KindOf("Kubernetes").name) {
      break;  // JOB_COMPLETION_INDEX counts pods, and a pod may run another launcher
    }
    ENTRAIN_ASSIGN_OR_RETURN(auto found, Detect(env, kind));
    if (!found.has_value()) {
      continue;
    }
    if (!first.has_value()) {
      first = std::move(found);
    } else if (!Agree(env, *first, *found)) {
      return absl::FailedPreconditionError(
          absl::StrCat("two launchers disagree: ", Describe(*first), ", ", Describe(*found),
                       "; unset the variables of the one that did not start this process"));
    }
  }
  if (!first.has_value()) {
    return NothingFound();
  }
  if (IsSlurm(*first)) {
    ENTRAIN_RETURN_IF_ERROR(CheckSlurmStep(env, first->size));
  }
  return *std::move(first);
}

// Returns the ports of the store of a job with this MASTER_PORT, in the order in which rank 0 tries
// them. The ports of two jobs are far apart even if their MASTER_PORTs are neighbours.
absl::StatusOr<std::vector<int>> StorePorts(const EnvLookUp& env, int master) {
  constexpr int kLow = 10000, kHigh = 28999;  // below the ports that kernels and users take
  auto range = ParsePorts(env("ENTRAIN_PORTS").value_or(""));
  if (!range.ok()) {
    return Annotate(range.status(), "ENTRAIN_PORTS");
  }
  const int low = range->low == 0 ? kLow : range->low, high = range->low == 0 ? kHigh : range->high;
  const int size = high - low + 1;
  const int start =
      static_cast<int>(static_cast<uint32_t>(master) * 2654435761u % static_cast<uint32_t>(size));
  std::vector<int> ports;
  for (int i = 0; i < std::min(kPorts, size); ++i) {
    if (const int port = low + (start + i) % size; port != master) {
      ports.push_back(port);
    }
  }
  if (ports.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ENTRAIN_PORTS=", low, "-", high, " has no port besides MASTER_PORT for the store"));
  }
  return ports;
}

absl::Status StoreFromMaster(const EnvLookUp& env, Launch* launch) {
  const auto address = env("MASTER_ADDR");
  ENTRAIN_ASSIGN_OR_RETURN(const auto port, Integer(env, "MASTER_PORT", 1, 65535));
  if (!address.has_value() || !port.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("torchrun's ", address.has_value() ? "MASTER_PORT" : "MASTER_ADDR",
                     " is not set; set it, or set ENTRAIN_STORE to the store's URL, for example "
                     "ENTRAIN_STORE=tcp://10.0.0.1:4711"));
  }
  const bool bare_v6 = address->find(':') != std::string::npos && address->front() != '[';
  const std::string host = absl::StrCat(bare_v6 ? "[" : "", *address, bare_v6 ? "]" : "");
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<int> ports, StorePorts(env, *port));
  std::vector<std::string>& urls = launch->other_urls;
  for (const int at : ports) {
    urls.push_back(absl::StrCat("tcp://", host, ":", at));
  }
  launch->store_url = urls.front();
  urls.erase(urls.begin());
  launch->serve = launch->rank == 0;
  launch->job = absl::StrCat("MASTER_PORT ", *port, ", run id \"", env(kRunId).value_or(""), "\"");
  launch->store_origin =
      absl::StrCat("rank 0 serves it at MASTER_ADDR, on the first free port of ",
                   absl::StrJoin(ports, ", "), ", which follow from MASTER_PORT");
  return absl::OkStatus();
}

absl::Status StoreOfThisHost(const ProcessLookUp& launching_process, Launch* launch) {
  const auto process = launching_process(KindOf(launch->launcher).rank);
  if (!process.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        process.status().message(), "; set ENTRAIN_STORE to the URL of one store for all ranks"));
  }
  launch->store_url = absl::StrCat("local:", *process);
  launch->serve = launch->rank == 0;
  launch->store_origin = "rank 0 serves it, for the ranks of this host";
  return absl::OkStatus();
}

// Returns a port for a Slurm step. All tasks of the step get the same port. Other steps almost
// always get other ports.
absl::StatusOr<int> SlurmPort(const EnvLookUp& env) {
  if (const auto reserved = env("SLURM_STEP_RESV_PORTS"); reserved.has_value()) {
    int port = 0;  // the first port of a list like "12000-12003,12010"
    if (!absl::SimpleAtoi(reserved->substr(0, reserved->find_first_of("-,")), &port) || port < 1 ||
        port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("SLURM_STEP_RESV_PORTS=\"", *reserved, "\" does not begin with a port"));
    }
    return port;
  }
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : Incarnation(env, KindOf("Slurm"))) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  }
  return 20000 + static_cast<int>(hash % 10000);
}

// Returns true if the ranks are the tasks of a Slurm step.
bool IsSlurmStep(const EnvLookUp& env, const Launch& launch) {
  const auto slurm = Detect(env, KindOf("Slurm"));
  return InSlurmStep(env) && slurm.ok() && slurm->has_value() && (*slurm)->rank == launch.rank &&
         (*slurm)->size == launch.size;
}

absl::Status StoreFromSlurm(const EnvLookUp& env, const ProcessLookUp& launching_process,
                            Launch* launch) {
  const char* name = env("SLURM_STEP_NODELIST").has_value()  ? "SLURM_STEP_NODELIST"
                     : env("SLURM_JOB_NODELIST").has_value() ? "SLURM_JOB_NODELIST"
                                                             : "SLURM_NODELIST";
  const auto list = env(name);
  if (!list.has_value()) {
    return absl::FailedPreconditionError(
        "this is a Slurm step, but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set, so "
        "there is no telling where to meet; set ENTRAIN_STORE to the URL of one store for all "
        "ranks, for example ENTRAIN_STORE=tcp://10.0.0.1:4711");
  }
  const auto nodes = ExpandNodeList(*list);
  if (!nodes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", nodes.status().message()));
  }
  if (nodes->size() == 1) {
    return StoreOfThisHost(launching_process, launch);
  }
  ENTRAIN_ASSIGN_OR_RETURN(const auto node, Integer(env, "SLURM_NODEID", 0, kMost));
  ENTRAIN_ASSIGN_OR_RETURN(const auto task, Integer(env, "SLURM_LOCALID", 0, kMost));
  ENTRAIN_ASSIGN_OR_RETURN(const int port, SlurmPort(env));
  launch->store_url = absl::StrCat("tcp://", nodes->front(), ":", port);
  // Slurm may place rank 0 on another node than the first. So the first task on the first node
  // serves the store.
  launch->serve =
      node.has_value() && task.has_value() ? *node == 0 && *task == 0 : launch->rank == 0;
  launch->store_origin =
      absl::StrCat("the first task on ", nodes->front(), ", the first of ", name, ", serves it");
  return absl::OkStatus();
}

absl::Status FindStore(const EnvLookUp& env, const ProcessLookUp& launching_process,
                       Launch* launch) {
  if (const auto url = env("ENTRAIN_STORE"); url.has_value()) {
    launch->store_url = *url;
    return absl::OkStatus();
  }
  if (IsTorch(*launch) || (env("MASTER_ADDR").has_value() && env("MASTER_PORT").has_value())) {
    return StoreFromMaster(env, launch);
  }
  if (launch->size == 1) {
    launch->store_url = "mem:launched-alone";
    return absl::OkStatus();
  }
  if (launch->local_size == launch->size) {
    return StoreOfThisHost(launching_process, launch);
  }
  if (IsSlurmStep(env, *launch)) {
    return StoreFromSlurm(env, launching_process, launch);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "started by ", launch->launcher, " as rank ", launch->rank, " of ", launch->size,
      launch->local_size > 0 ? absl::StrCat(", of which ", launch->local_size, " on this host")
                             : "",
      ", but nothing says where to meet: give all ranks MASTER_ADDR and MASTER_PORT, the host of "
      "rank 0 and a port that is free there with the next, or ENTRAIN_STORE, the URL of one store, "
      "for example ENTRAIN_STORE=tcp://10.0.0.1:4711, or file:DIRECTORY on one machine"));
}

}  // namespace

std::string MemberKey(int rank) {
  return absl::StrCat("entrain/launcher/member/", rank);
}

std::string StartPrefix(const Launch& launch) {
  return launch.incarnation.empty() ? "" : absl::StrCat("start.", launch.incarnation, "/");
}

absl::StatusOr<Launch> DetectLaunch(const EnvLookUp& env, const ProcessLookUp& launching_process) {
  ENTRAIN_ASSIGN_OR_RETURN(Launch launch, DetectOne(env));
  ENTRAIN_RETURN_IF_ERROR(FindStore(env, launching_process, &launch));
  return launch;
}

absl::StatusOr<Launch> DetectStore(const EnvLookUp& env, const ProcessLookUp& launching_process) {
  absl::StatusOr<Launch> launch = DetectLaunch(env, launching_process);
  if (!launch.ok()) {
    Launch alone;
    alone.incarnation = env(kRunId).value_or("");
    if (const auto url = env("ENTRAIN_STORE"); url.has_value()) {
      alone.store_url = *url;
    } else if (env("MASTER_ADDR").has_value() && env("MASTER_PORT").has_value()) {
      ENTRAIN_RETURN_IF_ERROR(StoreFromMaster(env, &alone));
    } else {
      return launch;
    }
    launch = std::move(alone);
  }
  launch->serve = false;
  return launch;
}

}  // namespace entrain
