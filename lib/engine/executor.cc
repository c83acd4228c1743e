#include "lib/engine/executor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace entrain {

Executor::Executor(std::shared_ptr<const Plan> plan, const Call& call, const Wiring& wiring,
                   const Kernels& kernels, OwnedBuffer scratch, std::function<void()> ready)
    : plan_(std::move(plan)),
      schedule_(*plan_->schedule),
      call_(call),
      descriptor_(call.descriptor()),
      wiring_(wiring),
      binding_(*plan_, call_, kernels),
      ready_(std::move(ready)),
      scratch_(std::move(scratch)) {
  runs_.resize(static_cast<size_t>(plan_->window));
  slots_.resize(schedule_.transfers.size());
  lanes_left_ = static_cast<int>(schedule_.lanes.size());
}

void Executor::Start(const Progress& from) {
  bytes_sent_ = from.bytes_sent;
  bytes_received_ = from.bytes_received;
  before_ = &from;
  for (size_t i = 0; i < runs_.size(); ++i) {
    runs_[i].scratch =
        scratch_.data() == nullptr
            ? nullptr
            : scratch_.data() + static_cast<int64_t>(i) * plan_->SlotBytes(call_.reduction);
    if (NextLane(runs_[i])) {
      runs_[i].round = i == 0 ? from.round : 0;
      StepLane(runs_[i]);
    }
  }
}

void Executor::Stop(absl::Status why) {
  stopped_ = true;
  if (status_.ok()) {
    status_ = std::move(why);
  }
  ReleaseLoans();
  std::shared_ptr<OwnedBuffer> left;
  for (LaneRun& run : runs_) {
    if (run.combine != nullptr) {
      left = left != nullptr ? left : std::make_shared<OwnedBuffer>(std::move(scratch_));
      std::exchange(run.combine, nullptr)->Cancel(left);
      --pending_;
    }
  }
}

OwnedBuffer Executor::TakeScratch() {
  ReleaseLoans();
  return std::move(scratch_);
}

void Executor::ReleaseLoans() {
  for (Pending& slot : slots_) {
    if (slot.loan.lent != nullptr) {
      const int peer = schedule_.transfers[slot.transfer].peer;
      wiring_.endpoints[static_cast<size_t>(peer)]->Release(&slot.loan).IgnoreError();
    }
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

// Posts rounds and runs operations until the lane must wait. When a lane is over, continues with
// the next lane in the same slot of the window.
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
    if (!DoOps(run)) {
      return;
    }
    ++run.round;
  }
}

bool Executor::DoOps(LaneRun& run) {
  const Lane& lane = schedule_.lanes[static_cast<size_t>(run.lane)];
  const Round& round = schedule_.rounds[lane.first_round + run.round];
  absl::InlinedVector<Lent, 4> lent;
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    if (slots_[t].loan.lent != nullptr) {
      lent.push_back({binding_.PlaceOf(t), slots_[t].loan.lent});
    }
  }
  run.op = binding_.RunOps(run.scratch, round, run.op, lent);
  if (run.op < round.ops) {
    Combine(run, round.first_op + run.op);
    return false;
  }
  if (lent.empty()) {
    return true;
  }
  for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
    if (slots_[t].loan.lent != nullptr) {
      const int peer = schedule_.transfers[t].peer;
      const absl::Status good =
          wiring_.endpoints[static_cast<size_t>(peer)]->Release(&slots_[t].loan);
      if (!good.ok() && status_.ok()) {
        stopped_ = true;
        status_ = good;
        failed_peer_ = peer;
      }
    }
  }
  return true;
}

void Executor::Combine(LaneRun& run, uint32_t op) {
  Combination combination = binding_.SetAside(run.scratch, op);
  std::byte* const result = combination.result;
  ++pending_;
  run.combine = UserCombine::Post(
      functions_, call_.dtype, call_.reduction, std::move(combination),
      [this, &run, op, result](int32_t returned) { OnCombined(run, op, result, returned); });
}

void Executor::OnCombined(LaneRun& run, uint32_t op, std::byte* result, int32_t returned) {
  --pending_;
  run.combine = nullptr;
  if (returned != 0 && !stopped_) {
    stopped_ = true;
    reduction_failed_ = returned;
  } else if (!stopped_) {
    const Bytes dst = binding_.Span(run.scratch, plan_->ops[op]);
    std::memcpy(dst.data(), result, dst.size());
    ++run.op;
    run.ready = true;
  }
  ready_();
}

bool Executor::combining() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const LaneRun& run) { return run.combine != nullptr; });
}

