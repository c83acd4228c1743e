// Runs a test body as N ranks of one communicator, each with a runtime of its own: as threads of this
// process, which meet in an in-process store, so that a sanitizer sees all of them; or as processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/cpu_quota.h"
#include "lib/comm/communicator.h"
#include "lib/comm/runtime.h"

namespace entrain {

struct RanksOptions {
  std::string transports = "inproc";  // as ENTRAIN_TRANSPORTS
  std::string algorithms = {};        // as ENTRAIN_ALGORITHMS
  std::string tuning = {};            // as ENTRAIN_TUNING
  Determinism determinism = Determinism::kDefault;
  int64_t timeout_ns = 20 * kSecond;  // of every operation
  bool own_thread = true;             // false: progress only inside calls
  // Host id of each rank; empty: all on this host.
  std::function<std::string(int rank)> host_id = {};
  // Which of this process's cores each rank's thread stays on; empty: any.
  std::function<int(int rank)> core = {};
  // What limits each rank's CPU time; empty: nothing.
  std::function<CpuQuota(int rank)> quota = {};
};

using RankBody = std::function<void(const std::shared_ptr<Communicator>& comm)>;

// Returns when all bodies have returned. A communicator that cannot be created fails the test.
void RunRanks(int size, const RanksOptions& options, const RankBody& body);
inline void RunRanks(int size, const RankBody& body) {
  RunRanks(size, {}, body);
}

// Each rank a process, forked from the caller's only thread before that has used a device. Returns
// when all have ended: what became of each, as waitpid says; 0 where nothing failed.
std::vector<int> RunRankProcesses(int size, const RanksOptions& options, const RankBody& body);

}  // namespace entrain
