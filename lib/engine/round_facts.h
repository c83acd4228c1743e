// Describes, for each round of a schedule, which transfers and operations use the same memory. Plan
// derives its flags from these facts.
//
// Two regions share memory if they have a block of the same slot in common. In an in-place call,
// equal blocks of kIn and kOut are the same memory too.
#pragma once

#include <cstdint>
#include <vector>

namespace entrain {

struct Plan;

struct RoundFacts {
  uint32_t sends = 0, receives = 0;
  int64_t longest = 0, longest_received = 0;  // bytes of the longest (received) message
  bool repeats_peer = false;                  // two receives are from the same peer
  // In an in-place call, an operation of the round writes to memory that the round sends.
  bool writes_sent = false;
};

// About a receive into scratch. For other transfers, the members keep their initial values.
struct TransferFacts {
  // The operations of the round only read the message. Each operand that shares memory with it lies
  // inside it.
  bool only_read = false;
  // No later round of the lane reads the message: its memory is not used any more, or a receive
  // overwrites the whole memory first.
  bool ends_with_round = false;
  // `operand`: the operand of the round whose memory overlaps the memory of the message. `op`: the
  // operation that has this operand. Both are -1 if no operand overlaps, or more than one.
  int64_t operand = -1, op = -1;
};

struct OpFacts {
  // The operation combines into kOut. If the call is not in place, nothing else in the round uses
  // the memory of the result.
  bool alone_at_result = false;
};

struct Facts {
  std::vector<RoundFacts> rounds;
  std::vector<TransferFacts> transfers;
  std::vector<OpFacts> ops;
};

// Returns the facts about a plan. The plan must already have its schedule and its places. The time
// is proportional to the squares of the numbers of transfers and operations in a round.
Facts FactsOf(const Plan& plan);

}  // namespace entrain
