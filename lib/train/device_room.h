// What an object of training has on a device: memory and streams, which stay until the object goes:
// whoever frees waits for all streams of the device, and the caller's may wait for us.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"
#include "lib/device/device.h"
#include "lib/device/pools.h"

namespace entrain {

class DeviceRoom {
 public:
  // kInvalidArgument when `callers` is no stream of the device. `limit_ns`: how long the object
  // waits for a stream, at most.
  static absl::StatusOr<std::unique_ptr<DeviceRoom>> Open(Device& device, StreamHandle callers,
                                                          int64_t limit_ns);
  // Of another object, whose calls go with those of `other`: the caller's stream is that of both.
  static std::unique_ptr<DeviceRoom> Beside(const DeviceRoom& other, int64_t limit_ns);
  ~DeviceRoom();

  Device& device() const { return device_; }
  // The caller's stream.
  StreamHandle callers() const { return callers_->load(std::memory_order_acquire); }
  // From now on that is another one, which waits for what is on the one before. kInvalidArgument as in Open.
  absl::Status SetCallers(StreamHandle stream);
  // kInvalidArgument, which calls the array `name`, unless it is memory of the device.
  absl::Status CheckHolds(const char* name, const void* array) const;
  // When who begins to wait now gives up.
  Deadline limit() const { return Deadline::After(limit_ns_); }
  int64_t limit_ns() const { return limit_ns_; }
  absl::StatusOr<StreamHandle> AddStream() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> Keep(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Page-locked, and zero; the device can read and write it.
  absl::StatusOr<std::byte*> KeepPinned(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Memory that is used again: after what the caller's stream had to do when it was given back.
  BlockPool& blocks() { return blocks_; }

 private:
  using Callers = std::atomic<StreamHandle>;
  DeviceRoom(Device& device, std::shared_ptr<Callers> callers, int64_t limit_ns)
      : device_(device),
        callers_(std::move(callers)),
        limit_ns_(limit_ns),
        blocks_(device, MemoryKind::kDevice, BlockPool::Sizes::kExact) {}

  Device& device_;
  const std::shared_ptr<Callers> callers_;  // of all that are beside each other
  const int64_t limit_ns_;
  absl::Mutex mutex_;
  std::vector<StreamHandle> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> memory_ ABSL_GUARDED_BY(mutex_), pinned_ ABSL_GUARDED_BY(mutex_);
  BlockPool blocks_;
};

// A word that streams wait for. It only grows, modulo 2^32. The driver does not see what that
// depends on: who is to set it neither frees nor allocates before, and no stream of ours waits for
// one, so that ours always drain.
class StreamWord {
 public:
  explicit StreamWord(uint32_t* word) : word_(word) {}  // page-locked
  // What follows on the stream waits until the word has come so far.
  absl::Status Hold(Device& device, StreamHandle stream, uint32_t until) const {
    return device.AwaitWord(stream, word_, until);
  }
  // Release: what the host has written for the device is there before the word is.
  void Set(uint32_t value) { __atomic_store_n(word_, value, __ATOMIC_RELEASE); }

 private:
  uint32_t* word_;
};

}  // namespace entrain
