#include "lib/engine/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"

#include "lib/engine/round_facts.h"
#include "lib/kernels/merge.h"

namespace entrain {
namespace {

// Converts regions to places, lane by lane.
class Cutter {
 public:
  Cutter(const Schedule& schedule, const Layout& in, const Layout& out, int64_t element_bytes)
      : schedule_(schedule),
        in_(in),
        out_(out),
        element_bytes_(element_bytes),
        in_begin_(in.first[static_cast<size_t>(InputWindow(schedule.spec).first)]),
        out_begin_(out.first[static_cast<size_t>(OutputWindow(schedule.spec).first)]) {}

  // Begins a lane. Returns the bytes of its scratch. The scratch blocks lie one after the other,
  // because a region of several blocks must be contiguous in memory.
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

// Returns true if the round can run on the inline path. It may have at most kMaxTransfers
// transfers, at most one receive from each peer, and no message longer than `most_inline`. Long
// messages from several peers are excluded, because an executor receives them concurrently and
// therefore faster.
bool FitsInline(const RoundFacts& round, int64_t most_inline) {
  constexpr uint32_t kMaxTransfers = 64;  // bits of Progress::done
  constexpr int64_t kLongOfSeveral = 1 << 20;
  return round.sends + round.receives <= kMaxTransfers && round.longest <= most_inline &&
         !round.repeats_peer && (round.receives < 2 || round.longest_received < kLongOfSeveral);
}

bool ReadOnce(const TransferFacts& transfer) {
  return transfer.only_read && transfer.ends_with_round;
}

// For each combination, receives one message directly into the result.
Plan::Places PlacesApart(const Plan& plan, const Facts& facts) {
  Plan::Places apart = plan.places;
  std::vector<bool> taken(plan.ops.size());
  bool any = false;
  for (size_t t = 0; t < apart.transfers.size(); ++t) {
    const TransferFacts& of_transfer = facts.transfers[t];
    if (!plan.read_once[t] || of_transfer.op < 0) {
      continue;
    }
    const auto op = static_cast<size_t>(of_transfer.op);
    if (facts.ops[op].alone_at_result && !taken[op] &&
        plan.places.transfers[t].bytes == plan.ops[op].bytes) {
      apart.transfers[t] = apart.operands[static_cast<size_t>(of_transfer.operand)] = plan.ops[op];
      any = taken[op] = true;
    }
  }
  return any ? apart : Plan::Places();
}

void SetFlags(Plan* plan) {
  const Facts facts = FactsOf(*plan);
  const Schedule& schedule = *plan->schedule;
  plan->fits_inline = schedule.lanes.size() == 1 &&
                      std::all_of(facts.rounds.begin(), facts.rounds.end(), [&](const auto& round) {
                        return FitsInline(round, plan->most_inline);
                      });
  plan->read_once.resize(schedule.transfers.size());
  plan->may_be_lent.resize(schedule.transfers.size());
  for (size_t r = 0; r < facts.rounds.size(); ++r) {
    const Round& round = schedule.rounds[r];
    plan->ops_before_sends.push_back(!facts.rounds[r].writes_sent);
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      plan->read_once[t] = ReadOnce(facts.transfers[t]);
      plan->may_be_lent[t] = plan->read_once[t] && plan->ops_before_sends[r];
    }
  }
  plan->apart = PlacesApart(*plan, facts);
}

// Rounds up to a multiple of a cache line. The scratch of a lane and the copies of SetAside begin
// at cache lines.
int64_t Aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Returns the bytes of the copies that SetAside makes for an operation: its result, and its other
// operands that are in the caller's buffers.
int64_t AsideBytesOf(const Plan& plan, uint32_t index) {
  const LocalOp& op = plan.schedule->ops[index];
  int64_t copies = 1;
  for (uint32_t i = op.first_operand + 1; i < op.first_operand + op.operands; ++i) {
    copies += plan.places.operands[i].slot == Slot::kScratch ? 0 : 1;
  }
  return op.kind == LocalKind::kCombine ? copies * Aligned(plan.ops[index].bytes) : 0;
}

// Returns true if a message may be received into the memory of a result before the result is
// computed, as Plan::apart does.
bool MayUseApart(const Call& call) {
  const auto in = reinterpret_cast<uintptr_t>(call.in.data),
             out = reinterpret_cast<uintptr_t>(call.out.data);
  const bool overlap = in == out || (in < out + static_cast<uint64_t>(call.out.bytes) &&
                                     out < in + static_cast<uint64_t>(call.in.bytes));
  // For the caller's own reduction and for a merge, the result must not be an operand too.
  return !overlap && call.reduction.op != ReduceOp::kCustom && call.reduction.merging == nullptr;
}

}  // namespace

Plan Plan::Make(std::shared_ptr<const Schedule> schedule, const char* algorithm, const Layout& in,
                const Layout& out, int64_t element_bytes, int window, int64_t most_inline) {
  Plan plan;
  plan.most_inline = most_inline;
  plan.algorithm = algorithm;
  plan.element_bytes = element_bytes;
  plan.window = std::min(window, static_cast<int>(schedule->lanes.size()));
  plan.places.transfers.resize(schedule->transfers.size());
  plan.ops.resize(schedule->ops.size());
  plan.places.operands.resize(schedule->operands.size());
  Cutter cutter(*schedule, in, out, element_bytes);
  for (const Lane& lane : schedule->lanes) {
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
  SetFlags(&plan);
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
    // The sources are the contributions of the ranks in rank order. For merges the planner chooses
    // only algorithms with this property (Order::kAtOnce).
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
