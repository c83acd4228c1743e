// Memory for the deltas in flight. On the host the memory comes from a pool. On a device Reserve
// fixes the number of deltas.
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

  // `room`, if not null, must outlive this object. `most` is the number of elements of the longest
  // delta.
  DeltaBuffers(DeviceRoom* room, int64_t most);

  // Must be called on a device only. Allocates memory for `deltas` deltas that are taken at the
  // same time. Returns the address of one of these deltas.
  absl::StatusOr<float*> Reserve(int deltas);
  absl::StatusOr<Delta> Take(int64_t count);
  // Gives a delta back. On a device, the next user of its memory must be ordered behind the work
  // that is enqueued so far.
  void Give(Delta delta);
  // Frees the memory that the host pool keeps. Must not be called while a delta is taken.
  void Clear() { pool_.Clear(); }

 private:
  DeviceRoom* const room_;
  const int64_t most_;
  BufferPool pool_;
  std::vector<float*> idle_;  // on a device
};

}  // namespace entrain
