// State that the device calls of one communicator share: the device, streams, page-locked memory,
// and the result of the meeting.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/device/device.h"
#include "lib/device/offload.h"
#include "lib/device/pools.h"

namespace entrain {

// A communicator of the library. A thread must hold the mutex when it calls a function other than
// Abort and Gone.
struct DeviceOffload {
  const std::unique_ptr<Offload> offload;
  absl::Mutex mutex;
};

class DeviceSide {
 public:
  // `library`: the library that this process may use. Null: all calls are staged.
  static absl::StatusOr<std::unique_ptr<DeviceSide>> Open(Device& device, OffloadLibrary* library);
  ~DeviceSide();

  Device& device() { return device_; }
  OffloadLibrary* library() const { return library_; }
  BlockPool& pinned() { return pinned_; }
  BlockPool& scratch() { return scratch_; }
  WordPool& words() { return words_; }
  // Streams that this object owns: for copies to the host, for copies to the device, and for
  // offloaded calls.
  StreamHandle copy_in() const { return streams_[0]; }
  StreamHandle copy_out() const { return streams_[1]; }
  StreamHandle work() const { return streams_[2]; }

  // ---- The result of the meeting. Written once, by the runner.
  // `offload`: a communicator of the library for all ranks. Null if the ranks could not form it.
  void Met(std::unique_ptr<Offload> offload);
  bool met() const { return met_.load(std::memory_order_acquire); }
  // Must not be called before met() returns true. Null: all calls are staged.
  DeviceOffload* offload() const { return offload_.get(); }
  // Makes the offloaded calls end soon.
  void AbortOffload() const;

 private:
  DeviceSide(Device& device, OffloadLibrary* library)
      : device_(device),
        library_(library),
        pinned_(device, MemoryKind::kHostPinned),
        scratch_(device, MemoryKind::kDevice),
        words_(device) {}

  Device& device_;
  OffloadLibrary* const library_;
  BlockPool pinned_, scratch_;
  WordPool words_;
  StreamHandle streams_[3] = {};
  std::atomic<bool> met_{false};
  std::unique_ptr<DeviceOffload> offload_;
};

}  // namespace entrain
