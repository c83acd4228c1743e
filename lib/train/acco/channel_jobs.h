// Runs the rounds of a gradient channel on the channel's worker. At most one round is in flight. A
// round is in flight from Post to Take.
//
//   caller   Post |  ...  IsUnderWay, AwaitUntil, WhenOver  ...  | Await, Take
//   worker        | job: GradientRound::Run
//
// Thread safety: only the caller's thread may use the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/train/acco/delay_rule.h"
#include "lib/train/acco/gradient_round.h"
#include "lib/train/acco/round_state.h"
#include "lib/train/worker/worker.h"

namespace entrain {

class ChannelJobs {
 public:
  // `round` must outlive the object. The other arguments are passed to Worker.
  ChannelJobs(GradientRound& round, int64_t limit_ns,
              absl::AnyInvocable<void(const absl::Status&)> give_up,
              absl::AnyInvocable<void(absl::string_view)> inside)
      : round_(round), worker_(limit_ns, std::move(give_up), std::move(inside)) {}

  // Posts the job of a round to the worker. Must be called after ChannelBuffers::Take has copied
  // the round's gradients.
  void Post(RoundKind kind, const RoundCounts& mine);
  // Returns true from Post to Take. Meanwhile a round is under way, or is over and was not taken.
  bool in_flight() const { return in_flight_; }
  // Returns true if a round is in flight and is not over. Never blocks.
  bool IsUnderWay() const { return in_flight_ && over_.load(std::memory_order_acquire) < posted_; }
  // Blocks until Await would no longer block, or until the deadline. Returns false if Await would
  // still block.
  absl::StatusOr<bool> AwaitUntil(Deadline until);
  // Calls `then` once with the round's status, as soon as Await would not block. This may happen
  // before WhenOver returns, or later on the worker's thread.
  void WhenOver(Worker::Continuation then);
  // Blocks until the results of the round in flight may be used. Returns the worker's error.
  absl::Status Await();
  // Takes the round for which Await has waited: no round is in flight afterwards.
  void Take() { in_flight_ = false; }
  // Records whether GradientChannel::Wait or WhenReady has started the round in flight. If so, the
  // next Install only takes this round and does not start another.
  void SetStarted(bool started) { started_ = started; }
  bool started() const { return started_; }
  // Returns kFailedPrecondition if Wait or WhenReady has started the round in flight.
  absl::Status CheckNotStarted() const;
  // Continues from a loaded state. `in_flight` is true if the state contains a round that is over
  // and was not taken. The worker must be idle.
  void Restore(bool in_flight);
  // Returns the sum of the times of all rounds.
  uint64_t round_ns() const { return round_ns_.load(std::memory_order_relaxed); }
  Worker& worker() { return worker_; }
  const Worker& worker() const { return worker_; }

 private:
  absl::Status Run(RoundKind kind, const RoundCounts& mine);

  GradientRound& round_;
  bool in_flight_ = false, started_ = false;
  uint64_t job_ = 0;              // job of the round in flight; 0: the round was loaded
  int64_t posted_ = 0;            // number of rounds posted
  std::atomic<int64_t> over_{0};  // number of posted rounds that are over
  std::atomic<uint64_t> round_ns_{0};

  Worker worker_;  // last member: its jobs use the other members
};

}  // namespace entrain
