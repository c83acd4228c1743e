// A call on device memory through page-locked memory, piece by piece: a few are under way at once, one being copied from
// the device, one on the wire, one being copied back.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/device/calls/device_call.h"
#include "lib/device/pools.h"

namespace entrain {

// Large enough that a copy runs at the link's speed, small enough that a call of some tens of MiB overlaps.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
// Elements of this width of each of `parts` in a piece: whole cache lines of them, so that a piece begins as aligned as
// the buffer; at most `count`.
int64_t PieceElements(int64_t width, int64_t parts, int64_t count);

// What is copied and exchanged.
class PiecewiseCall {
 public:
  virtual ~PiecewiseCall() = default;
  // How many pieces; all but the last are alike.
  virtual int64_t pieces() const = 0;
  // Page-locked memory for a piece.
  virtual int64_t InBytes(int64_t piece) const = 0;
  virtual int64_t OutBytes(int64_t piece) const = 0;
  // Whether its input is there to be copied.
  virtual absl::StatusOr<bool> MayBegin(int64_t piece) const = 0;
  // Enqueue copies on side.copy_in(), side.copy_out(); false: there is nothing to copy.
  virtual absl::StatusOr<bool> CopyIn(int64_t piece, std::byte* in) = 0;
  virtual absl::StatusOr<bool> CopyOut(int64_t piece, const std::byte* in,
                                       const std::byte* out) = 0;
  // Null: there is nothing to exchange.
  virtual absl::StatusOr<RefPtr<Work>> Exchange(int64_t piece, std::byte* in, std::byte* out) = 0;
  virtual void IsOver(int64_t piece) = 0;
};

class PiecePipe {
 public:
  // Both outlive it.
  PiecePipe(DeviceSide& side, PiecewiseCall& call);
  ~PiecePipe();
  PiecePipe(const PiecePipe&) = delete;
  PiecePipe& operator=(const PiecePipe&) = delete;

  // All page-locked memory that it will need.
  absl::Status Reserve();
  // As far as it comes; true: all pieces are over.
  absl::StatusOr<bool> Step(bool* moved);
  // Whether the device and the parts have let go of all buffers.
  bool Quiet() const;
  bool on_wire() const;

 private:
  enum class At { kFree, kIn, kWire, kOut };
  struct Slot {
    explicit Slot(Device& device) : copied_in(device), copied_out(device) {}
    At at = At::kFree;
    int64_t piece = 0;
    BlockPool::Block in, out;
    DeviceMark copied_in, copied_out;
    PartUnderWay part;
  };
  // Those that are used: no more than there are pieces.
  absl::Span<Slot> slots();
  absl::StatusOr<bool> Advance(Slot& slot);
  absl::StatusOr<bool> Begin(Slot& slot);
  absl::Status Exchange(Slot& slot);
  absl::Status CopyOut(Slot& slot);

  DeviceSide& side_;
  PiecewiseCall& call_;
  std::array<Slot, 3> slots_;
  int64_t next_ = 0, over_ = 0;
};

}  // namespace entrain
