// The direct method. Every rank opens the buffers of the other ranks, and reads them with its own
// kernels and copies.
//
//  part 0   all_gather of the places of each rank's buffers. Then all inputs are ready.
//  part 1   all_gather: whether each rank could open all buffers.
//  read     Each rank computes its result or, in an all_reduce, its slice of the result.
//  part 2   all_gather as a barrier: all ranks have read. Then inputs may be overwritten.
//  finish   In an all_reduce, each rank copies the other slices. If the result is in scratch
//           memory, the rank copies it to the output.
//  part 3   Only in an all_reduce: a second barrier. Then outputs may be overwritten.
//
// The driver cannot export memory of its pools, nor memory that the program has mapped itself. If a
// rank cannot export its memory, or another rank cannot open it, the call becomes a staged call on
// all ranks, after part 1.
//
// One kernel combines the contributions in rank order, so that all ranks get the same bits.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/contribution.h"
#include "lib/device/calls/device_call.h"
#include "lib/kernels/kernels.h"
#include "lib/kernels/merge.h"

namespace entrain {
namespace {

// The buffers of a rank, as the rank describes them to other ranks. The fields of a missing buffer
// are all 0.
struct Whereabouts {
  DeviceExport in, out;
  uint64_t in_here, out_here;  // addresses, for ranks of the same process
  uint8_t hidden;              // 1: some of the memory cannot be exported
};

// The addresses of a rank's buffers in this process; null if there is none.
struct Buffers {
  std::byte *in = nullptr, *out = nullptr;
};

size_t At(int rank) {
  return static_cast<size_t>(rank);
}

class DirectWay final : public DeviceWay {
 public:
  explicit DirectWay(DeviceCall& call)
      : way_(call),
        call_(call.call()),
        core_(call.core()),
        rank_(core_.rank()),
        size_(core_.size()),
        width_(SizeOf(call_.dtype)),
        all_(At(size_)),
        buffers_(At(size_)),
        done_(call.device()) {}

  bool settled() const override { return false; }

  absl::StatusOr<bool> Step(bool* moved) override {
    while (staged_ == nullptr) {
      bool over = false;
      if (part_.started()) {
        ENTRAIN_ASSIGN_OR_RETURN(over, part_.Over());
      } else {
        ENTRAIN_ASSIGN_OR_RETURN(over, done_.Reached());
      }
      if (!over) {
        return false;
      }
      *moved = true;
      part_.Clear();
      ENTRAIN_ASSIGN_OR_RETURN(const bool finished, Next());
      if (finished) {
        return true;
      }
    }
    return staged_->Step(moved);
  }
  bool Quiet() override {
    return part_.quiet() && done_.quiet() && (staged_ == nullptr || staged_->Quiet());
  }
  const char* WaitsFor() const override {
    return staged_ != nullptr ? staged_->WaitsFor()
           : part_.started()  ? nullptr
                              : "its kernels and copies";
  }

 private:
  enum class Stage { kBegin, kTold, kOpened, kRead, kAllRead, kFinished, kOver };

  absl::StatusOr<bool> Next() {
    switch (at_) {
      case Stage::kBegin:
        at_ = Stage::kTold;
        ENTRAIN_RETURN_IF_ERROR(Tell());
        return false;
      case Stage::kTold:
        at_ = Stage::kOpened;
        ENTRAIN_RETURN_IF_ERROR(Meet(1, FindBuffers()));
        return false;
      case Stage::kOpened:
        at_ = Stage::kRead;
        ENTRAIN_RETURN_IF_ERROR(std::count(marks_.begin(), marks_.end(), 1) == size_
                                    ? OnDevice([this] { return Read(); })
                                    : GiveWay());
        return false;
      case Stage::kRead:
        at_ = Stage::kAllRead;
        ENTRAIN_RETURN_IF_ERROR(Meet(2, true));
        return false;
      case Stage::kAllRead:
        at_ = call_.kind == CallKind::kAllReduce ? Stage::kFinished : Stage::kOver;
        ENTRAIN_RETURN_IF_ERROR(OnDevice([this] { return Complete(); }));
        return false;
      case Stage::kFinished:
        at_ = Stage::kOver;
        ENTRAIN_RETURN_IF_ERROR(Meet(3, true));
        return false;
      case Stage::kOver:
        return true;
    }
    return true;
  }

  // ---- Parts

