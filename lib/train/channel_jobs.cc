#include "lib/train/channel_jobs.h"

#include <utility>

#include "lib/train/add_time.h"

namespace entrain {

// Posts one job. On a device, posts a second job, which waits for the work that the first job has
// enqueued.
void ChannelJobs::Post(RoundKind kind, const RoundCounts& mine) {
  const bool on_device = round_.buffers().on_device();
  in_flight_ = true;
  ++posted_;
  job_ = PostJob(!on_device, [this, kind, mine] { return round_.Run(kind, mine); });
  if (on_device) {
    PostJob(true, [this] { return round_.calls().Settle(); });
  }
}

uint64_t ChannelJobs::PostJob(bool last, absl::AnyInvocable<absl::Status()> run) {
  return worker_.Post([this, last, run = std::move(run)]() mutable {
    uint64_t spent = 0;
    absl::Status status;
    {
      const AddTime working(&spent);
      status = run();
    }
    round_ns_.fetch_add(spent, std::memory_order_relaxed);
    if (!status.ok()) {
      round_.ranks().End(status);  // so that no rank waits for this rank
    }
    if (last || !status.ok()) {
      over_.fetch_add(1, std::memory_order_release);
    }
    return status;
  });
}

absl::StatusOr<bool> ChannelJobs::AwaitUntil(Deadline until) {
  if (!in_flight_ || job_ == 0) {
    return true;
  }
  absl::StatusOr<bool> over = worker_.WaitUntil(job_, until);
  if (over.ok() && *over && round_.buffers().on_device() && round_.state().EndsRun()) {
    over = worker_.WaitUntil(job_ + 1, until);  // see Await
  }
  return over;
}

void ChannelJobs::WhenOver(WorkerThread::Continuation then) {
  if (!in_flight_ || job_ == 0) {
    then(absl::OkStatus());
    return;
  }
  worker_.WhenDone(job_, [this, then = std::move(then)](const absl::Status& status) mutable {
    if (status.ok() && round_.buffers().on_device() && round_.state().EndsRun()) {
      worker_.WhenDone(job_ + 1, std::move(then));  // see Await
    } else {
      then(status);
    }
  });
}

absl::Status ChannelJobs::Await() {
  if (!in_flight_ || job_ == 0) {
    return absl::OkStatus();
  }
  const absl::Status status = worker_.Wait(job_);
  return status.ok() && round_.state().EndsRun() ? worker_.Drain() : status;
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
