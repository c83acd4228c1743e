#include "lib/train/trigger.h"

#include <utility>

#include "lib/base/status.h"
#include "lib/train/timed_call.h"

namespace entrain {

namespace {

constexpr int64_t kGraceNs = 2 * kSecond;

}  // namespace

absl::StatusOr<bool> StepTrigger::IsTime(const StepInfo& info) {
  return !schedule_->Due(info.step - warmup_steps()).empty();
}

TimeTrigger::TimeTrigger(int64_t warmup_steps, int64_t interval_ns, const Clock* clock,
                         std::shared_ptr<Communicator> replica, int64_t timeout_ns)
    : SyncTrigger(warmup_steps),
      interval_ns_(interval_ns),
      clock_(clock),
      replica_(std::move(replica)),
      timeout_ns_(timeout_ns) {}

TimeTrigger::~TimeTrigger() {
  // The other ranks may still need this rank's part of the call. They are at most one step behind.
  if (asked_ && !asked_->Wait(Deadline::After(kGraceNs))) {
    replica_->Abort("destroyed during a step");
    asked_->Wait(Deadline::Never());  // the call writes to all_
  }
}

void TimeTrigger::Met() {
  start_ns_ = clock_->Now();
  stale_ = static_cast<bool>(asked_);
}

void TimeTrigger::GiveUp(const absl::Status& why) {
  if (replica_ != nullptr) {
    replica_->EndWith(why);
  }
}

absl::StatusOr<bool> TimeTrigger::IsTime(const StepInfo&) {
  return Agree((replica_ != nullptr && replica_->rank() != 0) || Over());
}

absl::StatusOr<bool> TimeTrigger::Agree(bool yes) {
  if (replica_ == nullptr) {
    return yes;
  }
  bool all = false;
  if (asked_) {
    asked_->Wait(Deadline::Never());  // the call has a deadline of its own
    ENTRAIN_RETURN_IF_ERROR(Annotate(asked_->status(), "the replica's clock"));
    asked_ = {};
    all = all_ != 0 && !stale_;
  }
  stale_ = false;
  if (all) {
    return true;
  }
  all_ = yes ? 1 : 0;
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kU8;
  call.reduction.op = ReduceOp::kMin;
  call.count = 1;
  call.in = call.out = {&all_, 1};
  call.options = TimedCall(timeout_ns_, 0, false);
  ENTRAIN_ASSIGN_OR_RETURN(asked_, replica_->Start(call));
  return false;
}

}  // namespace entrain
