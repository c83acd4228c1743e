#include "lib/train/edit/step_counter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace entrain {

StepCounter::StepCounter(int64_t warmup_steps, int32_t microbatches_a_step, int layers,
                         std::vector<int> training, uint64_t reductions)
    : warmup_steps_(warmup_steps),
      microbatches_a_step_(microbatches_a_step),
      training_(std::move(training)),
      unshared_(static_cast<size_t>(layers), 0),
      reductions_(reductions) {}

absl::Status StepCounter::BeginMicrobatch(bool first) {
  if (!first && microbatches_ + 1 > microbatches_a_step_) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: begin_forward of micro-batch ", microbatches_ + 1, " of step ", step_,
                     ", but gradient_accumulation_steps is ", microbatches_a_step_));
  }
  microbatches_ = first ? 1 : microbatches_ + 1;
  return absl::OkStatus();
}

absl::Status StepCounter::CheckAllMicrobatches() const {
  if (microbatches_ == microbatches_a_step_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "edit: end_step ", step_, ": begin_forward was called for ", microbatches_,
      " of the step's micro-batches, but gradient_accumulation_steps is ", microbatches_a_step_));
}

void StepCounter::EndStep(uint64_t reductions) {
  ++step_;
  microbatches_ = 0;
  reductions_ = reductions;
}

absl::Status StepCounter::CheckNoneReduced(uint64_t reductions) const {
  return reductions == reductions_
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   "gradients of step ", step_,
                   " have been reduced already, and they are not part of a checkpoint"));
}

absl::Status StepCounter::Record(int64_t tokens, double metric, double weight) {
  if (tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("edit: tokens: ", tokens, " is negative"));
  }
  if (!(weight >= 0) || !std::isfinite(weight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: weight: ", weight, " is not a finite number of at least 0"));
  }
  tokens_ += tokens;
  all_tokens_ += tokens;
  counted_ = true;
  if (weight > 0) {
    metric_sum_ += weight * metric;
    metric_weight_ += weight;
  }
  return absl::OkStatus();
}

bool StepCounter::TakeRequest() {
  return std::exchange(requested_, false);
}

absl::Status StepCounter::CheckMayBegin() const {
  if (step_ != warmup_steps_) {
    // Replicas that have trained alone have different parameters. Anchors made from these
    // parameters would differ for ever.
    return absl::FailedPreconditionError(
        absl::StrCat("the anchors must be made before the first step after warm-up, step ",
                     warmup_steps_, ", and this is step ", step_,
                     ": begin_forward was not called with training and first_microbatch set"));
  }
  return absl::OkStatus();
}

void StepCounter::Begin() {
  ++beginnings_;
  last_rendezvous_step_ = base_step_ = step_;
  tokens_ = 0;
  counted_ = false;
}

absl::Status StepCounter::CheckMayLeave() const {
  if (left_) {
    return absl::FailedPreconditionError("edit: leave: this replica has left already");
  }
  if (in_warmup()) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: leave: at step ", step_, " of ", warmup_steps_,
                     " of warm-up, in which all replicas train together and stop together"));
  }
  return absl::OkStatus();
}

Standing StepCounter::TakeStanding(const std::vector<int>& layers) {
  last_rendezvous_step_ = step_;
  int64_t since = step_ - std::exchange(base_step_, step_);
  if (since > 0) {
    Keep(training_);
  }
  for (const int layer : layers) {
    int64_t& unshared = unshared_[static_cast<size_t>(layer)];
    if (left_ && unshared != 0) {
      since = std::max<int64_t>(since, 1);  // forces an exchange, because there is no later one
    }
    unshared = 0;
  }
  Standing standing = TakeNews();
  standing.round = static_cast<uint64_t>(rendezvous_++);
  standing.steps_since = static_cast<uint64_t>(since);
  standing.tokens_since = static_cast<uint64_t>(std::exchange(tokens_, 0));
  standing.flags |= std::exchange(counted_, false) ? kCounted : 0;
  return standing;
}

Standing StepCounter::TakeNews() {
  return {.steps = static_cast<uint64_t>(step_),
          .flags = std::exchange(wishes_, 0) | (left_ ? kLeaving : 0),
          .metric_sum = std::exchange(metric_sum_, 0),
          .metric_weight = std::exchange(metric_weight_, 0)};
}

void StepCounter::TakeBack(const Standing& standing) {
  base_step_ -= static_cast<int64_t>(standing.steps_since);
  tokens_ += static_cast<int64_t>(standing.tokens_since);
  counted_ = counted_ || (standing.flags & kCounted) != 0;
}

void StepCounter::TakeBackUnsent(const Standing& standing, bool dropped) {
  if (!dropped) {
    TakeBack(standing);
  }
  metric_sum_ += standing.metric_sum;
  metric_weight_ += standing.metric_weight;
  wishes_ |= standing.flags & kWishes;
}

void StepCounter::Keep(const std::vector<int>& layers) {
  for (const int layer : layers) {
    unshared_[static_cast<size_t>(layer)] = 1;
  }
}

std::vector<int> StepCounter::LeftOver() const {
  std::vector<int> layers;
  for (const int layer : training_) {
    if (step_ > base_step_ || unshared_[static_cast<size_t>(layer)] != 0) {
      layers.push_back(layer);
    }
  }
  return layers.empty() ? training_ : layers;
}

// The values are per replica, because in A-EDiT each replica makes its own number of steps.
void StepCounter::VisitSteps(StateVisitor& visitor) {
  visitor.Value("steps", Holder::kReplica, &step_);
  visitor.Value("last_sync_step", Holder::kReplica, &last_rendezvous_step_);
  visitor.Value("base_step", Holder::kReplica, &base_step_);
}

void StepCounter::VisitStanding(StateVisitor& visitor) {
  visitor.Value("rendezvous", Holder::kAll, &rendezvous_);
  visitor.Value("tokens", Holder::kRank, &tokens_);
  visitor.Value("metric_sum", Holder::kRank, &metric_sum_);
  visitor.Value("metric_weight", Holder::kRank, &metric_weight_);
}

void StepCounter::VisitUnshared(StateVisitor& visitor) {
  visitor.Array("unshared", Holder::kReplica, DType::kI64, unshared_.data(),
                static_cast<int64_t>(unshared_.size()));
}

absl::Status StepCounter::CheckLoaded(int64_t steps, int64_t last, int64_t base, int64_t syncs,
                                      int64_t rendezvous) const {
  if (last != steps || base < 0 || base > steps || syncs < 0 || rendezvous < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps ", steps, ", last_sync_step ", last, ", base_step ", base, ", syncs ",
                     syncs, ", rendezvous ", rendezvous, " are of no rendezvous"));
  }
  if (steps < warmup_steps_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint is of step ", steps, ", after warm-up, and here step ", steps,
                     " is before the end of warm-up: local_sgd_warmup_steps is ", warmup_steps_));
  }
  return absl::OkStatus();
}

void StepCounter::Join(int64_t step, int64_t met, int64_t rendezvous) {
  ++beginnings_;
  step_ = base_step_ = step;
  last_rendezvous_step_ = met;
  rendezvous_ = rendezvous;
}

void StepCounter::GoOn(bool exchanged) {
  ++beginnings_;
  if (exchanged) {
    Begin();
    metric_sum_ = metric_weight_ = 0;
    std::fill(unshared_.begin(), unshared_.end(), 0);
  }
  microbatches_ = 0;
  requested_ = false;
  wishes_ = 0;
}

}  // namespace entrain
