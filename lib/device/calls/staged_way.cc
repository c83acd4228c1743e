// The staged method: a call runs piece by piece through page-locked memory. A few pieces are under
// way at once: one is copied from the device, one is transferred, one is copied back. A piece takes
// a range of elements from the buffer, or from each rank's part of the buffer. So a piece is a call
// of the same kind. Two kinds of calls are not cut: in calls with uneven parts, not all ranks know
// all counts; in calls with packed contributions, the choice of elements depends on the whole
// vector. If the caller's buffers are page-locked, the call is one piece, and nothing is copied.
#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/types/span.h"

#include "lib/base/status.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/packed_call.h"
#include "lib/device/calls/device_call.h"

namespace entrain {
namespace {

// A piece is large enough to be copied at the full speed of the link. It is small enough that
// copies and transfers overlap in a call of some tens of MiB.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Returns the number of elements of each part in a piece. A result below call.count is a multiple
// of 64, so that a piece is aligned like the buffer.
int64_t ElementsOf(const Call& call, int size) {
  if (!call.options.device || call.uneven != nullptr || IsPacked(call) || call.count == 0) {
    return call.count;
  }
  const int64_t parts = HasParts(call.kind) ? size : 1;
  const int64_t most = kPieceBytes / (SizeOf(call.dtype) * parts);
  return std::min(call.count, std::max<int64_t>(64, most / 64 * 64));
}

int64_t PiecesOf(const Call& call, int size) {
  const int64_t elements = ElementsOf(call, size);
  return elements == 0 ? 1 : (call.count + elements - 1) / elements;
}

// Returns true for ranks whose output is not written: the root of a broadcast, and rank 0 of an
// exclusive scan.
bool KeepsOut(const Call& call, int rank) {
  return (call.kind == CallKind::kBroadcast && call.root == rank) ||
         (call.kind == CallKind::kExclusiveScan && rank == 0);
}

// Records a mark behind the enqueued copies, also after an error.
absl::Status MarkCopies(absl::Status copies, DeviceMark& mark, StreamHandle stream) {
  copies.Update(mark.Record(stream));
  return copies;
}

class StagedWay final : public DeviceWay {
 public:
  explicit StagedWay(DeviceCall& call)
      : way_(call),
        call_(call.call()),
        piece_(ElementsOf(call_, call.core().size())),
        pieces_(PiecesOf(call_, call.core().size())),
        copies_(call_.options.device),
        differs_(ContributionDiffers(call_, call.core().size())),
        broadcast_(call_.kind == CallKind::kBroadcast),
        reads_(copies_ && call_.in.bytes > 0 && (!broadcast_ || call_.root == call.core().rank())),
        writes_(copies_ && call_.out.bytes > 0 && !KeepsOut(call_, call.core().rank())),
        slots_{Slot(call.device()), Slot(call.device()), Slot(call.device())} {}
  ~StagedWay() override {
    for (const Slot& slot : slots_) {
      way_.side().pinned().Give(slot.in);
      way_.side().pinned().Give(slot.out);
    }
  }

  absl::Status Reserve() {
    ENTRAIN_RETURN_IF_ERROR(IsPacked(call_) ? PackedCall::Check(call_, way_.core().size())
                                            : absl::OkStatus());
    // Any piece may use any slot. The first piece is one of the largest.
    const int64_t in = copies_ ? BytesOf(call_.in, 0) : differs_ ? call_.in.bytes : 0;
    const int64_t out = copies_ && !broadcast_ ? BytesOf(call_.out, 0) : 0;
    for (Slot& slot : slots()) {
      ENTRAIN_ASSIGN_OR_RETURN(slot.in, way_.side().pinned().Take(in));
      ENTRAIN_ASSIGN_OR_RETURN(slot.out, way_.side().pinned().Take(out));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Step(bool* moved) override {
    for (Slot& slot : slots()) {
      // Moves each slot as far as possible. A free slot takes the next piece.
      for (bool further = true; further;) {
        ENTRAIN_ASSIGN_OR_RETURN(further, Advance(slot));
        *moved |= further;
      }
    }
    return over_ == pieces_;
  }
  bool Quiet() override {
    return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
      return slot.copied_in.quiet() && slot.part.quiet() && slot.copied_out.quiet();
    });
  }
  const char* WaitsFor() const override {
    const bool on_wire = std::any_of(slots_.begin(), slots_.end(),
                                     [](const Slot& slot) { return slot.at == At::kWire; });
    return on_wire ? nullptr : "copies between the device and the host";
  }

 private:
  enum class At { kFree, kIn, kWire, kOut };
  // The memory of a piece that is under way.
  struct Slot {
    explicit Slot(Device& device) : copied_in(device), copied_out(device) {}
    At at = At::kFree;
    int64_t piece = 0;
    BlockPool::Block in, out;
    DeviceMark copied_in, copied_out;
    PartUnderWay part;
  };

  // ---- The way of a piece
  // Returns the slots in use: at most as many as there are pieces.
  absl::Span<Slot> slots() {
    return absl::MakeSpan(slots_).first(
        static_cast<size_t>(std::min(pieces_, static_cast<int64_t>(slots_.size()))));
  }

