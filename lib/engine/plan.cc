#include "lib/engine/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"

#include "lib/kernels/merge.h"

namespace entrain {
namespace {

// Translates regions to places, for one lane after the other.
class Cutter {
 public:
  Cutter(const Schedule& schedule, const Layout& in, const Layout& out, int64_t element_bytes)
      : schedule_(schedule),
        in_(in),
        out_(out),
        element_bytes_(element_bytes),
        in_begin_(in.first[static_cast<size_t>(InputWindow(schedule.spec).first)]),
        out_begin_(out.first[static_cast<size_t>(OutputWindow(schedule.spec).first)]) {}

  // Begins a lane. Returns the bytes of its scratch. The scratch blocks follow each other without
  // gaps, because the blocks of one region must be contiguous.
  int64_t Enter(const Lane& lane) {
    lane_ = &lane;
    scratch_.assign(1, 0);
    for (uint32_t s = lane.first_scratch; s < lane.first_scratch + lane.scratch; ++s) {
      scratch_.push_back(scratch_.back() + in_.elements(schedule_.scratch_like[s]));
    }
    return scratch_.back() * element_bytes_;
  }
  Place At(const Region& region) const {
    const bool out = region.slot == Slot::kOut;
    if (region.blocks == 0) {
      return {region.slot, 0, 0};
    }
    const auto first = static_cast<size_t>(region.first);
    const int64_t begin = region.slot == Slot::kScratch ? scratch_[first]
                          : out                         ? out_.first[first] - out_begin_
                                                        : in_.first[first] - in_begin_;
    return {region.slot, begin * element_bytes_,
            ElementsOf(schedule_, *lane_, out ? out_ : in_, region) * element_bytes_};
  }

 private:
  const Schedule& schedule_;
  const Layout &in_, &out_;
  const int64_t element_bytes_, in_begin_, out_begin_;
  const Lane* lane_ = nullptr;
  std::vector<int64_t> scratch_;
};

// Returns true if the plan has one lane of short messages, and at most one receive from each peer
// in every round. A round that receives long messages from several peers does not fit, because an
// executor receives them concurrently.
bool FitsInline(const Plan& plan) {
  constexpr uint32_t kMaxTransfers = 64;  // bits of Progress::done
  constexpr int64_t kLongOfSeveral = 1 << 20;
  const Schedule& schedule = *plan.schedule;
  if (schedule.lanes.size() != 1) {
    return false;
  }
  return std::all_of(schedule.rounds.begin(), schedule.rounds.end(), [&](const Round& round) {
    std::vector<int> from;
    int64_t longest = 0;
    bool fits = round.transfers <= kMaxTransfers;
    for (uint32_t t = 0; fits && t < round.transfers; ++t) {
      const Transfer& transfer = schedule.transfers[round.first_transfer + t];
      const int64_t bytes = plan.places.transfers[round.first_transfer + t].bytes;
      fits = bytes <= kMaxInlineBytes;
      if (transfer.direction == Direction::kRecv) {
        from.push_back(transfer.peer);
        longest = std::max(longest, bytes);
      }
    }
    std::sort(from.begin(), from.end());
    return fits && (from.size() < 2 || longest < kLongOfSeveral) &&
           std::adjacent_find(from.begin(), from.end()) == from.end();
  });
}

bool Overlap(const Region& a, const Region& b) {
  return a.slot == b.slot && a.first < b.first + b.blocks && b.first < a.first + a.blocks;
}
bool Inside(const Region& a, const Region& b) {
  return a.slot == b.slot && a.first >= b.first && a.first + a.blocks <= b.first + b.blocks;
}

// Returns true if this round touches the region of transfer `received` only by operands inside the
// region.
bool OnlyOperands(const Schedule& schedule, const Round& round, uint32_t received) {
  const Region& region = schedule.transfers[received].region;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    if (t != received && Overlap(schedule.transfers[t].region, region)) {
      return false;
    }
  }
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    const LocalOp& op = schedule.ops[o];
    for (uint32_t i = op.first_operand; i < op.first_operand + op.operands; ++i) {
      const Region& operand = schedule.operands[i];
      if (Overlap(operand, region) && !Inside(operand, region)) {
        return false;
      }
    }
    if (Overlap(op.dst, region)) {
      return false;
    }
  }
  return true;
}

