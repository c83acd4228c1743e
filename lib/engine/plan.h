// A plan gives the transfers and local operations of a schedule their places and sizes in bytes. A
// binding adds the buffers of one call, and runs the local operations. An executor or the inline
// path (inline_call.h) moves the messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"
#include "lib/base/call.h"
#include "lib/kernels/kernels.h"
#include "transports/transport.h"

namespace entrain {

// A region in bytes. `offset` counts from the beginning of the caller's buffer (kIn, kOut) or of
// the lane's scratch.
struct Place {
  Slot slot = Slot::kIn;
  int64_t offset = 0, bytes = 0;
};

// The longest message on the inline path. No transport sends or receives a longer one without
// waiting.
constexpr int64_t kMaxInlineBytes = 2 << 20;

// A schedule with sizes. It holds everything that is the same for all calls of one shape. Immutable
// once made.
struct Plan {
  std::shared_ptr<const Schedule> schedule;
  const char* algorithm = "";
  int64_t element_bytes = 1;
  int window = 1;
  // By operation of the schedule: the place of its destination.
  std::vector<Place> ops;
  // By transfer and by operand of the schedule: their places. `places` serves every call. `apart`
  // serves calls whose input and output do not overlap: a message that is received only to be
  // combined into the result is received at the place of the result. `apart` is empty if no message
  // could be received there.
  struct Places {
    std::vector<Place> transfers, operands;
  };
  Places places, apart;
  int64_t slot_bytes = 0;  // scratch of the largest lane
  // Scratch for Binding::SetAside: the copies that the largest combination needs if the caller's
  // own function computes it.
  int64_t aside_bytes = 0;
  bool fits_inline = false;  // see inline_call.h
  // Per round: whether its operations write nothing that it sends, so that they need not wait for its sends.
  std::vector<bool> ops_before_sends;
  // Per round: whether its operations only copy, and do not wait for its messages: of an exchange, where others copy
  // as much at the same time. Then who moves messages himself copies first, and they have time to come.
  std::vector<bool> copies_first;
  // Per transfer: whether it receives what is only read, by the operations of its own round, and so
  // need not lie in the scratch.
  std::vector<bool> read_once;
  // Per transfer: read_once, and those operations need not wait for its round's sends: so that it may
  // be lent. (Two ranks that lend each other something and wait for their sends first would wait for
  // ever.)
  std::vector<bool> may_be_lent;

  // Returns the bytes of scratch that one window slot needs for a call with this reduction.
  int64_t SlotBytes(const Reduction& reduction) const {
    return slot_bytes + (reduction.op == ReduceOp::kCustom ? aside_bytes : 0);
  }

  static Plan Make(std::shared_ptr<const Schedule> schedule, const char* algorithm,
                   const Layout& in, const Layout& out, int64_t element_bytes, int window);
};

// A place in scratch whose bytes lie at `data` instead (Loan in transports/transport.h).
struct Lent {
  Place place;
  const std::byte* data;
};

// How the messages of one call reach its ranks: endpoints, and the parts of their tags.
struct Wiring {
  absl::Span<Endpoint* const> endpoints;  // by rank; null for this rank
  absl::Span<const Context> contexts;     // by rank: its number for this communicator
  Context mine = 0;
  uint32_t user_tag = Tag::kUntagged;
  uint64_t sequence = 0;        // number among the calls of this tag, from 0; equal on all ranks
  uint32_t call_number = 0;     // the bits of `sequence` that a message's tag carries
  bool point_to_point = false;  // all messages use the lane of send and recv
  uint8_t LaneOf(int lane) const {
    return point_to_point ? Tag::kPointToPoint : static_cast<uint8_t>(lane);
  }
  Envelope EnvelopeTo(int peer, uint8_t lane, const Descriptor& descriptor) const {
    return {Tag(contexts[static_cast<size_t>(peer)], user_tag, call_number, lane), descriptor};
  }
  Envelope EnvelopeFrom(uint8_t lane, const Descriptor& descriptor) const {
    return {Tag(mine, user_tag, call_number, lane), descriptor};
  }
};

// One combination for the caller's own function: result = result ⊕ sources[0] ⊕ sources[1] ⊕ ...
struct Combination {
  std::byte* result = nullptr;
  absl::InlinedVector<const std::byte*, 4> sources;
  int64_t count = 0;
};

// A plan with the buffers of one call. The plan and the call must outlive this object.
class Binding {
 public:
  Binding(const Plan& plan, const Call& call, const Kernels& kernels);

  // Returns the address of a place. `scratch` is the scratch of the lane's window slot, here and in
  // the functions below.
  std::byte* Address(std::byte* scratch, const Place& place) const {
    return (place.slot == Slot::kScratch ? scratch
            : place.slot == Slot::kIn    ? in_
                                         : out_) +
           place.offset;
  }
  Bytes Span(std::byte* scratch, const Place& place) const {
    return {Address(scratch, place), static_cast<size_t>(place.bytes)};
  }
  // Returns the place of the transfer's bytes.
  const Place& PlaceOf(uint32_t transfer) const { return places_.transfers[transfer]; }
  // Does the operations of the round from number `op` on, counted within the round. Stops before an
  // operation that needs the caller's own function, and returns its number. Returns round.ops if
  // all operations are done. Reads the places in `lent` from where their bytes lie.
  uint32_t RunOps(std::byte* scratch, const Round& round, uint32_t op = 0,
                  absl::Span<const Lent> lent = {}) const;
  // Prepares operation `op` of the schedule for the caller's own function. Copies the operands that
  // lie in the caller's buffers to the scratch, so that the function works only on the library's
  // memory. The result must be copied to Span(scratch, plan.ops[op]) afterwards.
  Combination SetAside(std::byte* scratch, uint32_t op) const;

 private:
  // Returns the address of an operand's bytes.
  const std::byte* Source(std::byte* scratch, const Place& place,
                          absl::Span<const Lent> lent) const;
  void Combine(std::byte* scratch, uint32_t op, absl::Span<const Lent> lent) const;

  const Plan& plan_;
  const Schedule& schedule_;
  const Call& call_;
  const Kernels& kernels_;
  std::byte *const in_, *const out_;
  const Plan::Places& places_;
};

}  // namespace entrain
