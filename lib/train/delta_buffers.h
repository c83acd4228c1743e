// Room for the deltas that are under way: on the host of a pool, on a device as many as were reserved.
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
    float* data = nullptr;  // there, or on a device; null: none was taken
  };

  // `room`, if not null, outlives this. `most`: elements of the longest delta.
  DeltaBuffers(DeviceRoom* room, int64_t most);

  // On a device: finds all the memory, for so many deltas at a time. Gives the address of one of them.
  absl::StatusOr<float*> Reserve(int deltas);
  absl::StatusOr<Delta> Take(int64_t count);
  // On a device whoever takes it next uses it behind what has been enqueued so far.
  void Give(Delta delta);
  // None is taken: frees what the host has kept.
  void Clear() { pool_.Clear(); }

 private:
  DeviceRoom* const room_;
  const int64_t most_;
  BufferPool pool_;
  std::vector<float*> idle_;  // on a device
};

}  // namespace entrain
