#include "lib/engine/round_facts.h"

#include <algorithm>

#include "collectives/schedule.h"
#include "lib/engine/plan.h"

namespace entrain {
namespace {

enum class Buffers { kInPlace, kApart };

bool Share(const Region& a, const Region& b, Buffers buffers) {
  const bool one_slot = a.slot == b.slot || (buffers == Buffers::kInPlace &&
                                             a.slot != Slot::kScratch && b.slot != Slot::kScratch);
  return one_slot && std::max(a.first, b.first) < std::min(a.first + a.blocks, b.first + b.blocks);
}

bool Inside(const Region& inner, const Region& outer) {
  return inner.slot == outer.slot && inner.first >= outer.first &&
         inner.first + inner.blocks <= outer.first + outer.blocks;
}

// How one round uses the memory of a region.
struct Uses {
  bool transferred = false;
  bool overwritten = false;       // by a receive that writes all of it
  bool written = false;           // by an operation
  int operands = 0;               // number of operands that share memory with the region
  bool operand_outside = false;   // such an operand is not inside the region
  int64_t operand = -1, op = -1;  // the last such operand and its operation

  bool none() const { return !transferred && !written && operands == 0; }
};

// Returns how the round uses the memory of `region`. `region` belongs to a transfer or an operation
// of the schedule, whose own use does not count.
Uses UsesIn(const Schedule& schedule, const Round& round, const Region& region, Buffers buffers) {
  Uses uses;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    const Transfer& transfer = schedule.transfers[t];
    if (&transfer.region != &region && Share(transfer.region, region, buffers)) {
      uses.transferred = true;
      uses.overwritten |= transfer.direction == Direction::kRecv && Inside(region, transfer.region);
    }
  }
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    const LocalOp& op = schedule.ops[o];
    uses.written |= &op.dst != &region && Share(op.dst, region, buffers);
    for (uint32_t i = op.first_operand; i < op.first_operand + op.operands; ++i) {
      if (Share(schedule.operands[i], region, buffers)) {
        ++uses.operands;
        uses.operand_outside |= !Inside(schedule.operands[i], region);
        uses.operand = i;
        uses.op = o;
      }
    }
  }
  return uses;
}

// Returns the facts about a receive into scratch. `round` is the index of its round in the
// schedule.
TransferFacts FactsOfReceive(const Schedule& schedule, const Lane& lane, uint32_t round,
                             const Region& region, const Uses& uses) {
  TransferFacts facts;
  // No other transfer of the round uses this memory (invariant 2 of collectives/schedule.h).
  facts.only_read = !uses.written && !uses.operand_outside;
  if (uses.operands == 1) {
    facts.operand = uses.operand;
    facts.op = uses.op;
  }
  Uses later;
  for (uint32_t r = round + 1; r < lane.first_round + lane.rounds && later.none(); ++r) {
    later = UsesIn(schedule, schedule.rounds[r], region, Buffers::kInPlace);
  }
  // A receive in a later round overwrites the message before the operations of that round run. So
  // these operations do not see the message.
  facts.ends_with_round = later.none() || later.overwritten;
  return facts;
}

bool AloneAtResult(const Schedule& schedule, const Round& round, const LocalOp& op) {
  return op.kind == LocalKind::kCombine && op.dst.slot == Slot::kOut &&
         UsesIn(schedule, round, op.dst, Buffers::kApart).none();
}

// Adds a transfer to the facts about its round.
void Add(const Transfer& transfer, const Uses& uses, int64_t bytes, RoundFacts* of_round) {
  of_round->longest = std::max(of_round->longest, bytes);
  if (transfer.direction == Direction::kSend) {
    ++of_round->sends;
    of_round->writes_sent |= uses.written;
    return;
  }
  ++of_round->receives;
  of_round->longest_received = std::max(of_round->longest_received, bytes);
}

bool RepeatsPeer(const Schedule& schedule, const Round& round) {
  std::vector<int> peers;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    if (schedule.transfers[t].direction == Direction::kRecv) {
      peers.push_back(schedule.transfers[t].peer);
    }
  }
  std::sort(peers.begin(), peers.end());
  return std::adjacent_find(peers.begin(), peers.end()) != peers.end();
}

}  // namespace

Facts FactsOf(const Plan& plan) {
  const Schedule& schedule = *plan.schedule;
  Facts facts;
  facts.rounds.resize(schedule.rounds.size());
  facts.transfers.resize(schedule.transfers.size());
  facts.ops.resize(schedule.ops.size());
  for (const Lane& lane : schedule.lanes) {
    for (uint32_t r = lane.first_round; r < lane.first_round + lane.rounds; ++r) {
      const Round& round = schedule.rounds[r];
      RoundFacts& of_round = facts.rounds[r];
      of_round.repeats_peer = RepeatsPeer(schedule, round);
      for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
        const Transfer& transfer = schedule.transfers[t];
        const Uses uses = UsesIn(schedule, round, transfer.region, Buffers::kInPlace);
        Add(transfer, uses, plan.places.transfers[t].bytes, &of_round);
        if (transfer.direction == Direction::kRecv && transfer.region.slot == Slot::kScratch) {
          facts.transfers[t] = FactsOfReceive(schedule, lane, r, transfer.region, uses);
        }
      }
      for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
        facts.ops[o].alone_at_result = AloneAtResult(schedule, round, schedule.ops[o]);
      }
    }
  }
  return facts;
}

}  // namespace entrain
