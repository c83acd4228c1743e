// Checks the invariants of schedule.h on one rank's schedule. A failure is a bug of the library, so
// the error is INTERNAL.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "collectives/schedule.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(what);
}

class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule),
        spec_(schedule.spec),
        blocks_(BlockCount(spec_)),
        written_by_(At(blocks_), kNobody),
        first_reader_(At(blocks_), kNobody),
        last_reader_(At(blocks_), kNobody) {}

  absl::Status Run();

 private:
  static constexpr int kNobody = -1;

  absl::Status CheckRanges() const;
  absl::Status CheckLane();
  absl::Status CheckTransfers(const Round& round);
  absl::Status CheckOp(const LocalOp& op);
  absl::Status CheckResult() const;

  absl::Status CheckInside(const Region& region) const;
  absl::Status CheckWritable(const Region& region) const;
  absl::Status CheckAlike(const Region& dst, const Region& operand) const;
  absl::Status Read(const Region& region);
  absl::Status Write(const Region& region);

  BlockRange WindowOf(Slot slot) const;
  // Returns true if kIn and kOut are, or may be, the same memory.
  bool MayAlias() const { return spec_.kind != CallKind::kAllToAll || spec_.in_place; }
  // Returns a number for the memory of a region's i-th block. Blocks that share memory have the
  // same number.
  int Cell(const Region& region, int i) const {
    const int block = region.first + i;
    switch (region.slot) {
      case Slot::kIn:
        return block;
      case Slot::kOut:
        return MayAlias() ? block : blocks_ + block;
      default:
        return 2 * blocks_ + block;
    }
  }
  // Returns the block of D that has the size of a region's i-th block. If parts are even, all
  // blocks of a lane have that size.
  int Like(const Region& region, int i) const {
    const int block = region.slot == Slot::kScratch
                          ? schedule_.scratch_like[lane_.first_scratch + At(region.first + i)]
                          : region.first + i;
    return spec_.kind == CallKind::kAllToAll && !spec_.uneven ? block % spec_.lanes : block;
  }

  const Schedule& schedule_;
  const Spec& spec_;
  const int blocks_;
  std::vector<int> written_by_;                  // by block of kOut: the lane that wrote it
  std::vector<int> first_reader_, last_reader_;  // by block of kIn: the lanes that read it
  Lane lane_;
  int lane_number_ = 0;
  std::vector<bool> scratch_written_;  // of the current lane
};

BlockRange Checker::WindowOf(Slot slot) const {
  switch (slot) {
    case Slot::kIn:
      return InputWindow(spec_);
    case Slot::kOut:
      return OutputWindow(spec_);
    default:
      return {0, static_cast<int>(lane_.scratch)};
  }
}

