#include "lib/train/courier.h"

#include <utility>

namespace entrain {

uint64_t Courier::Post(Job job) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || !status_.ok()) {
    status_.Update(absl::AbortedError("the courier has stopped"));
    return posted_;
  }
  ++posted_;
  waiting_.push_back(std::move(job));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { Loop(); });
  }
  return posted_;
}

absl::Status Courier::Wait(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  const auto reached = [this, number]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return done_ >= number; };
  mutex_.Await(absl::Condition(&reached));
  return status_;
}

absl::Status Courier::Drain() {
  mutex_.Lock();
  const uint64_t last = posted_;
  mutex_.Unlock();
  return Wait(last);
}

bool Courier::idle() const {
  absl::MutexLock lock(&mutex_);
  return done_ == posted_;
}

absl::Status Courier::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void Courier::Stop() {
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

// Between jobs: everything posted is over. Gives what was dropped, to be freed outside the lock.
std::deque<Courier::Job> Courier::Fail(const absl::Status& status) {
  status_.Update(status);
  done_ = posted_;
  return std::exchange(waiting_, {});
}

void Courier::Loop() {
  std::deque<Job> dropped;
  absl::MutexLock lock(&mutex_);
  const auto called = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    mutex_.Await(absl::Condition(&called));
    if (stopping_) {
      if (!waiting_.empty()) {
        dropped = Fail(absl::AbortedError("the courier was stopped before the job began"));
      }
      return;
    }
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.Unlock();
    const absl::Status status = job();
    job = nullptr;  // what it holds is freed outside the lock
    mutex_.Lock();
    ++done_;
    if (!status.ok()) {
      dropped = Fail(status);
    }
  }
}

}  // namespace entrain
