#include "lib/train/host_worker.h"

#include <utility>

#include "lib/base/callback_scope.h"
#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<uint64_t> HostWorker::PostThen(Job job, absl::AnyInvocable<void()> then) {
  return thread_.Post(
      [this, job = std::move(job), then = std::move(then)]() mutable -> absl::Status {
        const KernelThreads::Scope scope(threads_);
        ENTRAIN_RETURN_IF_ERROR(job());
        if (then) {
          then();
        }
        return absl::OkStatus();
      });
}

absl::Status HostWorker::Hold(uint64_t number) {
  if (!thread_.IsDone(number)) {
    ENTRAIN_RETURN_IF_ERROR(CallbackScope::Check(Does::kWait));
  }
  return thread_.Wait(number);
}

absl::StatusOr<uint64_t> HostWorker::Start(uint64_t after, Job job) {
  ENTRAIN_RETURN_IF_ERROR(thread_.Wait(after));
  const KernelThreads::Scope scope(threads_);
  ENTRAIN_RETURN_IF_ERROR(job());
  return uint64_t{0};
}

}  // namespace entrain
