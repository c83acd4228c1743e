#include "lib/train/acco/channel_jobs.h"

#include <utility>

#include "lib/base/clock.h"

namespace entrain {

void ChannelJobs::Post(RoundKind kind, const RoundCounts& mine) {
  in_flight_ = true;
  ++posted_;
  job_ = worker_.Post([this, kind, mine] { return Run(kind, mine); });
}

absl::Status ChannelJobs::Run(RoundKind kind, const RoundCounts& mine) {
  uint64_t spent = 0;
  absl::Status status;
  {
    const AddTime working(&spent);
    status = round_.Run(kind, mine);
  }
  round_ns_.fetch_add(spent, std::memory_order_relaxed);
  if (!status.ok()) {
    round_.ranks().End(status);  // so that no rank waits for this rank
  }
  over_.fetch_add(1, std::memory_order_release);
  return status;
}

absl::StatusOr<bool> ChannelJobs::AwaitUntil(Deadline until) {
  return in_flight_ && job_ != 0 ? worker_.WaitUntil(job_, until) : absl::StatusOr<bool>(true);
}

void ChannelJobs::WhenOver(Worker::Continuation then) {
  if (in_flight_ && job_ != 0) {
    worker_.WhenDone(job_, std::move(then));
  } else {
    then(absl::OkStatus());
  }
}

absl::Status ChannelJobs::Await() {
  return in_flight_ && job_ != 0 ? worker_.Wait(job_) : absl::OkStatus();
}

absl::Status ChannelJobs::CheckNotStarted() const {
  return started_ ? absl::FailedPreconditionError(
                        "acco: wait has started a synchronous round; install first")
                  : absl::OkStatus();
}

void ChannelJobs::Restore(bool in_flight) {
  in_flight_ = in_flight;
  job_ = 0;
  posted_ = over_.load(std::memory_order_acquire);
}

}  // namespace entrain
