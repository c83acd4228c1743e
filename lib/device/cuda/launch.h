// Launching kernels on the stream that the calling thread has bound. For cuda_kernels.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"

#include "lib/device/cuda/cuda_device.h"

namespace entrain {

// An array that a kernel reads or writes.
struct Operand {
  const void* memory;  // null: not used
  int64_t element;     // bytes
};

// Packs of `width` elements begin where all operands are aligned for them, or nowhere.
device_loops::Range RangeOf(int64_t count, int64_t width, absl::Span<const Operand> operands);

// `first` and the three kernels behind it are of elements of 1, 2, 4 and 8 bytes.
KernelId OfWidth(KernelId first, int64_t bytes);

KernelStream& BoundStream();
CudaDevice& BoundDevice();

// Errors are noted at the stream; false after one, and nothing is done any more. A room that was not awaited to the end is
// put back as late.
bool StartKernel(KernelId kernel, const void* args, int64_t arg_bytes, int64_t blocks);
bool AwaitKernel(const ResultRoom& room);

// Blocks that give every thread one of so many shares.
inline int64_t BlocksFor(int64_t shares) {
  return std::max<int64_t>(1, (shares + device_loops::kThreads - 1) / device_loops::kThreads);
}

// Blocks that go over a range in packs of `width`: at most 64 a processor, which runs 8 or so at a
// time.
inline int BlocksOf(const CudaDevice& device, const device_loops::Range& range, int64_t width) {
  return static_cast<int>(std::min(BlocksFor(std::max(range.head, range.count / width)),
                                   int64_t{device.processors()} * 64));
}

template <typename Args>
bool LaunchKernel(KernelId kernel, const Args& args, int64_t width) {
  return args.range.count == 0 ||
         StartKernel(kernel, &args, sizeof(args), BlocksOf(BoundDevice(), args.range, width));
}

// The sum of the numbers that the blocks write, first to last, once the kernel is done; NaN after
// an error. The grid depends on the count alone, and so does the order.
template <typename Args>
double SumOfKernel(KernelId kernel, Args args, int64_t width) {
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
  const int64_t blocks =
      std::min<int64_t>(BlocksFor(args.range.count / width), device_loops::kMostBlocks);
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
