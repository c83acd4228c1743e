#include "lib/engine/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace entrain {
namespace {

// Where block 0 of D would begin, given where the slot's window on D begins.
std::byte* Base(void* data, int64_t window_start_bytes) {
  // Integer arithmetic: the result may point before the buffer, and is only used with offsets that
  // lead back into it.
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(data) -
                                      static_cast<uintptr_t>(window_start_bytes));
}

// One lane of small messages; in every round at most one receive from each peer.
bool FitsExpress(const Plan& plan) {
  constexpr int64_t kMaxBytes = 32 << 10;  // more, no transport sends at once
  constexpr uint32_t kMaxTransfers = 64;   // bits of Progress::done
  const Schedule& schedule = *plan.schedule;
  if (schedule.lanes.size() != 1) {
    return false;
  }
  const Lane& lane = schedule.lanes[0];
  return std::all_of(schedule.rounds.begin(), schedule.rounds.end(), [&](const Round& round) {
    std::vector<int> from;
    bool fits = round.transfers <= kMaxTransfers;
    for (uint32_t t = 0; fits && t < round.transfers; ++t) {
      const Transfer& transfer = schedule.transfers[round.first_transfer + t];
      fits = plan.Elements(lane, transfer.region) * plan.element_bytes <= kMaxBytes;
      if (transfer.direction == Direction::kRecv) {
        from.push_back(transfer.peer);
      }
    }
    std::sort(from.begin(), from.end());
    return fits && std::adjacent_find(from.begin(), from.end()) == from.end();
  });
}

}  // namespace

Plan Plan::Make(std::shared_ptr<const Schedule> schedule, const char* algorithm, Layout in,
                Layout out, int64_t element_bytes, int window) {
  Plan plan;
  plan.algorithm = algorithm;
  plan.in = std::move(in);
  plan.out = std::move(out);
  plan.element_bytes = element_bytes;
  plan.window = std::min(window, static_cast<int>(schedule->lanes.size()));
  plan.scratch_offset.resize(schedule->scratch_like.size());
  for (const Lane& lane : schedule->lanes) {
    int64_t offset = 0;
    for (uint32_t s = lane.first_scratch; s < lane.first_scratch + lane.scratch; ++s) {
      plan.scratch_offset[s] = offset;
      // Blocks of one region lie side by side, so only lanes are aligned to cache lines.
      offset += plan.in.elements(schedule->scratch_like[s]) * element_bytes;
    }
    plan.slot_bytes = std::max(plan.slot_bytes, (offset + 63) / 64 * 64);
  }
  plan.schedule = std::move(schedule);
  plan.express = FitsExpress(plan);
  return plan;
}

int64_t Plan::Elements(const Lane& lane, const Region& region) const {
  return ElementsOf(*schedule, lane, region.slot == Slot::kOut ? out : in, region);
}

Binding::Binding(const Plan& plan, const Call& call, const Kernels& kernels)
    : plan_(plan), schedule_(*plan.schedule), call_(call), kernels_(kernels) {
  const Spec& spec = schedule_.spec;
  in_ = Base(call.in.data,
             plan.in.first[static_cast<size_t>(InputWindow(spec).first)] * plan.element_bytes);
  out_ = Base(call.out.data,
              plan.out.first[static_cast<size_t>(OutputWindow(spec).first)] * plan.element_bytes);
}

std::byte* Binding::Address(const Lane& lane, std::byte* scratch, const Region& region) const {
  if (region.blocks == 0) {
    return nullptr;
  }
  if (region.slot == Slot::kScratch) {
    return scratch + plan_.scratch_offset[lane.first_scratch + static_cast<uint32_t>(region.first)];
  }
  const bool in = region.slot == Slot::kIn;
  std::byte* const base = in ? in_ : out_;
  const int64_t offset =
      (in ? plan_.in : plan_.out).first[static_cast<size_t>(region.first)] * plan_.element_bytes;
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(base) +
                                      static_cast<uintptr_t>(offset));
}

void Binding::RunOps(const Lane& lane, std::byte* scratch, const Round& round) const {
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    const LocalOp& op = schedule_.ops[o];
    if (op.kind == LocalKind::kCombine) {
      Combine(lane, scratch, op);
      continue;
    }
    std::byte* const dst = Address(lane, scratch, op.dst);
    const std::byte* const from = Address(lane, scratch, schedule_.operands[op.first_operand]);
    const auto bytes = static_cast<size_t>(Bytes(lane, op.dst));
    if (dst != from && bytes > 0) {
      std::memcpy(dst, from, bytes);
    }
  }
}

void Binding::Combine(const Lane& lane, std::byte* scratch, const LocalOp& op) const {
  const int64_t count = plan_.Elements(lane, op.dst);
  if (count == 0) {
    return;
  }
  absl::InlinedVector<const void*, 16> sources;
  for (uint32_t i = 0; i < op.operands; ++i) {
    sources.push_back(Address(lane, scratch, schedule_.operands[op.first_operand + i]));
  }
  const ReduceOp reduce = call_.reduction.op;
  if (reduce == ReduceOp::kCustom) {
    CombineByCallback(Address(lane, scratch, op.dst), sources, count);
    return;
  }
  if (reduce == ReduceOp::kWeightedMean) {
    CombineWeighted(Address(lane, scratch, op.dst), sources, count);
    return;
  }
  const bool average = reduce == ReduceOp::kAvg;
  const bool sums = average || reduce == ReduceOp::kPreMultipliedSum;
  kernels_.combine(sums ? ReduceOp::kSum : reduce, call_.dtype, Address(lane, scratch, op.dst),
                   sources.data(), static_cast<int>(sources.size()), count,
                   average && op.last ? schedule_.spec.size : 1);
}

// The sources are the ranks' contributions in rank order: the planner keeps to such algorithms.
void Binding::CombineWeighted(std::byte* dst, absl::Span<const void* const> sources,
                              int64_t count) const {
  absl::InlinedVector<const void*, 16> used;
  absl::InlinedVector<double, 16> weights;
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    const double weight = (*call_.reduction.weights)[rank];
    if (weight != 0) {
      used.push_back(sources[rank]);
      weights.push_back(weight);
    }
  }
  kernels_.combine_weighted(call_.dtype, dst, used.data(), weights.data(),
                            static_cast<int>(used.size()), count);
}

// dst = sources[0] ⊕ sources[1] ⊕ ..., by a function that only knows dst = dst ⊕ src. A destination
// that is one of the later sources would be overwritten too early, so such results are made aside.
void Binding::CombineByCallback(std::byte* dst, absl::Span<const void* const> sources,
                                int64_t count) const {
  const auto bytes = static_cast<size_t>(count * plan_.element_bytes);
  const bool aside = std::find(sources.begin() + 1, sources.end(), dst) != sources.end();
  std::vector<std::byte> room(aside ? bytes : 0);
  std::byte* const result = aside ? room.data() : dst;
  if (result != sources[0]) {
    std::memcpy(result, sources[0], bytes);
  }
  for (const void* source : sources.subspan(1)) {
    call_.reduction.combine(result, source, count, static_cast<int32_t>(call_.dtype),
                            call_.reduction.user);
  }
  if (aside) {
    std::memcpy(dst, result, bytes);
  }
}

}  // namespace entrain
