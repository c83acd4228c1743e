// Runs a test body as N ranks of one communicator. Ranks are threads of this process, each with a
// runtime of its own, and meet in an in-process store; so a sanitizer sees all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>

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
};

// Returns when all bodies have returned. A communicator that cannot be created fails the test.
void RunRanks(int size, const RanksOptions& options,
              const std::function<void(const std::shared_ptr<Communicator>& comm)>& body);
inline void RunRanks(int size,
                     const std::function<void(const std::shared_ptr<Communicator>& comm)>& body) {
  RunRanks(size, {}, body);
}

}  // namespace entrain
