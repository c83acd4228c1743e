// A plan is a schedule with sizes: it has the byte offset of every region. A Binding adds the
// buffers of one call, and runs the local operations. The executor or the inline path
// (inline_call.h) sends and receives the messages.
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

// A region in bytes. `offset` counts from the beginning of the caller's input or output, or of the
// lane's scratch.
struct Place {
  Slot slot = Slot::kIn;
  int64_t offset = 0, bytes = 0;
};

// The size limit of a message on the inline path. Over some links it is smaller (Planner).
constexpr int64_t kMaxInlineBytes = 2 << 20;

// The data that all calls of one shape share. Make returns it; it does not change afterwards.
struct Plan {
  std::shared_ptr<const Schedule> schedule;
  const char* algorithm = "";
  int64_t element_bytes = 1;
  int window = 1;
  std::vector<Place> ops;  // where each operation of the schedule stores its result
  // Where the messages of transfers and the operands of operations are.
  struct Places {
    std::vector<Place> transfers, operands;
  };
  Places places;
  // Used instead of `places` if input and output do not overlap. Each combination into the output
  // then receives one of its messages directly into the memory of the result, not into scratch.
  // Empty if it would be equal to `places`.
  Places apart;
  int64_t slot_bytes = 0;  // bytes of scratch for the largest lane
  // Bytes of additional scratch for the copies that Binding::SetAside makes for the caller's own
  // reduction.
  int64_t aside_bytes = 0;
  int64_t most_inline = kMaxInlineBytes;  // the limit for this plan; negative: no message
  bool fits_inline = false;               // see inline_call.h
  // By round. True if the operations write to no memory that the round sends. The operations then
  // need not wait for the sends.
  std::vector<bool> ops_before_sends;
  // By transfer. True if nothing but the operations of the same round uses the received message,
  // and they only read it. The message then need not be copied to scratch.
  std::vector<bool> read_once;
  // By transfer. True if the message is read_once and the operations need not wait for the round's
  // sends. The receiver may then read the message in the sender's memory. (The second condition
  // prevents a deadlock: two ranks could otherwise each wait for its own send before reading the
  // other's message.)
  std::vector<bool> may_be_lent;

  // Returns the bytes of scratch for one slot of the window, for a call with this reduction.
  int64_t SlotBytes(const Reduction& reduction) const {
    return slot_bytes + (reduction.op == ReduceOp::kCustom ? aside_bytes : 0);
  }

  static Plan Make(std::shared_ptr<const Schedule> schedule, const char* algorithm,
                   const Layout& in, const Layout& out, int64_t element_bytes, int window,
                   int64_t most_inline = kMaxInlineBytes);
};

// A received message that was not copied to `place`. Its bytes are at `data` (see Loan in
// transports/transport.h).
struct Lent {
  Place place;
  const std::byte* data;
};

// How a call reaches its ranks.
struct Wiring {
  absl::Span<Endpoint* const> endpoints;  // by rank; null for this rank
  // By rank: the context number that the rank uses for this communicator.
  absl::Span<const Context> contexts;
  Context mine = 0;
  uint32_t user_tag = Tag::kUntagged;
  // The number of the call among the calls with its user tag, from 0; equal on all ranks.
  uint64_t sequence = 0;
  uint32_t call_number = 0;     // the low bits of `sequence`, as sent in a tag
  bool point_to_point = false;  // all messages use Tag::kPointToPoint as their lane
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

// The arguments for the caller's own reduction: result = result ⊕ sources[0] ⊕ sources[1] ⊕ ...
struct Combination {
  std::byte* result = nullptr;
  absl::InlinedVector<const std::byte*, 4> sources;
  int64_t count = 0;
};

// The plan and the call must outlive this object.
class Binding {
 public:
  Binding(const Plan& plan, const Call& call, const Kernels& kernels);

  // `scratch` is the scratch of the lane's window slot.
  std::byte* Address(std::byte* scratch, const Place& place) const {
    return (place.slot == Slot::kScratch ? scratch
            : place.slot == Slot::kIn    ? in_
                                         : out_) +
           place.offset;
  }
  Bytes Span(std::byte* scratch, const Place& place) const {
    return {Address(scratch, place), static_cast<size_t>(place.bytes)};
  }
  // Returns the place of a transfer's message.
  const Place& PlaceOf(uint32_t transfer) const { return places_.transfers[transfer]; }
  // Runs the round's operations, beginning with number `op`. Stops before the first operation that
  // needs the caller's own function, and returns the number of this operation. Returns round.ops if
  // there is none.
  uint32_t RunOps(std::byte* scratch, const Round& round, uint32_t op = 0,
                  absl::Span<const Lent> lent = {}) const;
  // Returns the arguments of the caller's own function for operation `op` of the schedule. Copies
  // to scratch the operation's first operand, and the other operands that are in the caller's
  // buffers. The result must then be copied to Span(scratch, plan.ops[op]).
  Combination SetAside(std::byte* scratch, uint32_t op) const;

 private:
  // Returns the address of an operand.
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
