// The staged way: a call piece by piece through page-locked memory. A piece is a range of elements of every part, so it is
// a call of the same kind; a few are under way at once, one being copied from the device, one on the wire, one being
// copied back. Calls that cannot be cut so are one piece: parts that are not even (not all ranks know all counts), and
// contributions that travel packed (what is chosen depends on the whole vector). Buffers that are page-locked themselves
// are one piece too, and are not copied.
#include <algorithm>
#include <array>

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/contribution.h"
#include "lib/comm/device_call.h"
#include "lib/comm/packed_call.h"

namespace entrain {
namespace {

// Large enough that a copy runs at the link's speed, small enough that a call of some tens of MiB overlaps.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

struct Pieces {
  int64_t elements = 0;  // of each part in a piece
  int64_t count = 1;
};

Pieces PiecesOf(const Call& call, int size) {
  const int64_t parts = HasParts(call.kind) ? size : 1;
  if (!call.options.device || call.uneven != nullptr || PackedCall::Is(call) || call.count == 0) {
    return {call.count, 1};
  }
  // Whole cache lines of elements, so that a piece begins as aligned as the buffer.
  const int64_t most = kPieceBytes / (SizeOf(call.dtype) * parts);
  const int64_t elements = std::clamp<int64_t>(most / 64 * 64, 64, call.count);
  return {elements, (call.count + elements - 1) / elements};
}

// The root of a broadcast, and who has nobody before it in an exclusive scan.
bool KeepsOut(const Call& call, int rank) {
  return (call.kind == CallKind::kBroadcast && call.root == rank) ||
         (call.kind == CallKind::kExclusiveScan && rank == 0);
}

class StagedWay final : public DeviceWay {
 public:
  explicit StagedWay(DeviceCall& call)
      : call_(call),
        pieces_(PiecesOf(call.call(), call.core().size())),
        copies_(call.call().options.device),
        broadcast_(call.call().kind == CallKind::kBroadcast),
        reads_(copies_ && call.call().in.bytes > 0 &&
               (!broadcast_ || call.call().root == call.core().rank())),
        writes_(copies_ && call.call().out.bytes > 0 &&
                !KeepsOut(call.call(), call.core().rank())) {
    for (Slot& slot : slots_) {
      slot.copied_in = std::make_unique<DeviceMark>(call.device());
      slot.copied_out = std::make_unique<DeviceMark>(call.device());
    }
  }
  ~StagedWay() override {
    for (const Slot& slot : slots_) {
      call_.side().pinned().Give(slot.in);
      call_.side().pinned().Give(slot.out);
    }
  }

  // All page-locked memory that it will need.
  absl::Status Reserve() {
    const Call& call = call_.call();
    PinnedPool& pool = call_.side().pinned();
    for (size_t i = 0; copies_ && i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      slot.piece = static_cast<int64_t>(i);
      if (slot.piece >= pieces_.count) {
        break;
      }
      ENTRAIN_ASSIGN_OR_RETURN(slot.in, pool.Take(BytesOf(call.in, slot)));
      if (!broadcast_) {
        ENTRAIN_ASSIGN_OR_RETURN(slot.out, pool.Take(BytesOf(call.out, slot)));
      }
    }
    if (!copies_ && ContributionDiffers(call, call_.core().size())) {
      ENTRAIN_ASSIGN_OR_RETURN(slots_[0].in, pool.Take(call.in.bytes));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Step(bool* moved) override {
    for (Slot& slot : slots_) {
      // Each as far as it comes; a slot that has become free takes the next piece.
      for (bool further = true; further;) {
        ENTRAIN_ASSIGN_OR_RETURN(further, Advance(slot));
        *moved |= further;
      }
    }
    return done_ == pieces_.count;
  }
  bool Quiet() override {
    return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
      return slot.copied_in->quiet() && slot.part.quiet() && slot.copied_out->quiet();
    });
  }
  const char* WaitsFor() const override {
    const bool on_wire = std::any_of(slots_.begin(), slots_.end(),
                                     [](const Slot& slot) { return slot.at == At::kWire; });
    return on_wire ? nullptr : "copies between the device and the host";
  }

 private:
  enum class At { kFree, kIn, kWire, kOut };
  struct Slot {
    At at = At::kFree;
    int64_t piece = 0;
    PinnedPool::Block in, out;
    std::unique_ptr<DeviceMark> copied_in, copied_out;
    PartUnderWay part;
  };