  absl::StatusOr<bool> Advance(Slot& slot) {
    switch (slot.at) {
      case At::kFree:
        if (next_ == pieces_) {
          return false;
        }
        slot.piece = next_++;
        slot.at = At::kIn;
        ENTRAIN_RETURN_IF_ERROR(CopyIn(slot));
        return true;
      case At::kIn: {
        ENTRAIN_ASSIGN_OR_RETURN(const bool copied, slot.copied_in.Reached());
        if (copied) {
          ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work,
                                   Exchange(slot.piece, slot.in.data, slot.out.data));
          slot.part.Set(std::move(work));
          slot.at = At::kWire;
        }
        return copied;
      }
      case At::kWire: {
        ENTRAIN_ASSIGN_OR_RETURN(const bool over, slot.part.Over());
        if (over) {
          slot.part.Clear();
          slot.at = At::kOut;
          ENTRAIN_RETURN_IF_ERROR(CopyOut(slot));
        }
        return over;
      }
      case At::kOut: {
        ENTRAIN_ASSIGN_OR_RETURN(const bool copied, slot.copied_out.Reached());
        if (copied) {
          slot.at = At::kFree;
          ++over_;
        }
        return copied;
      }
    }
    return false;
  }

  absl::Status CopyIn(Slot& slot) {
    const StreamHandle stream = way_.side().copy_in();
    return reads_
               ? MarkCopies(Copy(call_.in, slot.piece, slot.in.data, true), slot.copied_in, stream)
               : absl::OkStatus();
  }

  absl::StatusOr<RefPtr<Work>> Exchange(int64_t piece, std::byte* in, std::byte* out) {
    Call part = call_;
    if (copies_) {
      part.in = {in, BytesOf(part.in, piece), MemoryKind::kHost};
      part.out = {broadcast_ ? in : out, BytesOf(part.out, piece), MemoryKind::kHost};
      part.count = whole() ? part.count : elements(piece);
    }
    if (IsPacked(part)) {
      return way_.LaunchPacked(part);
    }
    if (differs_ && part.in.bytes > 0) {
      // The caller's buffer must not change, so the contribution is written to the staged buffer.
      Contribute(part, in, part.in.data, part.in.bytes / SizeOf(part.dtype));
      part.in.data = in;
    }
    return way_.Launch(static_cast<size_t>(piece), std::move(part));
  }

  absl::Status CopyOut(Slot& slot) {
    const StreamHandle stream = way_.side().copy_out();
    std::byte* const result = broadcast_ ? slot.in.data : slot.out.data;
    return writes_ ? MarkCopies(Copy(call_.out, slot.piece, result, false), slot.copied_out, stream)
                   : absl::OkStatus();
  }

  // ---- Sizes and copies
  bool whole() const { return pieces_ == 1; }
  int64_t first(int64_t piece) const { return piece * piece_; }
  int64_t elements(int64_t piece) const { return std::min(piece_, call_.count - first(piece)); }
  // A buffer of the caller has one or more parts of call_.count elements. A piece takes one range
  // from each part. In the staged memory these ranges are contiguous.
  int64_t PartsOf(const BufferView& buffer) const {
    const int64_t part = call_.count * SizeOf(call_.dtype);
    return whole() ? 1 : part == 0 ? 0 : buffer.bytes / part;
  }
  int64_t BytesOf(const BufferView& buffer, int64_t piece) const {
    return whole() ? buffer.bytes : PartsOf(buffer) * elements(piece) * SizeOf(call_.dtype);
  }
  absl::Status Copy(const BufferView& buffer, int64_t piece, std::byte* staged, bool in) const {
    const int64_t width = SizeOf(call_.dtype);
    const int64_t bytes = whole() ? buffer.bytes : elements(piece) * width;
    for (int64_t part = 0; part < PartsOf(buffer) && bytes > 0; ++part) {
      auto* const theirs =
          static_cast<std::byte*>(buffer.data) + (part * call_.count + first(piece)) * width;
      std::byte* const ours = staged + part * bytes;
      const StreamHandle stream = in ? way_.side().copy_in() : way_.side().copy_out();
      ENTRAIN_RETURN_IF_ERROR(
          way_.device().Copy(in ? ours : theirs, in ? theirs : ours, bytes, stream));
    }
    return absl::OkStatus();
  }

  DeviceCall& way_;
  const Call& call_;
  const int64_t piece_, pieces_;
  const bool copies_, differs_, broadcast_, reads_, writes_;
  std::array<Slot, 3> slots_;
  int64_t next_ = 0, over_ = 0;  // the next piece to begin; the number of pieces that are over
};

}  // namespace

size_t StagedParts(const Call& call, int size) {
  return IsPacked(call) ? PackedCall::PartsOf(call) : static_cast<size_t>(PiecesOf(call, size));
}

absl::StatusOr<std::unique_ptr<DeviceWay>> MakeStagedWay(DeviceCall& call) {
  auto way = std::make_unique<StagedWay>(call);
  ENTRAIN_RETURN_IF_ERROR(way->Reserve());
  return way;
}

}  // namespace entrain
