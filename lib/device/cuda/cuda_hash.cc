// Hashes device memory on the device.
#include <algorithm>

#include "lib/base/status.h"
#include "lib/device/cuda/launch.h"

namespace entrain {

using device_loops::HashArgs;

absl::StatusOr<uint64_t> CudaDevice::Hash(const void* words, int64_t count, StreamHandle stream,
                                          Deadline give_up) {
  if (count == 0) {
    return 0;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const ResultRoom room, TakeRoom());
  HashArgs args = {};
  args.range = {count, 0};
  args.words = static_cast<const uint32_t*>(words);
  args.results = reinterpret_cast<uint64_t*>(room.words);
  const int blocks =
      static_cast<int>(std::min<int64_t>(BlocksFor(count / 4), device_loops::kMostBlocks));
  absl::Status status = Launch(KernelId::hash_words, &args, blocks, stream);
  status.Update(status.ok() ? Record(room.done, stream) : status);
  status.Update(status.ok() ? Wait(room.done, give_up) : status);
  uint64_t hash = 0;
  for (int i = 0; status.ok() && i < blocks; ++i) {
    hash += args.results[i];
  }
  PutBack(room, !status.ok());
  return status.ok() ? absl::StatusOr<uint64_t>(hash) : status;
}

}  // namespace entrain
