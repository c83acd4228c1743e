// Runs the rounds of a gradient channel on the channel's worker, for the caller's thread. At most
// one round is in flight: handed over, and not taken yet.
//
//   caller   Post |  ...  IsUnderWay, AwaitUntil, WhenOver  ...  | Await, Take
//   worker        | job: GradientRound::Run | on a device also: ChannelCalls::Settle
//
// On a device Await waits only for the first job. The caller's stream waits for the work that this
// job has enqueued. After the last round of the run Await also waits for the second job, because no
// later call would return this job's error.
//
// Thread safety: one thread at a time, the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/train/channel_progress.h"
#include "lib/train/delay_rule.h"
#include "lib/train/gradient_round.h"
#include "lib/train/worker_thread.h"

namespace entrain {

class ChannelJobs {
 public:
  // `round` must outlive the object. The other arguments are as in WorkerThread.
  ChannelJobs(GradientRound& round, int64_t limit_ns,
              absl::AnyInvocable<void(const absl::Status&)> give_up,
              absl::AnyInvocable<void(absl::string_view)> inside)
      : round_(round), worker_(limit_ns, std::move(give_up), std::move(inside)) {}

  // Hands a round over to the worker. The round's gradients must have been taken.
  void Post(RoundKind kind, const RoundCounts& mine);
  // Returns true from Post to Take: a round is under way, or over but not taken.
  bool in_flight() const { return in_flight_; }
  // Returns true if a round is in flight and is not over. Never blocks.
  bool IsUnderWay() const { return in_flight_ && over_.load(std::memory_order_acquire) < posted_; }
  // Blocks until Await would not block. Returns false if Await would still block at the deadline.
  absl::StatusOr<bool> AwaitUntil(Deadline until);
  // Calls `then` once, with the round's status, when Await would not block: before returning, or
  // from the worker's thread.
  void WhenOver(WorkerThread::Continuation then);
  // Blocks until the round in flight may be taken. Returns the worker's error.
  absl::Status Await();
  // Ends the flight of the round that Await has awaited.
  void Take() { in_flight_ = false; }
  // Notes whether a wait of the caller has handed over the round in flight. Then the next install
  // only takes this round.
  void SetStarted(bool started) { started_ = started; }
  bool started() const { return started_; }
  // Returns kFailedPrecondition if a wait has handed over the round in flight.
  absl::Status CheckNotStarted() const;
  // Replaces the rounds by a loaded state. If `in_flight`, a loaded round is over but not taken.
  // The worker must be idle.
  void Restore(bool in_flight);
  // Returns the time that all rounds have taken.
  uint64_t round_ns() const { return round_ns_.load(std::memory_order_relaxed); }
  WorkerThread& worker() { return worker_; }
  const WorkerThread& worker() const { return worker_; }

 private:
  uint64_t PostJob(bool last, absl::AnyInvocable<absl::Status()> run);

  GradientRound& round_;
  bool in_flight_ = false, started_ = false;
  uint64_t job_ = 0;              // the first job of the round in flight; 0: the round was loaded
  int64_t posted_ = 0;            // number of rounds handed over
  std::atomic<int64_t> over_{0};  // number of those that are finished
  std::atomic<uint64_t> round_ns_{0};

  WorkerThread worker_;  // last member: its jobs use the others
};

}  // namespace entrain
