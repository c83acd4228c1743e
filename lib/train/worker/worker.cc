#include "lib/train/worker/worker.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "lib/base/callback_scope.h"
#include "lib/base/library_thread.h"
#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

// The interval at which a waiting thread checks whether the work is still under way.
constexpr int64_t kLookNs = 50 * kMillisecond;

thread_local Worker* current = nullptr;  // the worker to which this thread belongs

}  // namespace

uint64_t Worker::Post(Job job) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || !status_.ok()) {
    status_.Update(absl::AbortedError("the worker thread has stopped"));
    return posted_;
  }
  if (done_ == posted_) {
    Begin("", 0);
  }
  ++posted_;
  waiting_.push_back(std::move(job));
  if (!thread_.joinable()) {
    thread_ = LibraryThread([this] { Loop(); });
  }
  return posted_;
}

void Worker::Begin(absl::string_view what, int64_t limit_ns) {
  doing_ = std::string(what);
  begun_ns_ = Clock::Real().Now();
  may_take_ns_ = limit_ns > 0 ? limit_ns : limit_ns_;
}

void Worker::Doing(absl::string_view what, int64_t limit_ns) {
  if (current != nullptr) {
    absl::MutexLock lock(&current->mutex_);
    current->Begin(what, limit_ns);
  }
}

absl::Status Worker::CallersFunction(absl::string_view name, absl::FunctionRef<void()> call) {
  Worker* const own = current;
  if (own != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(own->Enter(name));
  }
  {
    const CallbackScope scope(name, Does::kLook);
    if (own != nullptr && own->inside_of_) {
      own->inside_of_(name);
    }
    call();
    if (own != nullptr && own->inside_of_) {
      own->inside_of_("");
    }
  }
  return own == nullptr ? absl::OkStatus() : own->Return(name);
}

absl::Status Worker::Enter(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) {
    return absl::AbortedError(absl::StrCat(name, " was not called: its object is being destroyed"));
  }
  Begin(name, 0);
  inside_ = true;
  return absl::OkStatus();
}

absl::Status Worker::Return(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  inside_ = false;
  return stopping_
             ? absl::AbortedError(absl::StrCat(name, " returned after its object was destroyed"))
             : absl::OkStatus();
}

bool Worker::IsLate(int64_t spent_ns) const {
  return spent_ns > may_take_ns_ && spent_ns - may_take_ns_ > kReportNs;
}

absl::Status Worker::CheckUnderWay() {
  const int64_t spent = Clock::Real().Now() - begun_ns_;
  absl::Status why;
  if (done_ == std::min(posted_, may_begin_)) {
    why = absl::InternalError("nothing is under way that could end the wait");
  } else if (IsLate(spent)) {
    why = absl::DeadlineExceededError(
        absl::StrCat(doing_.empty() ? "the job" : doing_, " is not over after ",
                     spent / kMillisecond, " ms (limit ", may_take_ns_ / kMillisecond, " ms)"));
  }
  status_.Update(why);
  return why;
}

absl::Status Worker::Wait(uint64_t number) {
  return WaitUntil(number, Deadline::Never()).status();
}

absl::Status Worker::Hold(uint64_t number) {
  if (!IsDone(number)) {
    ENTRAIN_RETURN_IF_ERROR(CallbackScope::Check(Does::kWait));
  }
  return Wait(number);
}

absl::StatusOr<bool> Worker::WaitUntil(uint64_t number, Deadline until) {
  absl::Status late;
  {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, number]()
                             ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return done_ >= number; };
    const absl::Condition over(&reached);
    const auto look = [until] {
      return absl::Nanoseconds(std::min(kLookNs, until.Left(Clock::Real().Now())));
    };
    while (late.ok() && !mutex_.AwaitWithTimeout(over, look())) {
      if (until.Passed(Clock::Real().Now())) {
        return false;
      }
      late = CheckUnderWay();
      if (current != nullptr) {
        // This thread runs a job of another worker, and that job waits for a job of this worker.
        // The limit of the waiting job must not end before the limit of the awaited job. So the
        // limit of the waiting job begins again here.
        absl::MutexLock own(&current->mutex_);
        current->begun_ns_ = Clock::Real().Now();
      }
    }
    if (late.ok()) {
      ENTRAIN_RETURN_IF_ERROR(status_);
      return true;
    }
  }
  give_up_(late);
  return late;
}

void Worker::Limit(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  if (done_ >= may_begin_ && number > may_begin_) {
    Begin("", 0);  // no job ran; the limit of the held-back job begins now
  }
  may_begin_ = number;
}

absl::Status Worker::Drain() {
  return Wait(last());
}

uint64_t Worker::last() const {
  absl::MutexLock lock(&mutex_);
  return posted_;
}

