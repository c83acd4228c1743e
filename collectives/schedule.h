// Collectives as data. A schedule describes what one rank does in one call, as flat arrays. A
// schedule holds no addresses and no counts. So it is built once, and used for every call of the
// same shape. All schedules have the same executor (lib/engine/executor), the same simulator
// (tests/support/simulator) and the same printer (ToString).
//
//   Schedule: has lanes. Each lane is a list of rounds that run one after the other. Lanes write
//             disjoint output and never wait for each other.
//   Round:    posts all its transfers together, waits for all of them, then does its local
//             operations in order.
//
// A region is a range of blocks (collectives/spec.h) in one of three slots:
//   kIn, kOut   blocks of D inside the slot's window of D (InputWindow, OutputWindow). kIn and kOut
//               may be the same memory (calls in place, see invariant 4). In an all_to_all they are
//               the same memory only if spec.in_place is set.
//   kScratch    blocks of this lane's own scratch. Block s is as large as D's block
//               `scratch_like[first_scratch + s]`. The lane has its scratch only while it runs.
// A region of several blocks is contiguous in memory. A transfer whose region has no blocks is a
// message of no bytes.
//
// Invariants (Validate checks 1 to 5, the simulator checks 6):
//   1 Regions lie inside their slots. kIn is never written. Operands are as large as dst, block by
//     block.
//   2 Within a round no received region overlaps the region of another transfer. If a call may be
//     in place, kIn and kOut count as one memory.
//   3 Sends and local operations read only kIn, results of earlier operations, and regions that
//     were received earlier.
//   4 This rank writes a block of kOut only after all its reads of the same block of kIn, in all
//     lanes.
//   5 Lanes write disjoint blocks of kOut. Together they write every block of kOut, with two
//     exceptions. A broadcast's root writes none, because its kIn and kOut are one buffer. Rank 0
//     of an exclusive scan writes none, because no rank comes before it.
//   6 Transfers with one peer in one lane are in the same order on both sides.
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
  kCopy,     // dst = operand 0
  kCombine,  // dst = operand 0 ⊕ operand 1 ⊕ ... in order, in f32 or wider, rounded once
};

struct LocalOp {
  LocalKind kind = LocalKind::kCopy;
  // kCombine: the result contains every rank's contribution. If the reduction is an average, this
  // operation divides.
  bool last = false;
  Region dst;
  uint32_t first_operand = 0, operands = 0;  // in Schedule::operands; kCombine: at least 2
};

struct Round {
  uint32_t first_transfer = 0, transfers = 0;
  uint32_t first_op = 0, ops = 0;
};

struct Lane {
  uint32_t first_round = 0, rounds = 0;
  uint32_t first_scratch = 0, scratch = 0;  // in Schedule::scratch_like
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

// Returns the number of elements of a region of this lane. `layout` is the layout of the region's
// slot, or of the input if the slot is scratch.
int64_t ElementsOf(const Schedule& schedule, const Lane& lane, const Layout& layout,
                   const Region& region);

// Builds a schedule lane by lane, round by round.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const Spec& spec);
  const Spec& spec() const { return schedule_.spec; }

  void BeginLane();  // ends the previous lane; the calls below then apply to the new lane
  // Adds a scratch block to this lane, as large as D's block `like`.
  int AddScratch(int like);
  // Begins a round. A round without transfers and operations is removed.
  void BeginRound();
  void Send(int peer, Region region);
  void Recv(int peer, Region region);
  // Add local operations to the current round. A lane may begin with operations only.
  void Copy(Region dst, Region from);
  void Combine(Region dst, const std::vector<Region>& operands, bool last);
  Schedule Finish();

 private:
  void AddOp(LocalOp op, const std::vector<Region>& operands);
  void DropEmptyRound();

  Schedule schedule_;
};

absl::Status Validate(const Schedule& schedule);
// Returns text for readers, one line per round (--explain, tests, debugging).
std::string ToString(const Schedule& schedule);

}  // namespace entrain
