// State that the device calls of one communicator share: the device, streams, page-locked memory,
// and the result of the meeting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/call.h"
#include "lib/device/calls/node_groups.h"
#include "lib/device/device.h"
#include "lib/device/offload.h"
#include "lib/device/pools.h"

namespace entrain {

struct PartGroup;

// The methods that this process may offer besides the staged method.
struct DeviceWays {
  bool direct = true;
  OffloadLibrary* library = nullptr;      // null: none
  bool whole = true, node_groups = true;  // the methods that may use the library
};

// A communicator of the library. A thread must hold the mutex when it calls a function other than
// Abort and Gone.
struct DeviceOffload {
  const std::unique_ptr<Offload> offload;
  absl::Mutex mutex;
};

class DeviceSide {
 public:
  // `shape` is nullopt if the ranks form no node groups.
  static absl::StatusOr<std::unique_ptr<DeviceSide>> Open(Device& device, const DeviceWays& ways,
                                                          const std::optional<NodeGroups>& shape);
  ~DeviceSide();

  Device& device() { return device_; }
  const DeviceWays& ways() const { return ways_; }
  const std::optional<NodeGroups>& shape() const { return shape_; }
  BlockPool& pinned() { return pinned_; }
  BlockPool& scratch() { return scratch_; }
  WordPool& words() { return words_; }
  // Streams that this object owns: for copies to the host, for copies to the device, and for
  // kernels and offloaded calls.
  StreamHandle copy_in() const { return streams_[0]; }
  StreamHandle copy_out() const { return streams_[1]; }
  StreamHandle work() const { return streams_[2]; }

  // ---- The result of the meeting. Written once, by the runner.
  struct Ways {
    bool direct = false;
    std::vector<bool> here;  // by rank: whether the rank is in this process
    // A communicator of the library, for all ranks or for this rank's node group. Null if the ranks
    // could form neither of them.
    std::unique_ptr<Offload> offload;
    bool whole = false;           // `offload` covers all ranks
    PartGroup* across = nullptr;  // ranks that have this rank's index in their node groups
  };
  void Met(Ways ways);
  bool met() const { return met_.load(std::memory_order_acquire); }
  // The functions below must not be called before met() returns true.
  bool direct() const { return met_ways_.direct; }
  bool Here(int rank) const { return met_ways_.here[static_cast<size_t>(rank)]; }
  // whole and node_groups return null if there is no such communicator.
  DeviceOffload* whole() const { return met_ways_.whole ? offload_.get() : nullptr; }
  DeviceOffload* node_groups() const { return met_ways_.whole ? nullptr : offload_.get(); }
  PartGroup* across() const { return met_ways_.across; }
  // Makes the offloaded calls end soon.
  void AbortOffload() const;

  // ---- Called by the thread that starts a call, when no call is under way
  // Closes memory that other ranks have freed. Does nothing if other ranks of this process may have
  // calls on the device, because closing would wait for those calls.
  void CloseStale();

  // ---- Called by the runner
  // Returns the address, in this process, of memory that a rank of another process has exported.
  // Opens the memory at first use and keeps it open, because closing waits for all streams of the
  // device. If the addresses overlap those of memory that was opened before, the rank has freed
  // that earlier memory. CloseStale closes it.
  absl::StatusOr<std::byte*> Address(int rank, const DeviceExport& memory);
  // Returns device memory that other ranks try to open, as a test.
  void* sample() const { return sample_.data; }

 private:
  DeviceSide(Device& device, const DeviceWays& ways, const std::optional<NodeGroups>& shape)
      : device_(device),
        ways_(ways),
        shape_(shape),
        pinned_(device, MemoryKind::kHostPinned),
        scratch_(device, MemoryKind::kDevice),
        words_(device) {}

  struct Opened {
    int rank;
    DeviceExport memory;
    std::byte* base;
  };

  Device& device_;
  const DeviceWays ways_;
  const std::optional<NodeGroups> shape_;
  BlockPool pinned_, scratch_;
  WordPool words_;
  StreamHandle streams_[3] = {};
  std::atomic<bool> met_{false};
  Ways met_ways_;
  std::unique_ptr<DeviceOffload> offload_;
  BlockPool::Block sample_;
  std::vector<Opened> opened_;
  absl::Mutex mutex_;
  std::vector<DeviceExport> stale_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