// Returns true if the regions overlap in a call in place, where the same block of kIn and of kOut
// is the same memory.
bool MayAlias(Region a, Region b) {
  a.slot = a.slot == Slot::kIn ? Slot::kOut : a.slot;
  b.slot = b.slot == Slot::kIn ? Slot::kOut : b.slot;
  return Overlap(a, b);
}

bool OpsBeforeSends(const Schedule& schedule, const Round& round) {
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    const Transfer& transfer = schedule.transfers[t];
    for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
      if (transfer.direction == Direction::kSend &&
          MayAlias(transfer.region, schedule.ops[o].dst)) {
        return false;
      }
    }
  }
  return true;
}

bool CopiesFirst(const Plan& plan, const Round& round) {
  constexpr int64_t kLeast = 1024;  // bytes; to copy less first gains no time
  const Schedule& schedule = *plan.schedule;
  bool sends = false, receives = false;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    const Transfer& transfer = schedule.transfers[t];
    const bool receive = transfer.direction == Direction::kRecv;
    (receive ? receives : sends) = true;
    if (receive && transfer.region.slot != Slot::kOut) {
      return false;
    }
    for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
      const LocalOp& op = schedule.ops[o];
      const Region& from = schedule.operands[op.first_operand];
      // In a call in place, such an operation copies a region to itself. A send may read the region
      // meanwhile.
      const bool stays = from.first == op.dst.first && from.blocks == op.dst.blocks;
      if (op.kind != LocalKind::kCopy || (receive && MayAlias(transfer.region, from)) ||
          (MayAlias(transfer.region, op.dst) && (receive || !stays))) {
        return false;
      }
    }
  }
  return sends && receives && round.ops > 0 && plan.ops[round.first_op].bytes >= kLeast;
}

enum class Touch { kNone, kRewritten, kOther };
Touch TouchIn(const Schedule& schedule, const Round& round, const Region& region) {
  Touch touch = Touch::kNone;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    const Transfer& transfer = schedule.transfers[t];
    if (Overlap(transfer.region, region)) {
      const bool rewrites =
          transfer.direction == Direction::kRecv && Inside(region, transfer.region);
      touch = rewrites && touch != Touch::kOther ? Touch::kRewritten : Touch::kOther;
    }
  }
  for (uint32_t o = round.first_op; o < round.first_op + round.ops && touch == Touch::kNone; ++o) {
    const LocalOp& op = schedule.ops[o];
    bool any = Overlap(op.dst, region);
    for (uint32_t i = op.first_operand; i < op.first_operand + op.operands; ++i) {
      any |= Overlap(schedule.operands[i], region);
    }
    touch = any ? Touch::kOther : Touch::kNone;
  }
  return touch;
}

bool ReadOnce(const Schedule& schedule, const Lane& lane, uint32_t round, uint32_t index) {
  const Transfer& transfer = schedule.transfers[index];
  if (transfer.direction != Direction::kRecv || transfer.region.slot != Slot::kScratch ||
      !OnlyOperands(schedule, schedule.rounds[round], index)) {
    return false;
  }
  Touch touch = Touch::kNone;
  for (uint32_t r = round + 1; r < lane.first_round + lane.rounds && touch == Touch::kNone; ++r) {
    touch = TouchIn(schedule, schedule.rounds[r], transfer.region);
  }
  return touch != Touch::kOther;
}

void FindReadOnce(Plan* plan) {
  const Schedule& schedule = *plan->schedule;
  plan->read_once.resize(schedule.transfers.size());
  plan->may_be_lent.resize(schedule.transfers.size());
  for (const Lane& lane : schedule.lanes) {
    for (uint32_t r = lane.first_round; r < lane.first_round + lane.rounds; ++r) {
      const Round& round = schedule.rounds[r];
      for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
        plan->read_once[t] = ReadOnce(schedule, lane, r, t);
        plan->may_be_lent[t] = plan->read_once[t] && plan->ops_before_sends[r];
      }
    }
  }
}

// Returns true if nothing else in this round touches the result of operation `index`.
bool OnlyResult(const Schedule& schedule, const Round& round, uint32_t index) {
  const Region& dst = schedule.ops[index].dst;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    if (Overlap(schedule.transfers[t].region, dst)) {
      return false;
    }
  }
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    const LocalOp& op = schedule.ops[o];
    for (uint32_t i = op.first_operand; i < op.first_operand + op.operands; ++i) {
      if (Overlap(schedule.operands[i], dst)) {
        return false;
      }
    }
    if (o != index && Overlap(op.dst, dst)) {
      return false;
    }
  }
  return true;
}

