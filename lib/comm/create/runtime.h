// The objects that a process has once: the engine with its transports, the identity, the key and
// certificates, and the buffer pool. Most processes use the default runtime. If several ranks are
// threads of one process, each rank must have its own runtime.
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

#include "lib/comm/create/peer_memory.h"
#include "lib/comm/device_calls.h"
#include "lib/engine/engine.h"
#include "lib/memory/buffer.h"
#include "lib/memory/shared_regions.h"
#include "lib/net/security.h"
#include "transports/settings.h"

namespace entrain {

// If a text is empty, the value of its environment variable is used. If the variable is not set
// either, the default is used (lib/base/config).
struct RuntimeOptions {
  std::string transports;
  std::string interface_filter;
  std::string ports;
  SecurityPaths security;
  std::string host_id;
  bool own_thread = true;  // false: the engine has no thread, and only callers poll
  DeviceCallsFactory device_calls = nullptr;  // null: calls on device memory are refused
};

// Counts the attempts to create communicators, by store and name. Thread safety: any thread.
class UseCounts {
 public:
  // Returns the number of earlier calls with this store and name.
  int Next(const std::string& store_url, const std::string& name);

 private:
  absl::Mutex mutex_;
  std::vector<std::pair<std::string, int>> counts_ ABSL_GUARDED_BY(mutex_);
};

class Runtime {
 public:
  static absl::StatusOr<std::shared_ptr<Runtime>> Create(const RuntimeOptions& options);
  // Returns the process's default runtime. Creates the runtime if it does not exist. The runtime is
  // destroyed when its last user releases it. `device_calls`: see RuntimeOptions. Used only if this
  // call creates the runtime.
  static absl::StatusOr<std::shared_ptr<Runtime>> Default(DeviceCallsFactory device_calls);
  // Returns the use counts of the default runtime. They outlive it, because a store still has the
  // keys of earlier communicators. They exist also if the runtime cannot be made.
  static const std::shared_ptr<UseCounts>& UsesOfDefault();
  // Ends every open communicator of this runtime. Does not wait for the network. Waits for the
  // engine's thread, so the destructor must not run on that thread.
  ~Runtime();

  // Creates and starts the engine and its transports if they do not exist. `route_to`: the host of
  // the store, or empty if it is not known. This host determines the network interface. `rank`:
  // this process's rank in its first communicator. ENTRAIN_FAULT may select processes by this rank.
  absl::Status EnsureStarted(const std::string& route_to, int rank);

  const PeerId& id() const { return id_; }
  const std::string& host_id() const { return host_id_; }
  const Security& security() const { return security_; }
  BufferPool& pool() { return pool_; }
  // Valid after EnsureStarted.
  Engine& engine() { return *engine_; }
  // Valid after EnsureStarted. Returns the memory of this process that peers may map. The runtime
  // frees regions that the user has not freed.
  PeerMemory& memory() { return *memory_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_; }
  // Returns UNIMPLEMENTED with the reason if calls on device memory are refused.
  absl::StatusOr<std::unique_ptr<DeviceCalls>> MakeDeviceCalls(
      std::shared_ptr<CommCore> core) const;
  // Returns the number of earlier attempts of this process to create a communicator of this name in
  // this store. The number is a part of the key in the store, so that the program can use a name
  // again. All default runtimes of a process share one count.
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
  // True: the user has listed the transports. Then a transport that is not available is an error.
  bool transports_named_ = false;
  BufferPool pool_;
  const std::shared_ptr<SharedRegions> regions_ = std::make_shared<SharedRegions>();
  absl::Mutex mutex_;
  std::shared_ptr<UseCounts> uses_ = std::make_shared<UseCounts>();
  // Communicators share the engine, because threads may still wait in their calls when the runtime
  // is destroyed.
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<PeerMemory> memory_;
};

// Returns the boot id, the network namespace and the IPC namespace as a text. Processes with equal
// texts can share memory and can reach each other over loopback.
std::string ThisHostId();

}  // namespace entrain
