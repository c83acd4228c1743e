// What a sparsified contribution keeps of a vector, and hashes, found on the device.
#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/status.h"
#include "lib/device/cuda/launch.h"
#include "lib/kernels/packing.h"

namespace entrain {
namespace {

using device_loops::DigitsArgs;
using device_loops::GatherArgs;
using device_loops::HashArgs;
using device_loops::KeepArgs;
using device_loops::MarkArgs;
using device_loops::TiesArgs;

KeepArgs KeepArgsOf(DType dtype, void* dst, const void* x, int64_t count) {
  const int64_t element = SizeOf(dtype);
  KeepArgs args = {};
  args.range = RangeOf(count, 16 / element, {{dst, element}, {x, element}});
  args.out = dst;
  args.in = x;
  return args;
}

absl::Status LaunchKeep(CudaDevice& device, KernelId first, DType dtype, const KeepArgs& args,
                        StreamHandle stream) {
  const int64_t element = SizeOf(dtype);
  return device.Launch(OfWidth(first, element), &args, BlocksOf(device, args.range, 16 / element),
                       stream);
}

// The search for the k-th largest magnitude of a vector.
class Search {
 public:
  Search(CudaDevice& device, ResultRoom room, DType dtype, const void* x, int64_t count,
         StreamHandle stream, Deadline give_up)
      : device_(device),
        room_(room),
        element_(SizeOf(dtype)),
        x_(static_cast<const char*>(x)),
        count_(count),
        stream_(stream),
        give_up_(give_up) {}
  ~Search() { device_.PutBack(room_, late_); }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  absl::Status Find(int64_t k) {
    ties_ = k;
    uint64_t known = 0, equal = 0;
    for (int64_t low = 8 * element_ - 1; low > 0;) {
      low = std::max<int64_t>(0, low - 8);
      ENTRAIN_RETURN_IF_ERROR(CountDigits(known, static_cast<int32_t>(low)));
      uint64_t counts[256];
      std::memcpy(counts, room_.words, sizeof(counts));
      uint64_t digit = 255;
      for (; digit > 0 && counts[digit] < static_cast<uint64_t>(ties_); --digit) {
        ties_ -= static_cast<int64_t>(counts[digit]);
      }
      threshold_ |= digit << low;
      known |= uint64_t{0xff} << low;
      equal = counts[digit];
    }
    cut_ = count_;
    return equal == static_cast<uint64_t>(ties_) ? absl::OkStatus() : FindCut();
  }
  uint64_t threshold() const { return threshold_; }
  int64_t cut() const { return cut_; }

 private:
  absl::Status Await() {
    ENTRAIN_RETURN_IF_ERROR(device_.Record(room_.done, stream_));
    const absl::Status waited = device_.Wait(room_.done, give_up_);
    late_ = !waited.ok();
    return waited;
  }

  absl::Status CountDigits(uint64_t known, int32_t low) {
    constexpr int64_t kBytes = 256 * sizeof(uint64_t);
    DigitsArgs args = {};
    args.range = RangeOf(count_, 16 / element_, {{x_, element_}});
    args.in = x_;
    args.known = known;
    args.threshold = threshold_;
    args.low = low;
    args.counts = static_cast<uint64_t*>(room_.device_words);
    ENTRAIN_RETURN_IF_ERROR(device_.Fill(room_.device_words, 0, kBytes, stream_));
    const int blocks =
        std::min(BlocksOf(device_, args.range, 16 / element_), device_loops::kMostBlocks);
    ENTRAIN_RETURN_IF_ERROR(
        device_.Launch(OfWidth(KernelId::digits_1, element_), &args, blocks, stream_));
    ENTRAIN_RETURN_IF_ERROR(device_.Copy(room_.words, room_.device_words, kBytes, stream_));
    return Await();
  }

  // The place behind the last element at the threshold that is kept: that of the ties_-th of them.
  absl::Status FindCut() {
    int64_t begin = 0, length = count_;
    while (length > 1) {
      TiesArgs args = {};
      args.range = {length, 0};
      args.in = x_ + begin * element_;
      args.threshold = threshold_;
      args.part = (length + device_loops::kMostBlocks - 1) / device_loops::kMostBlocks;
      args.results = room_.words;
      const int64_t blocks = (length + args.part - 1) / args.part;
      ENTRAIN_RETURN_IF_ERROR(device_.Launch(OfWidth(KernelId::ties_1, element_), &args,
                                             static_cast<int>(blocks), stream_));
      ENTRAIN_RETURN_IF_ERROR(Await());
      int64_t block = 0;
      for (; block + 1 < blocks && room_.words[block] < static_cast<double>(ties_); ++block) {
        ties_ -= static_cast<int64_t>(room_.words[block]);
      }
      begin += block * args.part;
      length = std::min(args.part, length - block * args.part);
    }
    cut_ = begin + 1;
    return absl::OkStatus();
  }