  absl::Status Tell() {
    Whereabouts& mine = all_[At(rank_)];
    std::memset(static_cast<void*>(&mine), 0, sizeof(mine));
    for (const auto& [buffer, exported, here] :
         {std::tuple(&call_.in, &mine.in, &mine.in_here),
          std::tuple(&call_.out, &mine.out, &mine.out_here)}) {
      if (buffer->bytes == 0) {
        continue;
      }
      *here = reinterpret_cast<uint64_t>(buffer->data);
      const auto made = way_.device().Export(buffer->data);
      Note(made.status());
      mine.hidden = made.ok() ? mine.hidden : 1;
      *exported = made.value_or(DeviceExport());
    }
    return Gather(0, &mine, all_.data(), sizeof(Whereabouts));
  }
  absl::Status Meet(size_t number, bool well) {
    marks_.assign(At(size_), 0);
    marks_[At(rank_)] = well ? 1 : 0;
    return Gather(number, &marks_[At(rank_)], marks_.data(), 1);
  }
  absl::Status Gather(size_t number, void* mine, void* all, size_t bytes) {
    Call part;
    part.kind = CallKind::kAllGather;
    part.count = static_cast<int64_t>(bytes);
    part.in = {mine, part.count, MemoryKind::kHost};
    part.out = {all, part.count * size_, MemoryKind::kHost};
    ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, way_.Launch(number, std::move(part)));
    part_.Set(std::move(work));
    return absl::OkStatus();
  }

  void Note(const absl::Status& why) const {
    if (!why.ok()) {
      ENTRAIN_LOG(kInfo, core_.config().name, ": a direct call is staged: ", why.message());
    }
  }
  // Called on all ranks or on none.
  absl::Status GiveWay() {
    way_.LeaveBehind(kDirectPartsBeforeStaging);
    staged_ = way_.TakeStaged();
    return absl::OkStatus();
  }

  // Finds the addresses of all buffers. Returns true if this succeeds for all buffers. If a buffer
  // cannot be opened, still opens the next ones. So DeviceSide::Address finds all memory that other
  // ranks have freed.
  bool FindBuffers() {
    absl::Status status;
    for (int r = 0; r < size_; ++r) {
      const Whereabouts& theirs = all_[At(r)];
      if (theirs.hidden != 0) {
        return false;
      }
      for (const auto& [found, exported, here] :
           {std::tuple(&buffers_[At(r)].in, &theirs.in, theirs.in_here),
            std::tuple(&buffers_[At(r)].out, &theirs.out, theirs.out_here)}) {
        if (here == 0) {
          continue;
        }
        if (way_.side().Here(r)) {
          *found = reinterpret_cast<std::byte*>(here);
        } else {
          const auto opened = way_.side().Address(r, *exported);
          *found = opened.value_or(nullptr);
          status.Update(opened.status());
        }
      }
    }
    Note(status);
    return status.ok();
  }

  // ---- On the device

  template <typename Body>
  absl::Status OnDevice(Body body) {
    KernelStream stream(way_.device(), way_.side().work());
    absl::Status status = body();
    status.Update(stream.status());
    // behind the enqueued work, also after an error
    status.Update(done_.Record(way_.side().work()));
    return status;
  }

  absl::Status Copy(void* dst, const void* src, int64_t bytes) const {
    return dst == src || bytes == 0 ? absl::OkStatus()
                                    : way_.device().Copy(dst, src, bytes, way_.side().work());
  }
  // Writes to dst the combined inputs of ranks [0, ranks). `offset` is the position in each input,
  // in bytes.
  void Combine(std::byte* dst, int64_t offset, int64_t count, int ranks) const {
    std::vector<const void*> sources;
    for (int r = 0; r < ranks; ++r) {
      sources.push_back(buffers_[At(r)].in + offset);
    }
    const Kernels& kernels = way_.device().kernels();
    if (count == 0) {
      return;
    }
    const Merging* const merging = call_.reduction.merging.get();
    if (merging != nullptr && !AnyCounts(*merging, sources.size())) {
      ZeroArray(dst, count * width_);
    } else if (merging != nullptr) {
      Merge(kernels, *merging, call_.dtype, dst, sources, count);
    } else {
      kernels.combine(call_.reduction.op, call_.dtype, dst, sources.data(), ranks, count,
                      call_.reduction.op == ReduceOp::kAvg ? size_ : 1);
    }
  }

  // For all_reduce. Returns the first element of a rank's slice, and the number of its elements.
  // Slices begin at multiples of 64 elements, and so at cache lines of the buffer.
  std::pair<int64_t, int64_t> Slice(int rank) const {
    const int64_t each = ((call_.count + size_ - 1) / size_ + 63) / 64 * 64;
    const int64_t first = std::min(call_.count, each * rank);
    return {first, std::min(call_.count, first + each) - first};
  }
  // Returns the bytes before a rank's part, and the bytes of the part.
  std::pair<int64_t, int64_t> Part(int rank) const {
    if (call_.uneven == nullptr) {
      return {rank * call_.count * width_, call_.count * width_};
    }
    int64_t before = 0;
    for (int r = 0; r < rank; ++r) {
      before += call_.uneven->in[At(r)];
    }
    return {before * width_, call_.uneven->in[At(rank)] * width_};
  }

