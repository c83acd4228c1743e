#include "lib/train/edit/trigger.h"

#include <utility>
#include <vector>

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<bool> StepTrigger::IsTime(const StepInfo& info) {
  const bool due = !schedule_->Due(info.step - warmup_steps()).empty();
  ENTRAIN_RETURN_IF_ERROR(schedule_->status());
  return due;
}

TimeTrigger::TimeTrigger(const EditOptions& options, std::shared_ptr<Communicator> replica)
    : SyncTrigger(options.local_sgd_warmup_steps),
      options_(options),
      first_(replica == nullptr || replica->rank() == 0),
      agreement_(std::move(replica), options.timeout_ns) {}

void TimeTrigger::Met() {
  start_ns_ = options_.clock->Now();
  agreement_.Forget();  // the pending answer belongs to an earlier interval
}

void TimeTrigger::GiveUp(const absl::Status& why) {
  agreement_.GiveUp(why);
}

absl::StatusOr<bool> TimeTrigger::IsTime(const StepInfo& info) {
  bool over = true;
  if (first_) {
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t interval_ns,
                             options_.IntervalNs(info.rendezvous, info.step - warmup_steps()));
    over = options_.clock->Now() - start_ns_ >= interval_ns;
  }
  return Agree(over);
}

absl::StatusOr<bool> TimeTrigger::Agree(bool yes) {
  const absl::StatusOr<std::vector<bool>> all = agreement_.Agree({yes});
  return all.ok() ? absl::StatusOr<bool>((*all)[0]) : Annotate(all.status(), "the replica's clock");
}

}  // namespace entrain
