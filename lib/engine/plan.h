// A schedule with sizes, bound to one call's buffers: where every region is, and the local
// operations on them. The executor moves the messages, or the inline path (inline_call.h).
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

// A region as bytes: from the beginning of the caller's buffer, or of the lane's scratch.
struct Place {
  Slot slot = Slot::kIn;
  int64_t offset = 0, bytes = 0;
};

// The largest message on the inline path: no transport sends or takes a longer one at once.
constexpr int64_t kMaxInlineBytes = 2 << 20;

// A schedule with sizes: what is the same for every call of one shape. Immutable once made.
struct Plan {
  std::shared_ptr<const Schedule> schedule;
  const char* algorithm = "";
  int64_t element_bytes = 1;
  int window = 1;
  // Of each of the schedule's operations: the destination.
  std::vector<Place> ops;
  // Of its transfers and operands. A call whose buffers do not overlap may use `apart`: what is
  // received only to be combined into the result comes where that will be. Empty: no different.
  struct Places {
    std::vector<Place> transfers, operands;
  };
  Places places, apart;
  int64_t slot_bytes = 0;  // scratch of the largest lane
  // What the caller's own function is given of the largest combination, apart from that: see Binding::SetAside.
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

  // Scratch of a window slot for a call with this reduction.
  int64_t SlotBytes(const Reduction& reduction) const {
    return slot_bytes + (reduction.op == ReduceOp::kCustom ? aside_bytes : 0);
  }

  static Plan Make(std::shared_ptr<const Schedule> schedule, const char* algorithm,
                   const Layout& in, const Layout& out, int64_t element_bytes, int window);
};

// A place in scratch whose bytes are elsewhere: see Loan in transports/transport.h.
struct Lent {
  Place place;
  const std::byte* data;
};

// Where a call runs: how its ranks are reached.
struct Wiring {
  absl::Span<Endpoint* const> endpoints;  // by rank; null for oneself
  absl::Span<const Context> contexts;     // by rank: the number each uses for this communicator
  Context mine = 0;
  uint32_t user_tag = Tag::kUntagged;
  uint64_t sequence = 0;  // of the call among those of its tag, from 0; the same on all its ranks
  uint32_t call_number = 0;     // the same, as far as a tag carries it
  bool point_to_point = false;  // all messages in the lane of send and recv
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

// What a function of the caller's is given: result = result ⊕ sources[0] ⊕ sources[1] ⊕ ...
struct Combination {
  std::byte* result = nullptr;
  absl::InlinedVector<const std::byte*, 4> sources;
  int64_t count = 0;
};

// The plan and the call outlive it.
class Binding {
 public:
  Binding(const Plan& plan, const Call& call, const Kernels& kernels);

  // `scratch`: of the lane's window slot.
  std::byte* Address(std::byte* scratch, const Place& place) const {
    return (place.slot == Slot::kScratch ? scratch
            : place.slot == Slot::kIn    ? in_
                                         : out_) +
           place.offset;
  }
  Bytes Span(std::byte* scratch, const Place& place) const {
    return {Address(scratch, place), static_cast<size_t>(place.bytes)};
  }
  // Where a transfer's bytes are.
  const Place& PlaceOf(uint32_t transfer) const { return places_.transfers[transfer]; }
  // Does the round's operations from `op` of them on. Returns the first that takes the caller's own function, which is not
  // done; round.ops: none is left.
  uint32_t RunOps(std::byte* scratch, const Round& round, uint32_t op = 0,
                  absl::Span<const Lent> lent = {}) const;
  // What that function is given for this operation of the schedule: copies, in the scratch, of what is the caller's. The
  // result is to be copied to Span(scratch, plan.ops[op]).
  Combination SetAside(std::byte* scratch, uint32_t op) const;

 private:
  // Where an operand is.
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