  absl::Status Read() {
    std::byte* out = buffers_[At(rank_)].out;
    const auto [mine, part_bytes] = Part(rank_);
    if (DirectScratch(call_) > 0) {
      out = aside_ = way_.scratch();
    }
    switch (call_.kind) {
      case CallKind::kAllReduce: {
        const auto [first, count] = Slice(rank_);
        Combine(out + first * width_, first * width_, count, size_);
        return absl::OkStatus();
      }
      case CallKind::kReduce:
        if (rank_ == call_.root) {
          Combine(out, 0, call_.count, size_);
        }
        return absl::OkStatus();
      case CallKind::kReduceScatter:
        Combine(out, mine, part_bytes / width_, size_);
        return absl::OkStatus();
      case CallKind::kScan:
        Combine(out, 0, call_.count, rank_ + 1);
        return absl::OkStatus();
      case CallKind::kExclusiveScan:
        if (rank_ > 0) {
          Combine(out, 0, call_.count, rank_);
        }
        return absl::OkStatus();
      case CallKind::kBroadcast:
        return Copy(out, buffers_[At(call_.root)].in, call_.out.bytes);
      case CallKind::kScatter:
        return Copy(out, buffers_[At(call_.root)].in + mine, part_bytes);
      case CallKind::kAllGather:
      case CallKind::kGather:
      case CallKind::kAllToAll:
        if (call_.kind == CallKind::kGather && rank_ != call_.root) {
          return absl::OkStatus();
        }
        for (int r = 0; r < size_; ++r) {
          const auto [before, bytes] = Part(r);
          if (bytes > 0) {
            const int64_t from = call_.kind == CallKind::kAllToAll ? mine : 0;
            ENTRAIN_RETURN_IF_ERROR(Copy(out + before, buffers_[At(r)].in + from, bytes));
          }
        }
        return absl::OkStatus();
      default:
        return absl::InternalError("not a call of the direct way");
    }
  }

  // Must not be called before all ranks have read.
  absl::Status Complete() {
    std::byte* const out = buffers_[At(rank_)].out;
    if (aside_ != nullptr && (call_.kind != CallKind::kExclusiveScan || rank_ > 0)) {
      return Copy(out, aside_, call_.out.bytes);
    }
    for (int r = 0; r < size_ && call_.kind == CallKind::kAllReduce; ++r) {
      const auto [first, count] = Slice(r);
      if (count > 0) {
        ENTRAIN_RETURN_IF_ERROR(
            Copy(out + first * width_, buffers_[At(r)].out + first * width_, count * width_));
      }
    }
    return absl::OkStatus();
  }

  DeviceCall& way_;
  const Call& call_;
  CommCore& core_;
  const int rank_, size_;
  const int64_t width_;
  Stage at_ = Stage::kBegin;
  PartUnderWay part_;
  std::vector<Whereabouts> all_;
  std::vector<Buffers> buffers_;
  std::vector<uint8_t> marks_;
  std::byte* aside_ = nullptr;
  DeviceMark done_;
  std::unique_ptr<DeviceWay> staged_;  // set when the call becomes staged
};

}  // namespace

bool DirectServes(const Call& call, int size, const Device& device) {
  const bool counts_known = call.uneven == nullptr || call.kind == CallKind::kAllGather ||
                            call.kind == CallKind::kReduceScatter;
  const ReduceOp op = call.reduction.op;
  const bool by_kernel =
      !Reduces(call.kind) || (size <= device.most_sources() && op != ReduceOp::kCustom &&
                              op != ReduceOp::kPreMultipliedSum && !IsPacked(call));
  return counts_known && by_kernel && call.count * SizeOf(call.dtype) >= kLeastDeviceBytes;
}

// A call needs scratch memory if it would otherwise write to memory that other ranks still read.
int64_t DirectScratch(const Call& call) {
  const bool aside = (call.kind == CallKind::kAllToAll || call.kind == CallKind::kScan ||
                      call.kind == CallKind::kExclusiveScan) &&
                     call.in.data == call.out.data;
  return aside ? call.out.bytes : 0;
}

std::unique_ptr<DeviceWay> MakeDirectWay(DeviceCall& call) {
  return std::make_unique<DirectWay>(call);
}

}  // namespace entrain
