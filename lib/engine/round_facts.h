// Facts about the memory that the transfers and operations of a schedule share, round by round.
// Plan derives its flags from these facts.
//
// Two regions share memory if they have a block of one slot in common. If a call is in place, equal
// blocks of kIn and kOut are the same memory too.
#pragma once

#include <cstdint>
#include <vector>

namespace entrain {

struct Plan;

struct RoundFacts {
  uint32_t sends = 0, receives = 0;
  int64_t longest = 0, longest_received = 0;  // lengths of messages, in bytes
  bool repeats_peer = false;                  // two of the receives are from the same peer
  // If the call is in place, an operation of the round writes to memory that the round sends.
  bool writes_sent = false;
};

// A receive into scratch. Other transfers have the initial values.
struct TransferFacts {
  // The operations of the round only read the message, and each operand that shares its memory lies
  // inside it.
  bool only_read = false;
  // No later round of the lane uses the message: nothing touches its memory before a receive that
  // overwrites all of it.
  bool ends_with_round = false;
  // The only operand of the round that shares the memory, and the operation of this operand. -1 if
  // no operand shares the memory, or if several do.
  int64_t operand = -1, op = -1;
};

struct OpFacts {
  // The operation combines into kOut. In a call that is not in place, nothing else in the round
  // uses the memory of the operation's result.
  bool alone_at_result = false;
};

struct Facts {
  std::vector<RoundFacts> rounds;
  std::vector<TransferFacts> transfers;
  std::vector<OpFacts> ops;
};

// Returns the facts about a plan that has its schedule and the places of transfers and operations.
// The time is proportional to the squares of the numbers of transfers and operations in a round.
Facts FactsOf(const Plan& plan);

}  // namespace entrain
