// What the calls of one communicator on device memory share: the device, streams, page-locked memory, and what the
// meeting has found.
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

// Which ways this process may offer, besides staging.
struct DeviceWays {
  bool direct = true;
  OffloadLibrary* library = nullptr;      // null: none
  bool whole = true, node_groups = true;  // what it is for
};

// A library's communicator, and who may talk to it: for everything but Abort, whoever has the lock.
struct DeviceOffload {
  const std::unique_ptr<Offload> offload;
  absl::Mutex mutex;
};

class DeviceSide {
 public:
  // `shape`: nullopt: the ranks form no node groups.
  static absl::StatusOr<std::unique_ptr<DeviceSide>> Open(Device& device, const DeviceWays& ways,
                                                          const std::optional<NodeGroups>& shape);
  ~DeviceSide();

  Device& device() { return device_; }
  const DeviceWays& ways() const { return ways_; }
  const std::optional<NodeGroups>& shape() const { return shape_; }
  BlockPool& pinned() { return pinned_; }
  BlockPool& scratch() { return scratch_; }
  WordPool& words() { return words_; }
  // Streams of ours: copies to the host, copies from it, kernels and offloaded calls.
  StreamHandle copy_in() const { return streams_[0]; }
  StreamHandle copy_out() const { return streams_[1]; }
  StreamHandle work() const { return streams_[2]; }

  // ---- What the meeting found. Written once, by the runner.
  struct Ways {
    bool direct = false;
    std::vector<bool> here;  // by rank: in this process, so that what it has needs no opening
    // Of all ranks; or of this rank's node group, where all node groups have one. Null: none.
    std::unique_ptr<Offload> offload;
    bool whole = false;           // which of the two
    PartGroup* across = nullptr;  // the ranks of its place in the node groups
  };
  void Met(Ways ways);
  bool met() const { return met_.load(std::memory_order_acquire); }
  // Once met.
  bool direct() const { return met_ways_.direct; }
  bool Here(int rank) const { return met_ways_.here[static_cast<size_t>(rank)]; }
  // Null: there is none.
  DeviceOffload* whole() const { return met_ways_.whole ? offload_.get() : nullptr; }
  DeviceOffload* node_groups() const { return met_ways_.whole ? nullptr : offload_.get(); }
  PartGroup* across() const { return met_ways_.across; }
  // What has been offloaded ends soon.
  void AbortOffload() const;

  // ---- Where a call is started, when none is under way
  // Closes what others have freed. Not where other ranks of this process may have calls on the device, for which that
  // would wait.
  void CloseStale();

  // ---- The runner's.
  // What a rank of another process has exported, here: opened at first, and kept, since closing it waits for all streams
  // of the device. What the rank had at these addresses before is gone there: CloseStale's.
  absl::StatusOr<std::byte*> Address(int rank, const DeviceExport& memory);
  // Some device memory for others to try to open.
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
