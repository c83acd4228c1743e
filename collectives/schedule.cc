#include "collectives/schedule.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

uint32_t Size32(size_t size) {
  return static_cast<uint32_t>(size);
}

// Returns "in[3]", "out[4..8)" or "s[0]", and "nothing" for a message of no bytes.
std::string Text(const Region& region) {
  static constexpr const char* kNames[] = {"in", "out", "s"};
  if (region.blocks == 0) {
    return "nothing";
  }
  const char* name = kNames[static_cast<size_t>(region.slot)];
  if (region.blocks == 1) {
    return absl::StrCat(name, "[", region.first, "]");
  }
  return absl::StrCat(name, "[", region.first, "..", region.first + region.blocks, ")");
}

std::string Text(const Schedule& schedule, const LocalOp& op) {
  std::string text = absl::StrCat(Text(op.dst), " =");
  for (uint32_t i = 0; i < op.operands; ++i) {
    absl::StrAppend(&text, i == 0 ? " " : " + ", Text(schedule.operands[op.first_operand + i]));
  }
  return absl::StrCat(text, op.last ? " (complete)" : "");
}

std::string Text(const Schedule& schedule, const Round& round) {
  std::string text;
  for (uint32_t i = 0; i < round.transfers; ++i) {
    const Transfer& transfer = schedule.transfers[round.first_transfer + i];
    absl::StrAppend(&text, i == 0 ? "" : ", ",
                    transfer.direction == Direction::kSend ? "send to " : "recv from ",
                    transfer.peer, " ", Text(transfer.region));
  }
  for (uint32_t i = 0; i < round.ops; ++i) {
    absl::StrAppend(&text, text.empty() ? "" : "; ",
                    Text(schedule, schedule.ops[round.first_op + i]));
  }
  return text;
}

}  // namespace

int64_t ElementsOf(const Schedule& schedule, const Lane& lane, const Layout& layout,
                   const Region& region) {
  if (region.slot != Slot::kScratch) {
    return layout.first[static_cast<size_t>(region.first + region.blocks)] -
           layout.first[static_cast<size_t>(region.first)];
  }
  int64_t elements = 0;
  for (int32_t s = region.first; s < region.first + region.blocks; ++s) {
    elements +=
        layout.elements(schedule.scratch_like[lane.first_scratch + static_cast<uint32_t>(s)]);
  }
  return elements;
}

ScheduleBuilder::ScheduleBuilder(const Spec& spec) {
  schedule_.spec = spec;
}

void ScheduleBuilder::BeginLane() {
  DropEmptyRound();
  schedule_.lanes.push_back(
      {Size32(schedule_.rounds.size()), 0, Size32(schedule_.scratch_like.size()), 0});
}

int ScheduleBuilder::AddScratch(int like) {
  schedule_.scratch_like.push_back(like);
  return static_cast<int>(schedule_.lanes.back().scratch++);
}

void ScheduleBuilder::BeginRound() {
  DropEmptyRound();
  schedule_.rounds.push_back(
      {Size32(schedule_.transfers.size()), 0, Size32(schedule_.ops.size()), 0});
  ++schedule_.lanes.back().rounds;
}

void ScheduleBuilder::Send(int peer, Region region) {
  schedule_.transfers.push_back({Direction::kSend, peer, region});
  ++schedule_.rounds.back().transfers;
}

void ScheduleBuilder::Recv(int peer, Region region) {
  schedule_.transfers.push_back({Direction::kRecv, peer, region});
  ++schedule_.rounds.back().transfers;
}

void ScheduleBuilder::Copy(Region dst, Region from) {
  AddOp({LocalKind::kCopy, false, dst, 0, 1}, {from});
}

void ScheduleBuilder::Combine(Region dst, const std::vector<Region>& operands, bool last) {
  AddOp({LocalKind::kCombine, last, dst, 0, Size32(operands.size())}, operands);
}

void ScheduleBuilder::AddOp(LocalOp op, const std::vector<Region>& operands) {
  if (schedule_.lanes.back().rounds == 0) {
    BeginRound();
  }
  op.first_operand = Size32(schedule_.operands.size());
  schedule_.operands.insert(schedule_.operands.end(), operands.begin(), operands.end());
  schedule_.ops.push_back(op);
  ++schedule_.rounds.back().ops;
}

void ScheduleBuilder::DropEmptyRound() {
  if (schedule_.lanes.empty() || schedule_.lanes.back().rounds == 0) {
    return;
  }
  const Round& round = schedule_.rounds.back();
  if (round.transfers == 0 && round.ops == 0) {
    schedule_.rounds.pop_back();
    --schedule_.lanes.back().rounds;
  }
}

Schedule ScheduleBuilder::Finish() {
  DropEmptyRound();
  return std::move(schedule_);
}

std::string ToString(const Schedule& schedule) {
  const Spec& spec = schedule.spec;
  const absl::string_view name = NameOf(spec.kind);
  std::string text = absl::StrCat(name, " rank ", spec.rank, " of ", spec.size);
  if (HasRoot(spec.kind)) {
    absl::StrAppend(&text, ", root ", spec.root);
  }
  absl::StrAppend(&text, "\n");
  for (size_t l = 0; l < schedule.lanes.size(); ++l) {
    const Lane& lane = schedule.lanes[l];
    absl::StrAppend(&text, "lane ", l, ", ", lane.scratch, " blocks of scratch\n");
    for (uint32_t r = 0; r < lane.rounds; ++r) {
      absl::StrAppend(&text, "  ", r, ": ", Text(schedule, schedule.rounds[lane.first_round + r]),
                      "\n");
    }
  }
  return text;
}

}  // namespace entrain
