#include "lib/train/trigger.h"

#include <utility>
#include <vector>

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<bool> StepTrigger::IsTime(const StepInfo& info) {
  return !schedule_->Due(info.step - warmup_steps()).empty();
}

TimeTrigger::TimeTrigger(int64_t warmup_steps, int64_t interval_ns, const Clock* clock,
                         std::shared_ptr<Communicator> replica, int64_t timeout_ns)
    : SyncTrigger(warmup_steps),
      interval_ns_(interval_ns),
      clock_(clock),
      first_(replica == nullptr || replica->rank() == 0),
      agreement_(std::move(replica), timeout_ns) {}

void TimeTrigger::Met() {
  start_ns_ = clock_->Now();
  agreement_.Forget();  // the pending answer belongs to an earlier interval
}

void TimeTrigger::GiveUp(const absl::Status& why) {
  agreement_.GiveUp(why);
}

absl::StatusOr<bool> TimeTrigger::IsTime(const StepInfo&) {
  return Agree(!first_ || Over());
}

absl::StatusOr<bool> TimeTrigger::Agree(bool yes) {
  const absl::StatusOr<std::vector<bool>> all = agreement_.Agree({yes});
  return all.ok() ? absl::StatusOr<bool>((*all)[0]) : Annotate(all.status(), "the replica's clock");
}

}  // namespace entrain