// Returns the index of the operand of `op` that reads the message of transfer `t`, if no other
// operand of the round reads the message. Otherwise returns -1.
int64_t OnlyReader(const Schedule& schedule, const Round& round, const LocalOp& op, uint32_t t) {
  int64_t reader = -1;
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    const LocalOp& other = schedule.ops[o];
    for (uint32_t i = other.first_operand; i < other.first_operand + other.operands; ++i) {
      if (Overlap(schedule.operands[i], schedule.transfers[t].region)) {
        if (&other != &op || reader >= 0) {
          return -1;
        }
        reader = i;
      }
    }
  }
  return reader;
}

// Fills in plan->apart. An operation that combines messages into the output may receive one of them
// at the place of the result.
void FindApart(Plan* plan) {
  const Schedule& schedule = *plan->schedule;
  Plan::Places apart = plan->places;
  bool any = false;
  for (const Round& round : schedule.rounds) {
    for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
      const LocalOp& op = schedule.ops[o];
      if (op.kind != LocalKind::kCombine || op.dst.slot != Slot::kOut ||
          !OnlyResult(schedule, round, o)) {
        continue;
      }
      for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
        const int64_t reader = plan->read_once[t] ? OnlyReader(schedule, round, op, t) : -1;
        if (reader >= 0 && plan->places.transfers[t].bytes == plan->ops[o].bytes) {
          apart.transfers[t] = apart.operands[static_cast<size_t>(reader)] = plan->ops[o];
          any = true;
          break;
        }
      }
    }
  }
  if (any) {
    plan->apart = std::move(apart);
  }
}

// Rounds up to whole cache lines.
int64_t Aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Returns the bytes that SetAside needs for operation `index`: room for the result, and for those
// operands after the first that lie in the caller's buffers.
int64_t AsideBytesOf(const Plan& plan, uint32_t index) {
  const LocalOp& op = plan.schedule->ops[index];
  int64_t copies = 1;
  for (uint32_t i = op.first_operand + 1; i < op.first_operand + op.operands; ++i) {
    copies += plan.places.operands[i].slot == Slot::kScratch ? 0 : 1;
  }
  return op.kind == LocalKind::kCombine ? copies * Aligned(plan.ops[index].bytes) : 0;
}

// Returns true if messages of the call may be received at the place of its result before the result
// is computed. No input may lie there.
bool MayUseApart(const Call& call) {
  const auto in = reinterpret_cast<uintptr_t>(call.in.data),
             out = reinterpret_cast<uintptr_t>(call.out.data);
  const bool overlap = in == out || (in < out + static_cast<uint64_t>(call.out.bytes) &&
                                     out < in + static_cast<uint64_t>(call.in.bytes));
  // The caller's function and Merge do not accept an operand that is also the result.
  return !overlap && call.reduction.op != ReduceOp::kCustom && call.reduction.merging == nullptr;
}

}  // namespace

Plan Plan::Make(std::shared_ptr<const Schedule> schedule, const char* algorithm, const Layout& in,
                const Layout& out, int64_t element_bytes, int window) {
  Plan plan;
  plan.algorithm = algorithm;
  plan.element_bytes = element_bytes;
  plan.window = std::min(window, static_cast<int>(schedule->lanes.size()));
  plan.places.transfers.resize(schedule->transfers.size());
  plan.ops.resize(schedule->ops.size());
  plan.places.operands.resize(schedule->operands.size());
  Cutter cutter(*schedule, in, out, element_bytes);
  for (const Lane& lane : schedule->lanes) {
    // The scratch of a lane begins at a cache line.
    plan.slot_bytes = std::max(plan.slot_bytes, Aligned(cutter.Enter(lane)));
    for (uint32_t r = lane.first_round; r < lane.first_round + lane.rounds; ++r) {
      const Round& round = schedule->rounds[r];
      for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
        plan.places.transfers[t] = cutter.At(schedule->transfers[t].region);
      }
      for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
        const LocalOp& op = schedule->ops[o];
        plan.ops[o] = cutter.At(op.dst);
        for (uint32_t i = op.first_operand; i < op.first_operand + op.operands; ++i) {
          plan.places.operands[i] = cutter.At(schedule->operands[i]);
        }
      }
    }
  }
  plan.schedule = std::move(schedule);
  for (uint32_t o = 0; o < plan.schedule->ops.size(); ++o) {
    plan.aside_bytes = std::max(plan.aside_bytes, AsideBytesOf(plan, o));
  }
  plan.fits_inline = FitsInline(plan);
  for (const Round& round : plan.schedule->rounds) {
    plan.ops_before_sends.push_back(OpsBeforeSends(*plan.schedule, round));
    plan.copies_first.push_back(CopiesFirst(plan, round));
  }
  FindReadOnce(&plan);
  FindApart(&plan);
  return plan;
}