absl::Status Checker::CheckInside(const Region& region) const {
  const BlockRange window = WindowOf(region.slot);
  if (region.blocks < 0 || (region.blocks > 0 && (region.first < window.first ||
                                                  region.first > window.last - region.blocks))) {
    return Broken(absl::StrCat("region of ", region.blocks, " blocks from ", region.first,
                               " outside its slot's blocks ", window.first, "..", window.last));
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckWritable(const Region& region) const {
  if (region.slot == Slot::kIn && region.blocks > 0) {
    return Broken(absl::StrCat("writes block ", region.first, " of the input"));
  }
  return CheckInside(region);
}

absl::Status Checker::CheckAlike(const Region& dst, const Region& operand) const {
  if (dst.blocks != operand.blocks) {
    return Broken(
        absl::StrCat("operand of ", operand.blocks, " blocks for a result of ", dst.blocks));
  }
  for (int i = 0; i < dst.blocks; ++i) {
    if (Like(dst, i) != Like(operand, i)) {
      return Broken(absl::StrCat("operand as large as block ", Like(operand, i),
                                 " for a result as large as block ", Like(dst, i)));
    }
  }
  const bool one_memory = dst.slot == operand.slot || (MayAlias() && dst.slot != Slot::kScratch &&
                                                       operand.slot != Slot::kScratch);
  const int shift = dst.first - operand.first;
  if (one_memory && shift != 0 && std::abs(shift) < dst.blocks) {
    return Broken(absl::StrCat("result from block ", dst.first, " overlaps an operand from block ",
                               operand.first, " partly"));
  }
  return absl::OkStatus();
}

absl::Status Checker::Read(const Region& region) {
  ENTRAIN_RETURN_IF_ERROR(CheckInside(region));
  for (int i = 0; i < region.blocks; ++i) {
    const int block = region.first + i;
    if (region.slot == Slot::kScratch) {
      if (!scratch_written_[At(block)]) {
        return Broken(absl::StrCat("reads scratch block ", block, " before it is written"));
      }
    } else if (region.slot == Slot::kOut) {
      if (written_by_[At(block)] != lane_number_) {
        return Broken(absl::StrCat("reads block ", block, " of the output before it is written"));
      }
    } else {
      if (MayAlias() && written_by_[At(block)] != kNobody) {
        return Broken(absl::StrCat("reads block ", block, " of the input after the output's was ",
                                   "written: wrong in place"));
      }
      int& first = first_reader_[At(block)];
      first = first == kNobody ? lane_number_ : first;
      last_reader_[At(block)] = lane_number_;
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::Write(const Region& region) {
  ENTRAIN_RETURN_IF_ERROR(CheckWritable(region));
  for (int i = 0; i < region.blocks; ++i) {
    const int block = region.first + i;
    if (region.slot == Slot::kScratch) {
      scratch_written_[At(block)] = true;
      continue;
    }
    int& writer = written_by_[At(block)];
    if (writer != kNobody && writer != lane_number_) {
      return Broken(absl::StrCat("block ", block, " of the output is written by lanes ", writer,
                                 " and ", lane_number_));
    }
    writer = lane_number_;
  }
  return absl::OkStatus();
}

// Checks invariants 1 to 3 for the transfers of a round. Checks the sends before the receives: a
// round's transfers run in any order, so no send may read what the same round receives.
absl::Status Checker::CheckTransfers(const Round& round) {
  enum : uint8_t { kFree, kRead, kWritten };
  std::vector<uint8_t> use(2 * At(blocks_) + lane_.scratch, kFree);
  for (const Direction direction : {Direction::kSend, Direction::kRecv}) {
    for (uint32_t i = 0; i < round.transfers; ++i) {
      const Transfer& transfer = schedule_.transfers[round.first_transfer + i];
      if (transfer.direction != direction) {
        continue;
      }
      if (transfer.peer < 0 || transfer.peer >= spec_.size || transfer.peer == spec_.rank) {
        return Broken(absl::StrCat("transfer with rank ", transfer.peer));
      }
      const bool sends = direction == Direction::kSend;
      ENTRAIN_RETURN_IF_ERROR(sends ? Read(transfer.region) : Write(transfer.region));
      for (int k = 0; k < transfer.region.blocks; ++k) {
        uint8_t& cell = use[At(Cell(transfer.region, k))];
        if (cell == kWritten || (cell == kRead && !sends)) {
          return Broken(absl::StrCat("receive from rank ", transfer.peer,
                                     " overlaps another transfer of the round"));
        }
        cell = sends ? kRead : kWritten;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckOp(const LocalOp& op) {
  const bool copies = op.kind == LocalKind::kCopy;
  if (copies ? op.operands != 1 : op.operands < 2) {
    return Broken(absl::StrCat(copies ? "copy" : "combine", " of ", op.operands, " operands"));
  }
  if (copies && op.last) {
    return Broken("a copy is marked as completing");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckWritable(op.dst));
  for (uint32_t i = 0; i < op.operands; ++i) {
    const Region& operand = schedule_.operands[op.first_operand + i];
    ENTRAIN_RETURN_IF_ERROR(Read(operand));
    ENTRAIN_RETURN_IF_ERROR(CheckAlike(op.dst, operand));
  }
  return Write(op.dst);
}

absl::Status Checker::CheckLane() {
  scratch_written_.assign(lane_.scratch, false);
  for (uint32_t r = 0; r < lane_.rounds; ++r) {
    const Round& round = schedule_.rounds[lane_.first_round + r];
    absl::Status status = CheckTransfers(round);
    for (uint32_t i = 0; status.ok() && i < round.ops; ++i) {
      status = CheckOp(schedule_.ops[round.first_op + i]);
    }
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("lane ", lane_number_, " round ", r));
    }
  }
  return absl::OkStatus();
}

// Checks that no index points outside the arrays.
absl::Status Checker::CheckRanges() const {
  const auto inside = [](uint64_t first, uint64_t count, size_t size) {
    return first + count <= size;
  };
  bool good = spec_.rank >= 0 && spec_.rank < spec_.size && spec_.lanes >= 1 && spec_.root >= 0 &&
              spec_.root < spec_.size;
  for (const Lane& lane : schedule_.lanes) {
    good &= inside(lane.first_round, lane.rounds, schedule_.rounds.size()) &&
            inside(lane.first_scratch, lane.scratch, schedule_.scratch_like.size());
  }
  for (const Round& round : schedule_.rounds) {
    good &= inside(round.first_transfer, round.transfers, schedule_.transfers.size()) &&
            inside(round.first_op, round.ops, schedule_.ops.size());
  }
  for (const LocalOp& op : schedule_.ops) {
    good &= inside(op.first_operand, op.operands, schedule_.operands.size());
  }
  for (const int32_t like : schedule_.scratch_like) {
    good &= like >= 0 && like < blocks_;
  }
  return good ? absl::OkStatus() : Broken("an index points outside the schedule");
}

// Makes the checks that need all lanes: the rest of invariant 4, and that the output is complete
// (invariant 5).
absl::Status Checker::CheckResult() const {
  for (int block = 0; MayAlias() && block < blocks_; ++block) {
    const int writer = written_by_[At(block)];
    const int reader =
        first_reader_[At(block)] != writer ? first_reader_[At(block)] : last_reader_[At(block)];
    if (writer != kNobody && reader != kNobody && reader != writer) {
      return Broken(absl::StrCat("lane ", reader, " reads block ", block,
                                 " of the input while lane ", writer,
                                 " writes the output's: wrong in place"));
    }
  }
  if ((spec_.kind == CallKind::kBroadcast && spec_.rank == spec_.root) ||
      (spec_.kind == CallKind::kExclusiveScan && spec_.rank == 0)) {
    return absl::OkStatus();
  }
  const BlockRange window = WindowOf(Slot::kOut);
  for (int block = window.first; block < window.last; ++block) {
    if (written_by_[At(block)] == kNobody) {
      return Broken(absl::StrCat("block ", block, " of the output is never written"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::Run() {
  ENTRAIN_RETURN_IF_ERROR(CheckRanges());
  for (size_t i = 0; i < schedule_.lanes.size(); ++i) {
    lane_ = schedule_.lanes[i];
    lane_number_ = static_cast<int>(i);
    ENTRAIN_RETURN_IF_ERROR(CheckLane());
  }
  return CheckResult();
}

}  // namespace

absl::Status Validate(const Schedule& schedule) {
  const absl::Status status = Checker(schedule).Run();
  return status.ok() ? status
                     : Annotate(status, absl::StrCat(NameOf(schedule.spec.kind),
                                                     " schedule of rank ", schedule.spec.rank));
}

}  // namespace entrain