  CudaDevice& device_;
  const ResultRoom room_;
  const int64_t element_;
  const char* const x_;
  const int64_t count_;
  const StreamHandle stream_;
  const Deadline give_up_;
  bool late_ = false;
  uint64_t threshold_ = 0;
  int64_t ties_ = 0, cut_ = 0;
};

struct ToPack {
  DType dtype;
  const void* x;
  int64_t count;
  uint64_t* words;
  void* values;
  Deadline give_up;
};

absl::StatusOr<int64_t> PackInto(CudaDevice& device, const ResultRoom& room, const ToPack& what,
                                 StreamHandle stream) {
  const auto await = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(device.Record(room.done, stream));
    return device.Wait(room.done, what.give_up);
  };
  const int64_t element = SizeOf(what.dtype), words = (what.count + 63) / 64;
  // A thread has a word at least.
  const int64_t part = std::max<int64_t>(
      device_loops::kThreads, (words + device_loops::kMostBlocks - 1) / device_loops::kMostBlocks);
  const auto blocks = static_cast<int>((words + part - 1) / part);
  const MarkArgs mark = {{what.count, 0}, what.x, part, what.words, room.words};
  ENTRAIN_RETURN_IF_ERROR(device.Launch(OfWidth(KernelId::mark_1, element), &mark, blocks, stream));
  ENTRAIN_RETURN_IF_ERROR(await());
  double found = 0;
  for (int block = 0; block < blocks; ++block) {
    const double here = std::exchange(room.words[block], found);
    found += here;
  }
  const GatherArgs gather = {{what.count, 0}, what.x, part, what.words, room.words, what.values};
  ENTRAIN_RETURN_IF_ERROR(
      device.Launch(OfWidth(KernelId::gather_1, element), &gather, blocks, stream));
  // Who takes the room next writes to it.
  ENTRAIN_RETURN_IF_ERROR(await());
  return static_cast<int64_t>(found);
}

}  // namespace

absl::Status CudaDevice::KeepLargest(DType dtype, void* dst, const void* x, int64_t count,
                                     int64_t k, StreamHandle stream, Deadline give_up) {
  if (k == count) {
    return Copy(dst, x, count * SizeOf(dtype), stream);
  }
  if (k == 0) {
    return Fill(dst, 0, count * SizeOf(dtype), stream);
  }
  ENTRAIN_ASSIGN_OR_RETURN(const ResultRoom room, TakeRoom());
  Search search(*this, room, dtype, x, count, stream, give_up);
  ENTRAIN_RETURN_IF_ERROR(search.Find(k));
  KeepArgs args = KeepArgsOf(dtype, dst, x, count);
  args.threshold = search.threshold();
  args.cut = search.cut();
  return LaunchKeep(*this, KernelId::keep_largest_1, dtype, args, stream);
}

absl::Status CudaDevice::KeepRandom(DType dtype, void* dst, const void* x, int64_t first,
                                    int64_t count, const Draws& draws, uint64_t threshold,
                                    StreamHandle stream) {
  if (count == 0) {
    return CheckNotForked();
  }
  KeepArgs args = KeepArgsOf(dtype, dst, x, count);
  args.threshold = threshold;
  args.key = draws.key();
  args.first = first;
  return LaunchKeep(*this, KernelId::keep_random_1, dtype, args, stream);
}

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

absl::StatusOr<int64_t> CudaDevice::PackNonzero(DType dtype, const void* x, int64_t count,
                                                uint64_t* words, void* values, StreamHandle stream,
                                                Deadline give_up) {
  if (count == 0) {
    return 0;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const ResultRoom room, TakeRoom());
  const auto packed = PackInto(*this, room, {dtype, x, count, words, values, give_up}, stream);
  PutBack(room, !packed.ok());
  return packed;
}

}  // namespace entrain