Binding::Binding(const Plan& plan, const Call& call, const Kernels& kernels)
    : plan_(plan),
      schedule_(*plan.schedule),
      call_(call),
      kernels_(kernels),
      in_(static_cast<std::byte*>(call.in.data)),
      out_(static_cast<std::byte*>(call.out.data)),
      places_(!plan.apart.transfers.empty() && MayUseApart(call) ? plan.apart : plan.places) {}

const std::byte* Binding::Source(std::byte* scratch, const Place& place,
                                 absl::Span<const Lent> lent) const {
  for (const Lent& one : lent) {
    if (place.slot == one.place.slot && place.offset >= one.place.offset &&
        place.offset < one.place.offset + one.place.bytes) {
      return one.data + (place.offset - one.place.offset);
    }
  }
  return Address(scratch, place);
}

uint32_t Binding::RunOps(std::byte* scratch, const Round& round, uint32_t op,
                         absl::Span<const Lent> lent) const {
  for (; op < round.ops; ++op) {
    const uint32_t index = round.first_op + op;
    const LocalOp& local = schedule_.ops[index];
    const Bytes dst = Span(scratch, plan_.ops[index]);
    if (dst.empty()) {
      continue;
    }
    if (local.kind == LocalKind::kCombine) {
      if (call_.reduction.op == ReduceOp::kCustom) {
        return op;
      }
      Combine(scratch, index, lent);
      continue;
    }
    const std::byte* const from = Source(scratch, places_.operands[local.first_operand], lent);
    if (dst.data() != from) {
      std::memcpy(dst.data(), from, dst.size());
    }
  }
  return op;
}

void Binding::Combine(std::byte* scratch, uint32_t index, absl::Span<const Lent> lent) const {
  const LocalOp& op = schedule_.ops[index];
  const Place& to = plan_.ops[index];
  const int64_t count = to.bytes / plan_.element_bytes;
  std::byte* const dst = Address(scratch, to);
  absl::InlinedVector<const void*, 16> sources;
  for (uint32_t i = 0; i < op.operands; ++i) {
    sources.push_back(Source(scratch, places_.operands[op.first_operand + i], lent));
  }
  if (call_.reduction.merging != nullptr) {
    // The sources are the ranks' contributions in rank order, because the planner chooses only
    // algorithms with that property for a merge.
    Merge(kernels_, *call_.reduction.merging, call_.dtype, dst, sources, count);
    return;
  }
  const ReduceOp reduce = call_.reduction.op;
  const bool average = reduce == ReduceOp::kAvg;
  const bool sums = average || reduce == ReduceOp::kPreMultipliedSum;
  kernels_.combine(sums ? ReduceOp::kSum : reduce, call_.dtype, dst, sources.data(),
                   static_cast<int>(sources.size()), count,
                   average && op.last ? schedule_.spec.size : 1);
}

Combination Binding::SetAside(std::byte* scratch, uint32_t index) const {
  const LocalOp& op = schedule_.ops[index];
  const Place& to = plan_.ops[index];
  std::byte* room = scratch + plan_.slot_bytes;
  const auto copy = [&](const Place& place) {
    std::memcpy(room, Address(scratch, place), static_cast<size_t>(to.bytes));
    return std::exchange(room, room + Aligned(to.bytes));
  };
  Combination combination;
  combination.count = to.bytes / plan_.element_bytes;
  combination.result = copy(places_.operands[op.first_operand]);
  for (uint32_t i = op.first_operand + 1; i < op.first_operand + op.operands; ++i) {
    const Place& place = places_.operands[i];
    combination.sources.push_back(place.slot == Slot::kScratch ? Address(scratch, place)
                                                               : copy(place));
  }
  return combination;
}

}  // namespace entrain
