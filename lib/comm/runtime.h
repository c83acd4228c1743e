// The objects that a process has once: the engine with its transports, the identity, the key and certificates, the
// buffer pool. Most processes use the default runtime. Ranks that are threads of one process have a
// runtime each.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/device_calls.h"
#include "lib/engine/engine.h"
#include "lib/memory/buffer.h"
#include "lib/memory/shared_regions.h"
#include "lib/net/security.h"
#include "transports/fault_plan.h"

namespace entrain {

// An empty text stands for the environment variable, or else for the default (lib/base/config).
struct RuntimeOptions {
  std::string transports;
  std::string interface_filter;
  std::string ports;
  SecurityPaths security;
  std::string host_id;
  bool own_thread = true;  // false: progress only inside callers
  int engines = 0;
  DeviceCallsFactory device_calls = nullptr;  // null: calls on device memory are refused
};

// Counts how often communicators of each name have been made from each store. Thread safety: any
// thread.
class UseCounts {
 public:
  int Next(const std::string& store_url, const std::string& name);

 private:
  absl::Mutex mutex_;
  std::vector<std::pair<std::string, int>> counts_ ABSL_GUARDED_BY(mutex_);
};

class Runtime {
 public:
  static absl::StatusOr<std::shared_ptr<Runtime>> Create(const RuntimeOptions& options);
  // Returns the process's default runtime. The first use makes it, and its last user destroys it.
  static absl::StatusOr<std::shared_ptr<Runtime>> Default(DeviceCallsFactory device_calls);
  // Ends every open communicator of this runtime. Never waits for the network.
  ~Runtime();

  // Creates the transports if they do not exist. `route_to`: the host of the store, which
  // determines the network interface. Empty: unknown. `rank`: this process's rank in its first
  // communicator, by which ENTRAIN_FAULT may select processes.
  absl::Status EnsureStarted(const std::string& route_to, int rank);

  const PeerId& id() const { return id_; }
  const std::string& host_id() const { return host_id_; }
  const Security& security() const { return security_; }
  BufferPool& pool() { return pool_; }
  // Memory of this process that its peers may map. The runtime frees what is left of it.
  SharedRegions& regions() { return *regions_; }
  // Valid after EnsureStarted.
  Engine& engine() { return *engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_; }
  // Returns UNIMPLEMENTED with the reason if calls on device memory are refused.
  absl::StatusOr<std::unique_ptr<DeviceCalls>> MakeDeviceCalls(
      std::shared_ptr<CommCore> core) const;
  // Returns a number for the next communicator of this name that is made from one store, so that
  // names can be used again. Successive default runtimes of a process continue the same count.
  int NextUse(const std::string& store_url, const std::string& name) {
    return uses_->Next(store_url, name);
  }

 private:
  explicit Runtime(const RuntimeOptions& options);
  absl::Status Start(const std::string& route_to, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RuntimeOptions options_;
  PeerId id_{};
  std::string host_id_;
  Security security_;
  std::vector<std::string> transport_names_;
  std::optional<FaultPlan> fault_;
  // The transports were asked for by name, so it is an error if one is not available.
  bool transports_named_ = false;
  BufferPool pool_;
  const std::shared_ptr<SharedRegions> regions_ = std::make_shared<SharedRegions>();
  absl::Mutex mutex_;
  std::shared_ptr<UseCounts> uses_ = std::make_shared<UseCounts>();
  // Shared with communicators, because threads may still be in a wait.
  std::shared_ptr<Engine> engine_;
};

// Returns boot id + network namespace + IPC namespace. Processes with equal texts can share memory
// and loopback.
std::string ThisHostId();

}  // namespace entrain
