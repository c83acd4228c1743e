// Collectives as data. A schedule is what one rank does in one call, as flat arrays: it holds no addresses and no
// counts, so it is built once and reused for every call of the same shape. One executor runs every schedule
// (lib/engine/executor), one simulator proves every schedule (tests/support/simulator), one printer draws it.
//
//   Schedule: lanes, each a straight line of rounds. Lanes write disjoint output and never wait for each other.
//   Round:    post all transfers together, wait for all of them, then do the local operations in order.
//
// Regions are ranges of blocks (collectives/spec.h) in one of three slots:
//   kIn, kOut   blocks of D inside the slot's window on it (InputWindow, OutputWindow). kIn and kOut may be the same
//               memory (in-place calls), see Invariant 4; in an all_to_all only where the spec says in_place.
//   kScratch    blocks of this lane's own scratch; block s is as large as D's block `scratch_like[first_scratch + s]`.
//               Lent by the executor for the life of the lane.
// A region of several blocks is contiguous in memory. A region of no blocks is a message of no bytes.
//
// Invariants (Validate checks them):
//   1 Regions lie inside their slots; kIn is never written. Operands are as large as dst, block by block.
//   2 Within a round no received or written region overlaps another transfer's region (in-place aliasing counted).
//   3 Local operations read what is already there: kIn, what earlier operations wrote, what was received before.
//   4 A block of kOut is written only after every read of the same block of kIn by this rank, in any lane.
//   5 Lanes write disjoint blocks of kOut.
//     Every block of kOut is written, but on a broadcast's root and on rank 0 of an exclusive scan none: on the root kIn
//     and kOut are the one buffer of the call, and nothing comes before rank 0.
//   6 Transfers with one peer in one lane are in the same order on both sides (the simulator checks it).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "collectives/spec.h"

namespace entrain {

enum class Slot : uint8_t { kIn, kOut, kScratch };
enum class Direction : uint8_t { kSend, kRecv };

struct Region {
  Slot slot = Slot::kIn;
  int32_t first = 0;  // block of D, or of the lane's scratch
  int32_t blocks = 0;
  friend bool operator==(const Region&, const Region&) = default;
};

struct Transfer {
  Direction direction = Direction::kSend;
  int32_t peer = 0;  // rank in the communicator
  Region region;
};

enum class LocalKind : uint8_t {
  kCopy,  // dst = operand 0
  kCombine,  // dst = operand 0 ⊕ operand 1 ⊕ ...; in this order, accumulated in f32 or wider, rounded once
};

struct LocalOp {
  LocalKind kind = LocalKind::kCopy;
  // kCombine: the result is complete (every rank's contribution is in it): avg divides here.
  bool last = false;
  Region dst;
  uint32_t first_operand = 0, operands = 0;  // into Schedule::operands; kCombine: at least 2
};

struct Round {
  uint32_t first_transfer = 0, transfers = 0;
  uint32_t first_op = 0, ops = 0;
};

struct Lane {
  uint32_t first_round = 0, rounds = 0;
  uint32_t first_scratch = 0, scratch = 0;  // into Schedule::scratch_like
};

struct Schedule {
  Spec spec;
  std::vector<Lane> lanes;
  std::vector<Round> rounds;
  std::vector<Transfer> transfers;
  std::vector<LocalOp> ops;
  std::vector<Region> operands;
  std::vector<int32_t> scratch_like;
};

// Elements of a region of this lane. `layout`: of the region's slot; of the input for scratch.
int64_t ElementsOf(const Schedule& schedule, const Lane& lane, const Layout& layout,
                   const Region& region);

// Builds a schedule lane by lane, round by round.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const Spec& spec);
  const Spec& spec() const { return schedule_.spec; }

  void BeginLane();  // ends the one before; everything below is about the lane that was begun last
  // A new scratch block of this lane, as large as D's block `like`.
  int AddScratch(int like);
  // A round that stays empty leaves no trace.
  void BeginRound();
  void Send(int peer, Region region);
  void Recv(int peer, Region region);
  // Local operations of the round that was begun last. A lane may begin with operations only.
  void Copy(Region dst, Region from);
  void Combine(Region dst, const std::vector<Region>& operands, bool last);
  Schedule Finish();

 private:
  void AddOp(LocalOp op, const std::vector<Region>& operands);
  void DropEmptyRound();

  Schedule schedule_;
};

absl::Status Validate(const Schedule& schedule);
// Readable text, one line a round, for --explain, tests and debugging.
std::string ToString(const Schedule& schedule);

}  // namespace entrain
