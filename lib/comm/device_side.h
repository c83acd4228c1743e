// What the calls of one communicator on device memory share: the device, streams, page-locked memory, and what the
// meeting has found.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/device/device.h"
#include "lib/device/offload.h"

namespace entrain {

// Which ways this process may offer, besides staging.
struct DeviceWays {
  bool direct = true;
  OffloadLibrary* library = nullptr;  // null: none
};

// Page-locked memory for reuse; all of it is freed with the pool. Thread safety: any thread.
class PinnedPool {
 public:
  explicit PinnedPool(Device& device) : device_(device) {}
  ~PinnedPool();
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  // At least so many bytes; of 0: null.
  absl::StatusOr<Block> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(Block block) ABSL_LOCKS_EXCLUDED(mutex_);
  // A word that streams may wait for. Its last waiter may still look at it when it is given back, so it only grows.
  absl::StatusOr<uint32_t*> TakeWord() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveWord(uint32_t* word) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Device& device_;
  absl::Mutex mutex_;
  std::vector<Block> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t*> words_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> of_words_ ABSL_GUARDED_BY(mutex_);
};

class DeviceSide {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceSide>> Open(Device& device, const DeviceWays& ways);
  ~DeviceSide();

  Device& device() { return device_; }
  const DeviceWays& ways() const { return ways_; }
  PinnedPool& pinned() { return pinned_; }
  // Streams that wait for nobody: copies to the host, copies from it, kernels and what is handed over.
  StreamHandle copy_in() const { return streams_[0]; }
  StreamHandle copy_out() const { return streams_[1]; }
  StreamHandle work() const { return streams_[2]; }

  // ---- What the meeting found. Written once, by the runner.
  void Met(bool direct, std::vector<bool> here, std::unique_ptr<Offload> offload);
  bool met() const { return met_.load(std::memory_order_acquire); }
  // Once met.
  bool direct() const { return direct_; }
  // Whether a rank is in this process: what it has needs no opening.
  bool Here(int rank) const { return here_[static_cast<size_t>(rank)]; }
  // To be used with the lock held, but for Abort; null: none.
  Offload* offload() const { return offload_.get(); }
  absl::Mutex& offload_mutex() { return offload_mutex_; }

  // ---- The runner's. Whoever frees device memory, or closes what another process has exported, waits for all streams
  // of the device, and some wait for calls: so both are kept as long as the communicator lives.
  // What another process has exported, here: opened at first.
  absl::StatusOr<std::byte*> Address(const DeviceExport& memory);
  // Device memory for what must not be written where it belongs yet; one user at a time.
  absl::StatusOr<void*> Scratch(int64_t bytes);

 private:
  DeviceSide(Device& device, const DeviceWays& ways)
      : device_(device), ways_(ways), pinned_(device) {}

  struct Opened {
    DeviceExport memory;
    std::byte* base;
  };

  Device& device_;
  const DeviceWays ways_;
  PinnedPool pinned_;
  StreamHandle streams_[3] = {};
  std::atomic<bool> met_{false};
  bool direct_ = false;
  std::vector<bool> here_;  // by rank
  std::unique_ptr<Offload> offload_;
  absl::Mutex offload_mutex_;
  std::vector<Opened> opened_;
  std::vector<void*> scratch_;  // the last is the largest
  int64_t scratch_bytes_ = 0;
};

}  // namespace entrain
