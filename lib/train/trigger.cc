#include "lib/train/trigger.h"

#include <utility>

#include "lib/base/status.h"
#include "lib/train/timed_call.h"

namespace entrain {

absl::StatusOr<bool> StepTrigger::IsTime(const StepInfo& info) {
  return (info.step - warmup_steps()) % interval_ == 0;
}

TimeTrigger::TimeTrigger(int64_t warmup_steps, int64_t interval_ns, const Clock* clock,
                         std::shared_ptr<Communicator> replica, int64_t timeout_ns)
    : SyncTrigger(warmup_steps),
      interval_ns_(interval_ns),
      clock_(clock),
      replica_(std::move(replica)),
      timeout_ns_(timeout_ns) {}

TimeTrigger::~TimeTrigger() {
  if (word_ && !word_->done()) {
    replica_->Abort("destroyed during a step");
    word_->Wait(Deadline::Never());  // the call writes to over_
  }
}

void TimeTrigger::Met() {
  start_ns_ = clock_->Now();
  stale_ = static_cast<bool>(word_);
}

absl::StatusOr<bool> TimeTrigger::IsTime(const StepInfo&) {
  if (replica_ == nullptr) {
    return Over();
  }
  bool over = false;
  if (word_) {
    word_->Wait(Deadline::Never(), false);  // the call has a deadline of its own
    ENTRAIN_RETURN_IF_ERROR(Annotate(word_->status(), "the first rank's clock"));
    word_ = {};
    over = over_ != 0 && !stale_;
  }
  stale_ = false;
  if (over) {
    return true;
  }
  over_ = Over() ? 1 : 0;
  Call call;
  call.kind = CallKind::kBroadcast;
  call.dtype = DType::kU8;
  call.count = 1;
  call.in = call.out = {&over_, 1};
  call.options = TimedCall(timeout_ns_, 0, false);
  ENTRAIN_ASSIGN_OR_RETURN(word_, replica_->Start(call));
  return false;
}

}  // namespace entrain
