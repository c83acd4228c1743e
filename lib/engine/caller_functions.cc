#include "lib/engine/caller_functions.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<std::shared_ptr<CallbackThread>> CallerFunctions::Thread() {
  absl::MutexLock lock(&mutex_);
  if (thread_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(thread_, CallbackThread::Start("entrain-done"));
  }
  return thread_;
}

void CallerFunctions::Note(const void* who, absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  const auto is = [who](const Function& one) { return one.who == who; };
  functions_.erase(std::remove_if(functions_.begin(), functions_.end(), is), functions_.end());
  if (!name.empty()) {
    functions_.push_back({who, std::string(name), clock_.Now()});
  }
}

absl::Status CallerFunctions::Inside(int64_t least_ns) {
  absl::MutexLock lock(&mutex_);
  const int64_t ran_ns = functions_.empty() ? 0 : clock_.Now() - functions_.front().since_ns;
  return functions_.empty() || ran_ns < least_ns
             ? absl::OkStatus()
             : absl::DeadlineExceededError(
                   absl::StrFormat("it is in %s, which has not returned for %.3g s",
                                   functions_.front().name, static_cast<double>(ran_ns) * 1e-9));
}

void CallerFunctions::TellOfDone() {
  absl::MutexLock lock(&mutex_);
  if (thread_ == nullptr) {
    return;
  }
  const CallbackThread::Running running = thread_->running();
  const int64_t ran_ns = Clock::Real().Now() - running.since_ns;
  if (running.since_ns != 0 && running.since_ns != told_of_ns_ && ran_ns >= kSecond) {
    told_of_ns_ = running.since_ns;
    ENTRAIN_LOG(kWarning, running.name, " has been running for ", ran_ns / kMillisecond, " ms; ",
                running.waiting, " more wait for it");
  }
}

}  // namespace entrain
