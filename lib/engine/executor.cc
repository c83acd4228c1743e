#include "lib/engine/executor.h"

#include <algorithm>
#include <cstring>

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
  return plan;
}

Executor::Executor(std::shared_ptr<const Plan> plan, const Call& call, const Wiring& wiring,
                   const Kernels& kernels, OwnedBuffer scratch, std::function<void()> ready)
    : plan_(std::move(plan)),
      schedule_(*plan_->schedule),
      call_(call),
      descriptor_(call.descriptor()),
      wiring_(wiring),
      kernels_(kernels),
      ready_(std::move(ready)),
      scratch_(std::move(scratch)) {
  const Spec& spec = schedule_.spec;
  in_ = Base(call.in.data,
             plan_->in.first[static_cast<size_t>(InputWindow(spec).first)] * plan_->element_bytes);
  out_ = Base(call.out.data, plan_->out.first[static_cast<size_t>(OutputWindow(spec).first)] *
                                 plan_->element_bytes);
  runs_.resize(static_cast<size_t>(plan_->window));
  slots_.resize(schedule_.transfers.size());
  lanes_left_ = static_cast<int>(schedule_.lanes.size());
}

void Executor::Start() {
  for (size_t i = 0; i < runs_.size(); ++i) {
    runs_[i].scratch = scratch_.data() == nullptr
                           ? nullptr
                           : scratch_.data() + static_cast<int64_t>(i) * plan_->slot_bytes;
    if (NextLane(runs_[i])) {
      StepLane(runs_[i]);
    }
  }
}

void Executor::Stop(absl::Status why) {
  stopped_ = true;
  if (status_.ok()) {
    status_ = std::move(why);
  }
}

bool Executor::NextLane(LaneRun& run) {
  run.lane = -1;
  run.ready = false;
  if (next_lane_ == static_cast<int>(schedule_.lanes.size())) {
    return false;
  }
  run.lane = next_lane_++;
  run.round = 0;
  return true;
}

// Posts rounds and does operations until the lane has to wait; then goes on with the next lane in
// this window slot.
void Executor::StepLane(LaneRun& run) {
  while (!stopped_) {
    const Lane& lane = schedule_.lanes[static_cast<size_t>(run.lane)];
    if (run.round == lane.rounds) {
      --lanes_left_;
      if (!NextLane(run)) {
        return;
      }
      continue;
    }
    PostRound(run);
    if (run.outstanding > 0) {
      return;
    }
    RunOps(run, schedule_.rounds[lane.first_round + run.round]);
    ++run.round;
  }
}

bool Executor::Advance() {
  for (LaneRun& run : runs_) {
    if (run.lane >= 0 && run.ready && !stopped_) {
      run.ready = false;
      const Lane& lane = schedule_.lanes[static_cast<size_t>(run.lane)];
      RunOps(run, schedule_.rounds[lane.first_round + run.round]);
      ++run.round;
      StepLane(run);
    }
  }
  return stopped_ || lanes_left_ == 0;
}

void Executor::PostRound(LaneRun& run) {
  const Round& round =
      schedule_.rounds[schedule_.lanes[static_cast<size_t>(run.lane)].first_round + run.round];
  run.outstanding = static_cast<int>(round.transfers);
  pending_ += run.outstanding;
  // Receives first: what is expected then finds its place at once.
  for (const Direction direction : {Direction::kRecv, Direction::kSend}) {
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      if (schedule_.transfers[t].direction == direction) {
        PostTransfer(run, t);
      }
    }
  }
}

void Executor::PostTransfer(LaneRun& run, uint32_t index) {
  const Transfer& transfer = schedule_.transfers[index];
  Pending& slot = slots_[index];
  slot.done = &Executor::OnDone;
  slot.executor = this;
  slot.run = static_cast<uint16_t>(&run - runs_.data());
  slot.transfer = index;
  slot.posted = true;
  std::byte* const data = Address(run, transfer.region);
  const auto bytes = static_cast<size_t>(Elements(run, transfer.region) * plan_->element_bytes);
  const uint8_t lane = wiring_.LaneOf(run.lane);
  Endpoint& endpoint = *wiring_.endpoints[static_cast<size_t>(transfer.peer)];
  if (transfer.direction == Direction::kSend) {
    bytes_sent_ += static_cast<int64_t>(bytes);
    endpoint.PostSend(wiring_.EnvelopeTo(transfer.peer, lane, descriptor_), {data, bytes}, &slot);
  } else {
    endpoint.PostRecv(wiring_.EnvelopeFrom(lane, descriptor_), {data, bytes}, &slot);
  }
}

