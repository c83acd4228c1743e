// The memory and the streams of a training object on a device. They are kept until the object is
// destroyed, because freeing memory or a stream waits for all streams of the device. The caller's
// streams may in turn wait for the library.
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
  // Returns kInvalidArgument if `callers`, the caller's stream, is not a stream of the device.
  // `limit_ns` is the time limit of each wait of the training object for a stream.
  static absl::StatusOr<std::unique_ptr<DeviceRoom>> Open(Device& device, StreamHandle callers,
                                                          int64_t limit_ns);
  // Makes the DeviceRoom of another training object. Both objects use the same caller's stream.
  static std::unique_ptr<DeviceRoom> Beside(const DeviceRoom& other, int64_t limit_ns);
  ~DeviceRoom();

  Device& device() const { return device_; }
  // Returns the caller's stream.
  StreamHandle callers() const { return callers_->load(std::memory_order_acquire); }
  // Makes `stream` the caller's stream. Later work on `stream` waits for the work on the previous
  // stream. Returns kInvalidArgument if `stream` is not a stream of the device.
  absl::Status SetCallers(StreamHandle stream);
  // Returns kInvalidArgument if `array` is not memory of the device. The error contains `name` as
  // the name of the array.
  absl::Status CheckHolds(const char* name, const void* array) const;
  // Returns the deadline of a wait that begins now.
  Deadline limit() const { return Deadline::After(limit_ns_); }
  int64_t limit_ns() const { return limit_ns_; }
  absl::StatusOr<StreamHandle> AddStream() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> Keep(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns zeroed page-locked memory that the device can read and write.
  absl::StatusOr<std::byte*> KeepPinned(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns a pool of reusable blocks. The next user of a block is ordered after the work that the
  // caller's stream had when the block was given back.
  BlockPool& blocks() { return blocks_; }

 private:
  using Callers = std::atomic<StreamHandle>;
  DeviceRoom(Device& device, std::shared_ptr<Callers> callers, int64_t limit_ns)
      : device_(device),
        callers_(std::move(callers)),
        limit_ns_(limit_ns),
        blocks_(device, MemoryKind::kDevice, BlockPool::Sizes::kExact) {}

  Device& device_;
  const std::shared_ptr<Callers> callers_;  // shared with objects made by Beside
  const int64_t limit_ns_;
  absl::Mutex mutex_;
  std::vector<StreamHandle> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> memory_ ABSL_GUARDED_BY(mutex_), pinned_ ABSL_GUARDED_BY(mutex_);
  BlockPool blocks_;
};

// A 32-bit word in page-locked memory, for which streams wait. Its value only grows, modulo 2^32. A
// thread that will set the word must neither free nor allocate device memory before it has set the
// word. The driver may wait for streams in such a call, because it does not know that this thread
// must set the word. No stream of the library waits for a word, so all work on the library's
// streams finishes.
class StreamWord {
 public:
  explicit StreamWord(uint32_t* word) : word_(word) {}  // page-locked
  // Makes later work on the stream wait until the value of the word is at least `until`.
  absl::Status Hold(Device& device, StreamHandle stream, uint32_t until) const {
    return device.AwaitWord(stream, word_, until);
  }
  // Stores with release order, so that the device sees the host's earlier writes before it sees the
  // new value.
  void Set(uint32_t value) { __atomic_store_n(word_, value, __ATOMIC_RELEASE); }

 private:
  uint32_t* word_;
};

}  // namespace entrain
