#include "lib/train/edit/trigger.h"

#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int kTooOften = 8;

}  // namespace

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
    if (over) {
      WarnIfTooShort(info, interval_ns);
    }
  }
  return Agree(over);
}

void TimeTrigger::WarnIfTooShort(const StepInfo& info, int64_t interval_ns) {
  after_one_step_ = info.step == info.last_sync_step + 1 ? after_one_step_ + 1 : 0;
  if (after_one_step_ == kTooOften && interval_ns > 0) {
    ENTRAIN_LOG(kWarning, "edit: the last ", kTooOften,
                " exchanges were each due after one step, because an "
                "exchange and a step take longer than local_sgd_sync_time, ",
                static_cast<double>(interval_ns) * 1e-9, " s; a larger one saves communication");
  }
}

absl::StatusOr<bool> TimeTrigger::Agree(bool yes) {
  const absl::StatusOr<std::vector<bool>> all = agreement_.Agree({yes});
  return all.ok() ? absl::StatusOr<bool>((*all)[0]) : Annotate(all.status(), "the replica's clock");
}

}  // namespace entrain