void Executor::OnDone(Completion* self, const absl::Status& status, int64_t bytes) {
  auto& slot = *static_cast<Pending*>(self);
  Executor& executor = *slot.executor;
  slot.posted = false;
  --executor.pending_;
  if (!status.ok()) {
    if (executor.status_.ok()) {
      executor.status_ = status;
      executor.failed_peer_ = executor.schedule_.transfers[slot.transfer].peer;
    }
    executor.stopped_ = true;
    executor.ready_();
    return;
  }
  if (executor.schedule_.transfers[slot.transfer].direction == Direction::kRecv) {
    executor.bytes_received_ += bytes;
  }
  LaneRun& run = executor.runs_[slot.run];
  if (--run.outstanding == 0) {
    run.ready = true;
    executor.ready_();
  } else if (executor.stopped_ && executor.pending_ == 0) {
    executor.ready_();  // the last of a call that failed
  }
}

int Executor::WaitingFor() const {
  if (failed_peer_ >= 0) {
    return failed_peer_;
  }
  for (const Pending& slot : slots_) {
    if (slot.posted && schedule_.transfers[slot.transfer].direction == Direction::kRecv) {
      return schedule_.transfers[slot.transfer].peer;
    }
  }
  for (const Pending& slot : slots_) {
    if (slot.posted) {
      return schedule_.transfers[slot.transfer].peer;
    }
  }
  return -1;
}

std::byte* Executor::Address(const LaneRun& run, const Region& region) const {
  if (region.blocks == 0) {
    return nullptr;
  }
  if (region.slot == Slot::kScratch) {
    const Lane& lane = schedule_.lanes[static_cast<size_t>(run.lane)];
    return run.scratch +
           plan_->scratch_offset[lane.first_scratch + static_cast<uint32_t>(region.first)];
  }
  const bool in = region.slot == Slot::kIn;
  std::byte* const base = in ? in_ : out_;
  const int64_t offset =
      (in ? plan_->in : plan_->out).first[static_cast<size_t>(region.first)] * plan_->element_bytes;
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(base) +
                                      static_cast<uintptr_t>(offset));
}

int64_t Executor::Elements(const LaneRun& run, const Region& region) const {
  if (region.slot != Slot::kScratch) {
    const Layout& layout = region.slot == Slot::kIn ? plan_->in : plan_->out;
    return layout.first[static_cast<size_t>(region.first + region.blocks)] -
           layout.first[static_cast<size_t>(region.first)];
  }
  const Lane& lane = schedule_.lanes[static_cast<size_t>(run.lane)];
  int64_t elements = 0;
  for (int32_t s = region.first; s < region.first + region.blocks; ++s) {
    elements +=
        plan_->in.elements(schedule_.scratch_like[lane.first_scratch + static_cast<uint32_t>(s)]);
  }
  return elements;
}

void Executor::RunOps(const LaneRun& run, const Round& round) {
  for (uint32_t o = round.first_op; o < round.first_op + round.ops; ++o) {
    const LocalOp& op = schedule_.ops[o];
    if (op.kind == LocalKind::kCombine) {
      Combine(run, op);
      continue;
    }
    std::byte* const dst = Address(run, op.dst);
    const std::byte* const from = Address(run, schedule_.operands[op.first_operand]);
    const auto bytes = static_cast<size_t>(Elements(run, op.dst) * plan_->element_bytes);
    if (dst != from && bytes > 0) {
      std::memcpy(dst, from, bytes);
    }
  }
}

void Executor::Combine(const LaneRun& run, const LocalOp& op) {
  const int64_t count = Elements(run, op.dst);
  if (count == 0) {
    return;
  }
  absl::InlinedVector<const void*, 16> sources;
  for (uint32_t i = 0; i < op.operands; ++i) {
    sources.push_back(Address(run, schedule_.operands[op.first_operand + i]));
  }
  const ReduceOp reduce = call_.reduction.op;
  if (reduce == ReduceOp::kCustom) {
    CombineByCallback(Address(run, op.dst), sources, count);
    return;
  }
  if (reduce == ReduceOp::kWeightedMean) {
    CombineWeighted(Address(run, op.dst), sources, count);
    return;
  }
  const bool average = reduce == ReduceOp::kAvg;
  const bool sums = average || reduce == ReduceOp::kPreMultipliedSum;
  kernels_.combine(sums ? ReduceOp::kSum : reduce, call_.dtype, Address(run, op.dst),
                   sources.data(), static_cast<int>(sources.size()), count,
                   average && op.last ? schedule_.spec.size : 1);
}

// The sources are the ranks' contributions in rank order: the planner keeps to such algorithms.
void Executor::CombineWeighted(std::byte* dst, absl::Span<const void* const> sources,
                               int64_t count) {
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
void Executor::CombineByCallback(std::byte* dst, absl::Span<const void* const> sources,
                                 int64_t count) {
  const auto bytes = static_cast<size_t>(count * plan_->element_bytes);
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
