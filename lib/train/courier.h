// A thread that runs blocking jobs one after the other, so that code which waits for the network
// can be written as straight lines and still run beside the caller's computation.
//
// The first job that fails ends the work: what waits behind it, and what is posted later, is
// dropped unrun and counts as done with that first error.
//
// Thread safety: any thread; jobs must not call Wait, Drain or Stop of their own courier.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace entrain {

class Courier {
 public:
  using Job = absl::AnyInvocable<absl::Status()>;

  // The thread starts with the first job.
  Courier() = default;
  ~Courier() { Stop(); }
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Appends a job; gives its number, from 1. After the end: drops it, and gives the last number.
  uint64_t Post(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the job of this number is done, and so are all before it. The first error of any.
  absl::Status Wait(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Wait for everything posted so far.
  absl::Status Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // True when nothing runs or waits.
  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The first error so far, without waiting.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops what has not begun (as kAborted), waits for the job that runs, ends the thread. Whoever
  // cannot wait makes that job fail first. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  std::deque<Job> Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs finish in order, so one number tells for all
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
