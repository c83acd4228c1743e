// Memory for the deltas in flight. On the host, a pool provides the memory. On a device, Reserve
// fixes the number of deltas that can be in flight.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/memory/buffer.h"
#include "lib/train/device_room.h"

namespace entrain {

class DeltaBuffers {
 public:
  struct Delta {
    OwnedBuffer host;
    float* data = nullptr;  // in `host` or on a device; null: no delta
  };

  static constexpr int64_t kLeastFreed = 512 << 10;

  // `room` must outlive this object; it is null on the host. `most` is the number of elements of
  // the longest delta.
  DeltaBuffers(DeviceRoom* room, int64_t most);

  // Must be called on a device only, before Take. Allocates memory for `deltas` deltas, which may
  // all be taken at the same time. Returns the address of one of them.
  absl::StatusOr<float*> Reserve(int deltas);
  absl::StatusOr<Delta> Take(int64_t count);
  // Gives a delta back. On a device, the next user of its memory must be ordered after the work
  // that is enqueued now.
  void Give(Delta delta);
  // Frees the unused memory of the host pool, if a delta may have kLeastFreed bytes. Less memory is
  // kept for the next exchange: mapping it anew takes longer than the passes over it. Must not be
  // called while a delta is taken.
  void Clear();

 private:
  DeviceRoom* const room_;
  const int64_t most_;
  BufferPool pool_;
  std::vector<float*> idle_;  // on a device: memory that is not taken
};

}  // namespace entrain
