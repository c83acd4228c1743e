// Launches kernels on the stream of the calling thread's KernelStream. For
// cuda_kernels.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"

#include "lib/device/cuda/cuda_device.h"

namespace entrain {

// Returns a range whose packs are aligned in all of these f32 arrays. If there is no such range,
// returns a range without packs. A null array is not used.
device_loops::Range RangeOf(int64_t count, absl::Span<const void* const> arrays);

KernelStream& BoundStream();
CudaDevice& BoundDevice();

// After an error, both functions report it by KernelStream::Note and return false. Then no more
// kernels are started. If a function returns false, the caller must put the room back with `late` =
// true.
bool StartKernel(KernelId kernel, const void* args, int64_t arg_bytes, int64_t blocks);
bool AwaitKernel(const ResultRoom& room);

// Returns the smallest number of blocks, at least 1, with at least `shares` threads.
inline int64_t BlocksFor(int64_t shares) {
  return std::max<int64_t>(1, (shares + device_loops::kThreads - 1) / device_loops::kThreads);
}

// Returns the number of blocks for a range, at most 64 per processor. A processor runs about 8
// blocks at a time.
inline int BlocksOf(const CudaDevice& device, const device_loops::Range& range) {
  return static_cast<int>(
      std::min(BlocksFor(std::max(range.head, range.count / device_loops::kPack)),
               int64_t{device.processors()} * 64));
}

template <typename Args>
void LaunchKernel(KernelId kernel, const Args& args) {
  if (args.range.count > 0) {
    StartKernel(kernel, &args, sizeof(args), BlocksOf(BoundDevice(), args.range));
  }
}

// Runs a kernel, waits for its end, and returns the sum of the blocks' results, added from first to
// last. Returns NaN after an error. The order of all additions depends only on the count, because
// the number of blocks does.
template <typename Args>
double SumOfKernel(KernelId kernel, Args args) {
  if (args.range.count == 0) {
    return 0;
  }
  double total = std::numeric_limits<double>::quiet_NaN();
  const auto room = BoundDevice().TakeRoom();
  if (!room.ok()) {
    BoundStream().Note(room.status());
    return total;
  }
  args.results = room->words;
  const int64_t blocks = std::min<int64_t>(BlocksFor(args.range.count / device_loops::kPack),
                                           device_loops::kMostBlocks);
  const bool done = StartKernel(kernel, &args, sizeof(args), blocks) && AwaitKernel(*room);
  if (done) {
    total = 0;
    for (int64_t i = 0; i < blocks; ++i) {
      total += room->words[i];
    }
  }
  BoundDevice().PutBack(*room, !done);
  return total;
}

}  // namespace entrain
