// The staged method: a call runs piece by piece through page-locked memory. A piece takes a range
// of elements from the buffer, or from each rank's part of the buffer. So a piece is a call of the
// same kind. Two kinds of calls are not cut: in calls with uneven parts, not all ranks know all
// counts; in calls with packed contributions, the choice of elements depends on the whole vector.
// If the caller's buffers are page-locked, the call is one piece, and nothing is copied.
#include <algorithm>

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/contribution.h"
#include "lib/comm/packed_call.h"
#include "lib/device/calls/device_call.h"
#include "lib/device/calls/pieces.h"

namespace entrain {
namespace {

// Returns the number of elements of each part in a piece.
int64_t ElementsOf(const Call& call, int size) {
  if (!call.options.device || call.uneven != nullptr || IsPacked(call) || call.count == 0) {
    return call.count;
  }
  return PieceElements(SizeOf(call.dtype), HasParts(call.kind) ? size : 1, call.count);
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

class StagedWay final : public DeviceWay, private PiecewiseCall {
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
        pipe_(call.side(), *this) {}

  absl::Status Reserve() {
    ENTRAIN_RETURN_IF_ERROR(IsPacked(call_) ? PackedCall::Check(call_, way_.core().size())
                                            : absl::OkStatus());
    return pipe_.Reserve();
  }
  absl::StatusOr<bool> Step(bool* moved) override { return pipe_.Step(moved); }
  bool Quiet() override { return pipe_.Quiet(); }
  const char* WaitsFor() const override {
    return pipe_.on_wire() ? nullptr : "copies between the device and the host";
  }

 private:
  // ---- Functions of PiecewiseCall
  int64_t pieces() const override { return pieces_; }
  int64_t InBytes(int64_t piece) const override {
    return copies_ ? BytesOf(call_.in, piece) : differs_ ? call_.in.bytes : 0;
  }
  int64_t OutBytes(int64_t piece) const override {
    return copies_ && !broadcast_ ? BytesOf(call_.out, piece) : 0;
  }
  absl::StatusOr<bool> MayBegin(int64_t) const override { return true; }
  void IsOver(int64_t) override {}

  absl::StatusOr<bool> CopyIn(int64_t piece, std::byte* in) override {
    if (reads_) {
      ENTRAIN_RETURN_IF_ERROR(Copy(call_.in, piece, in, true));
    }
    return reads_;
  }

  absl::StatusOr<RefPtr<Work>> Exchange(int64_t piece, std::byte* in, std::byte* out) override {
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

  absl::StatusOr<bool> CopyOut(int64_t piece, const std::byte* in, const std::byte* out) override {
    if (writes_) {
      ENTRAIN_RETURN_IF_ERROR(
          Copy(call_.out, piece, const_cast<std::byte*>(broadcast_ ? in : out), false));
    }
    return writes_;
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
  PiecePipe pipe_;
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