void Worker::WhenDone(uint64_t number, Continuation then) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ < number) {
      watchers_.push_back({number, std::move(then)});
      return;
    }
    status = status_;
  }
  then(status);
}

void Worker::TellWatchers() {
  std::vector<Watcher> told;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const auto first = std::stable_partition(
        watchers_.begin(), watchers_.end(),
        [done = done_](const Watcher& watcher) { return watcher.number > done; });
    told.assign(std::make_move_iterator(first), std::make_move_iterator(watchers_.end()));
    watchers_.erase(first, watchers_.end());
    status = status_;
  }
  for (Watcher& watcher : told) {
    watcher.then(status);
  }
}

bool Worker::IsDone(uint64_t number) const {
  absl::MutexLock lock(&mutex_);
  return done_ >= number;
}

bool Worker::idle() const {
  absl::MutexLock lock(&mutex_);
  return done_ == posted_;
}

absl::Status Worker::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void Worker::Stop() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) {
    thread.join();
  }
}

void Worker::Abandon(const absl::Status& why) {
  std::deque<Job> dropped;  // freed outside the lock
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (inside_) {
      dropped = Fail(why);
    }
  }
  TellWatchers();
}

bool Worker::StopSoon() {
  std::string left;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;  // no function of the caller begins from here on
    const auto outside = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !inside_; };
    const int64_t extra_ns = IsLate(Clock::Real().Now() - begun_ns_) ? 0 : kReportNs;
    left_ = !mutex_.AwaitWithTimeout(absl::Condition(&outside), absl::Nanoseconds(extra_ns));
    if (left_) {
      left = absl::StrCat(doing_, " has not returned for ",
                          (Clock::Real().Now() - begun_ns_) / kMillisecond, " ms");
      thread_.detach();
    }
  }
  if (left.empty()) {
    Stop();
    return true;
  }
  if (inside_of_) {
    inside_of_("");  // this rank goes on without the function
  }
  ENTRAIN_LOG(kWarning, left, ": its object is destroyed without waiting for it");
  Abandon(absl::AbortedError(absl::StrCat("the object was destroyed: ", left)));
  return false;
}

void Worker::Leave(absl::AnyInvocable<void() &&> last) {
  absl::MutexLock lock(&mutex_);
  last_ = std::move(last);
}

// Marks all posted jobs as done. Returns the dropped jobs, which must be freed outside the lock.
std::deque<Worker::Job> Worker::Fail(const absl::Status& status) {
  status_.Update(status);
  done_ = posted_;
  return std::exchange(waiting_, {});
}

void Worker::Loop() {
  current = this;
  while (RunNext()) {
    TellWatchers();
  }
  TellWatchers();
  absl::AnyInvocable<void() &&> last;
  {
    absl::MutexLock lock(&mutex_);
    const auto told = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !left_ || last_; };
    mutex_.Await(absl::Condition(&told));
    last = std::move(last_);
  }
  current = nullptr;
  if (last) {
    std::move(last)();
  }
}

bool Worker::IsCalled() const {
  return stopping_ || (!waiting_.empty() && done_ < may_begin_);
}

// Blocks until a job may begin or the worker is stopped.
void Worker::AwaitCall() {
  const absl::Duration pause = watch_ ? absl::Nanoseconds(kLookNs) : absl::InfiniteDuration();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(this, &Worker::IsCalled), pause)) {
        return;
      }
    }
    if (const absl::Status status = RunHere([&] { return watch_(); }); !status.ok()) {
      std::deque<Job> dropped;  // freed outside the lock
      {
        absl::MutexLock lock(&mutex_);
        dropped = Fail(status);
      }
      TellWatchers();
    }
  }
}

// Returns false if the worker was stopped.
bool Worker::RunNext() {
  AwaitCall();
  std::deque<Job> dropped;  // freed outside the lock
  Job job;
  {
    absl::MutexLock lock(&mutex_);
    if (!IsCalled()) {
      return true;  // a new limit holds the job back
    }
    if (stopping_) {
      if (!waiting_.empty()) {
        dropped = Fail(absl::AbortedError("destroyed before the worker began the job"));
      }
      return false;
    }
    job = std::move(waiting_.front());
    waiting_.pop_front();
    Begin("", 0);
  }
  const absl::Status status = RunHere([&] { return job(); });
  job = nullptr;  // frees the job's captures before it counts as done
  absl::MutexLock lock(&mutex_);
  done_ = std::min(done_ + 1, posted_);  // an abandoned job counts as done already
  status_.Update(status);
  if (!status_.ok()) {
    dropped = Fail(status_);
  }
  return true;
}

}  // namespace entrain
