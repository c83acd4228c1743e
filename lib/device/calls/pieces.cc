#include "lib/device/calls/pieces.h"

#include <algorithm>

#include "lib/base/status.h"

namespace entrain {
namespace {

// Records a mark behind the enqueued copies, also after an error.
absl::Status MarkCopies(const absl::StatusOr<bool>& copies, DeviceMark& mark, StreamHandle stream) {
  absl::Status status = copies.status();
  status.Update(copies.ok() && !*copies ? absl::OkStatus() : mark.Record(stream));
  return status;
}

}  // namespace

int64_t PieceElements(int64_t width, int64_t parts, int64_t count) {
  const int64_t most = kPieceBytes / (width * parts);
  return std::min(count, std::max<int64_t>(64, most / 64 * 64));
}

PiecePipe::PiecePipe(DeviceSide& side, PiecewiseCall& call)
    : side_(side),
      call_(call),
      slots_{Slot(side.device()), Slot(side.device()), Slot(side.device())} {}

PiecePipe::~PiecePipe() {
  for (const Slot& slot : slots_) {
    side_.pinned().Give(slot.in);
    side_.pinned().Give(slot.out);
  }
}

absl::Status PiecePipe::Reserve() {
  // Any piece may use any slot. The first piece is one of the largest.
  for (Slot& slot : slots()) {
    ENTRAIN_ASSIGN_OR_RETURN(slot.in, side_.pinned().Take(call_.InBytes(0)));
    ENTRAIN_ASSIGN_OR_RETURN(slot.out, side_.pinned().Take(call_.OutBytes(0)));
  }
  return absl::OkStatus();
}

absl::Span<PiecePipe::Slot> PiecePipe::slots() {
  return absl::MakeSpan(slots_).first(
      static_cast<size_t>(std::min(call_.pieces(), static_cast<int64_t>(slots_.size()))));
}

absl::StatusOr<bool> PiecePipe::Step(bool* moved) {
  for (Slot& slot : slots()) {
    // Moves each slot as far as possible. A free slot takes the next piece.
    for (bool further = true; further;) {
      ENTRAIN_ASSIGN_OR_RETURN(further, Advance(slot));
      *moved |= further;
    }
  }
  return over_ == call_.pieces();
}

bool PiecePipe::Quiet() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.copied_in.quiet() && slot.part.quiet() && slot.copied_out.quiet();
  });
}

bool PiecePipe::on_wire() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.at == At::kWire; });
}

absl::StatusOr<bool> PiecePipe::Advance(Slot& slot) {
  switch (slot.at) {
    case At::kFree: {
      if (next_ == call_.pieces()) {
        return false;
      }
      ENTRAIN_ASSIGN_OR_RETURN(const bool may, call_.MayBegin(next_));
      return may ? Begin(slot) : absl::StatusOr<bool>(false);
    }
    case At::kIn: {
      ENTRAIN_ASSIGN_OR_RETURN(const bool copied, slot.copied_in.Reached());
      if (copied) {
        ENTRAIN_RETURN_IF_ERROR(Exchange(slot));
      }
      return copied;
    }
    case At::kWire: {
      ENTRAIN_ASSIGN_OR_RETURN(const bool over,
                               slot.part.started() ? slot.part.Over() : absl::StatusOr<bool>(true));
      if (over) {
        ENTRAIN_RETURN_IF_ERROR(CopyOut(slot));
      }
      return over;
    }
    case At::kOut: {
      ENTRAIN_ASSIGN_OR_RETURN(const bool copied, slot.copied_out.Reached());
      if (copied) {
        slot.at = At::kFree;
        ++over_;
        call_.IsOver(slot.piece);
      }
      return copied;
    }
  }
  return false;
}

absl::StatusOr<bool> PiecePipe::Begin(Slot& slot) {
  slot.piece = next_++;
  ENTRAIN_RETURN_IF_ERROR(
      MarkCopies(call_.CopyIn(slot.piece, slot.in.data), slot.copied_in, side_.copy_in()));
  slot.at = At::kIn;
  return true;
}

absl::Status PiecePipe::Exchange(Slot& slot) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work,
                           call_.Exchange(slot.piece, slot.in.data, slot.out.data));
  slot.part.Set(std::move(work));
  slot.at = At::kWire;
  return absl::OkStatus();
}

absl::Status PiecePipe::CopyOut(Slot& slot) {
  slot.part.Clear();
  ENTRAIN_RETURN_IF_ERROR(MarkCopies(call_.CopyOut(slot.piece, slot.in.data, slot.out.data),
                                     slot.copied_out, side_.copy_out()));
  slot.at = At::kOut;
  return absl::OkStatus();
}

}  // namespace entrain
