// Runs a call on device memory through page-locked memory, piece by piece. A few pieces are under
// way at once: one is copied from the device, one is transferred, one is copied back.
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

// A piece is large enough to be copied at the full speed of the link. It is small enough that
// copies and transfers overlap in a call of some tens of MiB.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
// Returns the number of elements that a piece takes from each of `parts` parts of a buffer. An
// element has `width` bytes. The result is at most `count`. A smaller result is a multiple of 64,
// so that a piece is aligned like the buffer.
int64_t PieceElements(int64_t width, int64_t parts, int64_t count);

// A call that PiecePipe cuts into pieces.
class PiecewiseCall {
 public:
  virtual ~PiecewiseCall() = default;
  // Returns the number of pieces. All pieces except the last have equal sizes.
  virtual int64_t pieces() const = 0;
  // Return the number of bytes of page-locked memory that a piece needs.
  virtual int64_t InBytes(int64_t piece) const = 0;
  virtual int64_t OutBytes(int64_t piece) const = 0;
  // Returns true if the input of the piece is ready to be copied.
  virtual absl::StatusOr<bool> MayBegin(int64_t piece) const = 0;
  // CopyIn enqueues copies on side.copy_in(), CopyOut on side.copy_out(). They return false if
  // there is nothing to copy.
  virtual absl::StatusOr<bool> CopyIn(int64_t piece, std::byte* in) = 0;
  virtual absl::StatusOr<bool> CopyOut(int64_t piece, const std::byte* in,
                                       const std::byte* out) = 0;
  // Returns null if there is nothing to exchange.
  virtual absl::StatusOr<RefPtr<Work>> Exchange(int64_t piece, std::byte* in, std::byte* out) = 0;
  virtual void IsOver(int64_t piece) = 0;
};

class PiecePipe {
 public:
  // Both arguments must outlive the object.
  PiecePipe(DeviceSide& side, PiecewiseCall& call);
  ~PiecePipe();
  PiecePipe(const PiecePipe&) = delete;
  PiecePipe& operator=(const PiecePipe&) = delete;

  // Takes all page-locked memory that the call needs.
  absl::Status Reserve();
  // Moves every piece as far as possible. Returns true when all pieces are over.
  absl::StatusOr<bool> Step(bool* moved);
  // Returns true if neither the device nor a part of the call uses a buffer any more.
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
  // Returns the slots in use: at most as many as there are pieces.
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
