// Runs a test body as N ranks of one communicator, each with its own runtime. The ranks are either
// threads of this process that meet in an in-process store, so that a sanitizer sees all of them,
// or processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/cpu_quota.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"

namespace entrain {

struct RanksOptions {
  std::string transports = "inproc";  // as ENTRAIN_TRANSPORTS
  std::string algorithms = {};        // as ENTRAIN_ALGORITHMS
  std::string tuning = {};            // as ENTRAIN_TUNING
  Determinism determinism = Determinism::kDefault;
  int64_t timeout_ns = 20 * kSecond;  // of each operation
  bool own_thread = true;             // false: progress only inside calls
  // The host id of each rank. Empty: all ranks are on this host.
  std::function<std::string(int rank)> host_id = {};
  // The core of this process to which each rank's thread is bound. Empty: any core.
  std::function<int(int rank)> core = {};
  // The limit of each rank's CPU time. Empty: no limit.
  std::function<CpuQuota(int rank)> quota = {};
};

using RankBody = std::function<void(const std::shared_ptr<Communicator>& comm)>;

// Runs `body` on every rank, and returns when all bodies have returned. The test fails if a
// communicator cannot be created.
void RunRanks(int size, const RanksOptions& options, const RankBody& body);
inline void RunRanks(int size, const RankBody& body) {
  RunRanks(size, {}, body);
}

// Runs each rank as a process. The caller must have only one thread, and must not have used a
// device yet, because the processes are forked. Blocks until all processes have ended. Returns the
// status of each, as waitpid gives it: 0 if nothing failed.
std::vector<int> RunRankProcesses(int size, const RanksOptions& options, const RankBody& body);

}  // namespace entrain