int64_t Executor::combining_since_ns() const {
  int64_t since = 0;
  for (const LaneRun& run : runs_) {
    since = run.combine != nullptr ? std::max(since, run.combine->since_ns()) : since;
  }
  return since;
}

bool Executor::ReadyForOps(const LaneRun& run, Direction completed) const {
  const Lane& lane = schedule_.lanes[static_cast<size_t>(run.lane)];
  return completed == Direction::kRecv && run.receives == 0 &&
         plan_->ops_before_sends[lane.first_round + run.round];
}

bool Executor::Advance() {
  for (LaneRun& run : runs_) {
    if (run.lane >= 0 && run.ready && !stopped_) {
      run.ready = false;
      if (!run.ops_done && run.combine == nullptr) {
        run.ops_done = DoOps(run);
      }
      if (run.ops_done && run.outstanding == 0 && !stopped_) {
        ++run.round;
        StepLane(run);
      }
    }
  }
  return stopped_ || lanes_left_ == 0;
}

void Executor::PostRound(LaneRun& run) {
  const Round& round =
      schedule_.rounds[schedule_.lanes[static_cast<size_t>(run.lane)].first_round + run.round];
  const Progress* const before = std::exchange(before_, nullptr);
  const uint64_t skip = before == nullptr ? 0 : before->done;
  const auto done = [&](uint32_t t) {
    return skip != 0 && ((skip >> (t - round.first_transfer)) & 1) != 0;
  };
  const auto lent = [&](uint32_t t) -> const SendRequest* {
    for (size_t i = 0; before != nullptr && i < before->lent.size(); ++i) {
      if (before->lent[i].transfer == t - round.first_transfer) {
        return &before->lent[i].request;
      }
    }
    return nullptr;
  };
  run.outstanding = static_cast<int>(round.transfers) - std::popcount(skip);
  run.receives = 0;
  run.ops_done = before != nullptr && before->ops_done;
  run.op = 0;
  pending_ += run.outstanding;
  // Receives first, so that a message that arrives finds its buffer.
  for (const Direction direction : {Direction::kRecv, Direction::kSend}) {
    for (uint32_t t = round.first_transfer; t < round.first_transfer + round.transfers; ++t) {
      if (schedule_.transfers[t].direction == direction && !done(t)) {
        PostTransfer(run, t, lent(t));
      }
    }
  }
}

void Executor::PostTransfer(LaneRun& run, uint32_t index, const SendRequest* lent) {
  const Transfer& transfer = schedule_.transfers[index];
  Pending& slot = slots_[index];
  slot.done = &Executor::OnDone;
  slot.executor = this;
  slot.run = static_cast<uint16_t>(&run - runs_.data());
  slot.transfer = index;
  slot.posted = true;
  run.receives += transfer.direction == Direction::kRecv ? 1 : 0;
  const Bytes data = binding_.Span(run.scratch, binding_.PlaceOf(index));
  const uint8_t lane = wiring_.LaneOf(run.lane);
  Endpoint& endpoint = *wiring_.endpoints[static_cast<size_t>(transfer.peer)];
  if (transfer.direction == Direction::kSend) {
    bytes_sent_ += static_cast<int64_t>(data.size());
    if (lent != nullptr) {
      endpoint.Await(*lent, &slot);
      return;
    }
    endpoint.PostSend(wiring_.EnvelopeTo(transfer.peer, lane, descriptor_), data, &slot);
    return;
  }
  const bool may_be_lent = plan_->may_be_lent[index] && call_.reduction.op != ReduceOp::kCustom;
  endpoint.PostRecv(wiring_.EnvelopeFrom(lane, descriptor_), data, &slot,
                    {.loan = may_be_lent ? &slot.loan : nullptr});
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
  LaneRun& run = executor.runs_[slot.run];
  const Direction direction = executor.schedule_.transfers[slot.transfer].direction;
  if (direction == Direction::kRecv) {
    executor.bytes_received_ += bytes;
    --run.receives;
  }
  if (--run.outstanding == 0 || executor.ReadyForOps(run, direction)) {
    run.ready = true;
    executor.ready_();
  } else if (executor.stopped_ && executor.pending_ == 0) {
    executor.ready_();  // the last transfer of a failed call
  }
}

bool Executor::receiving() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const LaneRun& run) { return run.lane >= 0 && run.receives > 0; });
}

void Executor::EachOpenTransfer(absl::FunctionRef<void(int, Direction)> each) const {
  for (const Pending& slot : slots_) {
    if (slot.posted) {
      const Transfer& transfer = schedule_.transfers[slot.transfer];
      each(transfer.peer, transfer.direction);
    }
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

}  // namespace entrain
