// What a process has once: the engine with its transports, the identity, the key, the buffer pool.
// Most processes use the default one; ranks that are threads of one process have one each.
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
#include "transports/fault_plan.h"

namespace entrain {

// Empty texts: the environment's variable, else the default (lib/base/config).
struct RuntimeOptions {
  std::string transports;
  std::string interface_filter;
  std::string ports;
  std::string key_file;
  std::string host_id;
  bool own_thread = true;  // false: progress only inside callers
  int engines = 0;
  DeviceCallsFactory device_calls = nullptr;  // null: calls on device memory are refused
};

// How often communicators of each name have been made from each store. Thread safety: any thread.
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
  // The process's default one: made on first use, kept while anybody holds it.
  static absl::StatusOr<std::shared_ptr<Runtime>> Default(DeviceCallsFactory device_calls);
  // Ends every communicator of it that still stands. Never waits for the network.
  ~Runtime();

  // Creates the transports if that has not been done. `route_to`: the host of the store, to choose
  // the interface that leads there; empty: unknown. `rank`: of this process in its first
  // communicator, by which ENTRAIN_FAULT may tell processes apart.
  absl::Status EnsureStarted(const std::string& route_to, int rank);

  const PeerId& id() const { return id_; }
  const std::string& host_id() const { return host_id_; }
  const std::string& key() const { return key_; }
  BufferPool& pool() { return pool_; }
  // Memory of this process that its peers may map. What is left of it is freed with the runtime.
  SharedRegions& regions() { return *regions_; }
  // After EnsureStarted.
  Engine& engine() { return *engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_; }
  // UNIMPLEMENTED with the reason where calls on device memory are refused.
  absl::StatusOr<std::unique_ptr<DeviceCalls>> MakeDeviceCalls(
      std::shared_ptr<CommCore> core) const;
  // A number for the next communicator of this name that is made from one store, so that names can
  // be used again. The process's default runtimes, one after the other, count on.
  int NextUse(const std::string& store_url, const std::string& name) {
    return uses_->Next(store_url, name);
  }

 private:
  explicit Runtime(const RuntimeOptions& options) : options_(options), pool_(int64_t{256} << 20) {}
  absl::Status Start(const std::string& route_to, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RuntimeOptions options_;
  PeerId id_{};
  std::string host_id_, key_;
  std::vector<std::string> transport_names_;
  std::optional<FaultPlan> fault_;
  bool transports_named_ = false;  // asked for by name: one that cannot be had is an error
  BufferPool pool_;
  const std::shared_ptr<SharedRegions> regions_ = std::make_shared<SharedRegions>();
  absl::Mutex mutex_;
  std::shared_ptr<UseCounts> uses_ = std::make_shared<UseCounts>();
  std::shared_ptr<Engine> engine_;  // shared with communicators, for threads still in a wait
};

// boot id + network namespace + IPC namespace: processes with the same can share memory and
// loopback.
std::string ThisHostId();

}  // namespace entrain