  absl::StatusOr<bool> Advance(Slot& slot) {
    switch (slot.at) {
      case At::kFree:
        return next_ < pieces_.count ? CopyIn(slot) : absl::StatusOr<bool>(false);
      case At::kIn: {
        ENTRAIN_ASSIGN_OR_RETURN(const bool copied, slot.copied_in->Reached());
        return copied ? Launch(slot) : absl::StatusOr<bool>(false);
      }
      case At::kWire: {
        ENTRAIN_ASSIGN_OR_RETURN(const bool over, slot.part.Over());
        return over ? CopyOut(slot) : absl::StatusOr<bool>(false);
      }
      case At::kOut: {
        ENTRAIN_ASSIGN_OR_RETURN(const bool copied, slot.copied_out->Reached());
        if (copied) {
          slot.at = At::kFree;
          ++done_;
        }
        return copied;
      }
    }
    return false;
  }

  int64_t first(const Slot& slot) const { return slot.piece * pieces_.elements; }
  int64_t elements(const Slot& slot) const {
    return std::min(pieces_.elements, call_.call().count - first(slot));
  }
  // Of the caller's buffer, what belongs to the piece: as many ranges as the buffer has parts, one after the other in
  // the staged memory.
  int64_t PartsOf(const BufferView& buffer) const {
    const int64_t part = call_.call().count * SizeOf(call_.call().dtype);
    return whole() ? 1 : part == 0 ? 0 : buffer.bytes / part;
  }
  bool whole() const { return pieces_.count == 1; }
  int64_t BytesOf(const BufferView& buffer, const Slot& slot) const {
    return whole() ? buffer.bytes : PartsOf(buffer) * elements(slot) * SizeOf(call_.call().dtype);
  }
  absl::Status Copy(const BufferView& buffer, const Slot& slot, std::byte* staged, bool in) const {
    const Call& call = call_.call();
    const int64_t width = SizeOf(call.dtype);
    const int64_t bytes = whole() ? buffer.bytes : elements(slot) * width;
    for (int64_t part = 0; part < PartsOf(buffer) && bytes > 0; ++part) {
      auto* const theirs =
          static_cast<std::byte*>(buffer.data) + (part * call.count + first(slot)) * width;
      std::byte* const ours = staged + part * bytes;
      const StreamHandle stream = in ? call_.side().copy_in() : call_.side().copy_out();
      ENTRAIN_RETURN_IF_ERROR(
          call_.device().Copy(in ? ours : theirs, in ? theirs : ours, bytes, stream));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> CopyIn(Slot& slot) {
    const Call& call = call_.call();
    slot.piece = next_++;
    if (reads_) {
      ENTRAIN_RETURN_IF_ERROR(Copy(call.in, slot, slot.in.data, true));
      ENTRAIN_RETURN_IF_ERROR(slot.copied_in->Record(call_.side().copy_in()));
    }
    slot.at = At::kIn;
    return true;
  }

  absl::StatusOr<bool> Launch(Slot& slot) {
    Call part = call_.call();
    if (copies_) {
      part.in = {slot.in.data, BytesOf(part.in, slot), MemoryKind::kHost};
      part.out = {broadcast_ ? slot.in.data : slot.out.data, BytesOf(part.out, slot),
                  MemoryKind::kHost};
      part.count = whole() ? part.count : elements(slot);
    }
    if (PackedCall::Is(part)) {
      ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, call_.LaunchPacked(part));
      slot.part.Set(std::move(work));
    } else {
      if (ContributionDiffers(part, call_.core().size()) && part.in.bytes > 0) {
        // Not in the caller's buffer, where nothing else is.
        Contribute(part, slot.in.data, part.in.data, part.in.bytes / SizeOf(part.dtype));
        part.in.data = slot.in.data;
      }
      ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work,
                               call_.Launch(static_cast<size_t>(slot.piece), std::move(part)));
      slot.part.Set(std::move(work));
    }
    slot.at = At::kWire;
    return true;
  }

  absl::StatusOr<bool> CopyOut(Slot& slot) {
    slot.part.Clear();
    if (writes_) {
      std::byte* const staged = broadcast_ ? slot.in.data : slot.out.data;
      ENTRAIN_RETURN_IF_ERROR(Copy(call_.call().out, slot, staged, false));
      ENTRAIN_RETURN_IF_ERROR(slot.copied_out->Record(call_.side().copy_out()));
    }
    slot.at = At::kOut;
    return true;
  }

  DeviceCall& call_;
  const Pieces pieces_;
  const bool copies_, broadcast_, reads_, writes_;
  std::array<Slot, 3> slots_;
  int64_t next_ = 0, done_ = 0;
};

}  // namespace

size_t StagedParts(const Call& call, int size) {
  return PackedCall::Is(call) ? PackedCall::PartsOf(call)
                              : static_cast<size_t>(PiecesOf(call, size).count);
}

absl::StatusOr<std::unique_ptr<DeviceWay>> MakeStagedWay(DeviceCall& call) {
  auto way = std::make_unique<StagedWay>(call);
  ENTRAIN_RETURN_IF_ERROR(way->Reserve());
  return way;
}

}  // namespace entrain
