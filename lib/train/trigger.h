// Decides when replicas exchange. Due is called once before each forward pass at which an exchange
// may begin (training, first micro-batch).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/comm/communicator.h"
#include "lib/train/fragments.h"

namespace entrain {

struct StepInfo {
  int64_t step = 0;  // g: optimizer steps counted
  // g at the last rendezvous or creation of anchors; -1: none yet. For Settled: the step at which
  // the exchange began.
  int64_t last_sync_step = -1;
  bool requested = false;  // a caller asked for an early exchange
  bool arrived = false;    // for Settled: the exchange is over on this rank
};

class SyncTrigger {
 public:
  explicit SyncTrigger(int64_t warmup_steps) : warmup_steps_(warmup_steps) {}
  virtual ~SyncTrigger() = default;

  // Returns the same answer on all ranks of a replica. Returns false in warm-up, and at the step of
  // the last rendezvous. A second exchange at that step would have nothing to exchange, and would
  // let the outer momentum take a free step.
  absl::StatusOr<bool> Due(const StepInfo& info) {
    if (info.step < warmup_steps_ || info.step == info.last_sync_step) {
      return false;
    }
    if (info.requested) {
      return true;
    }
    return info.last_sync_step < 0 ? true : IsTime(info);
  }
  // For an exchange behind further steps that began at last_sync_step: returns true if it is merged
  // at this step. Returns the same answer on all ranks of a replica.
  virtual absl::StatusOr<bool> Settled(const StepInfo& info) = 0;
  // Begins an interval. The replicas have just held a rendezvous, or have begun.
  virtual void Met() {}
  // Makes a pending question fail on all ranks of the replica. May be called from any thread.
  virtual void GiveUp(const absl::Status& /*why*/) {}

 protected:
  // Called only after warm-up, at a step without an exchange.
  virtual absl::StatusOr<bool> IsTime(const StepInfo& info) = 0;
  int64_t warmup_steps() const { return warmup_steps_; }

 private:
  const int64_t warmup_steps_;  // W_s
};

// EDiT: exchanges at the steps of a schedule, W_s + k H. Needs no communication, because all
// replicas count the same steps.
class StepTrigger final : public SyncTrigger {
 public:
  // `schedule` must outlive this object.
  StepTrigger(int64_t warmup_steps, const FragmentSchedule* schedule, int64_t overlap_steps = 0)
      : SyncTrigger(warmup_steps), schedule_(schedule), overlap_steps_(overlap_steps) {}

  // An exchange is merged overlap_steps steps after it began. If it has not arrived by then, the
  // merge waits for it.
  absl::StatusOr<bool> Settled(const StepInfo& info) override {
    return info.step >= info.last_sync_step + overlap_steps_;
  }

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  const FragmentSchedule* const schedule_;
  const int64_t overlap_steps_;
};

// A-EDiT: exchanges when tau seconds have passed since the last rendezvous, by the clock of the
// replica's first rank. That rank reads its clock before a forward pass, and the other ranks learn
// the result before the next pass: one byte travels during the step between the two passes. Clocks
// of different replicas are not compared. Each replica comes to its k-th rendezvous at a time of
// its own, and comes to the next one only after all replicas have come to the k-th.
class TimeTrigger final : public SyncTrigger {
 public:
  // `replica` is for this object alone; null: a replica of one rank. `clock` must outlive this
  // object.
  TimeTrigger(int64_t warmup_steps, int64_t interval_ns, const Clock* clock,
              std::shared_ptr<Communicator> replica, int64_t timeout_ns);
  ~TimeTrigger() override;

  // Must be called after the wait for the other replicas. Otherwise the replica that comes first
  // would count its wait as part of the interval. It would come first again by a larger margin, and
  // finally do nothing but wait.
  void Met() override;
  void GiveUp(const absl::Status& why) override;
  // Returns true one step after the exchange has arrived on all ranks of the replica, because the
  // ranks learn this with a delay of one step.
  absl::StatusOr<bool> Settled(const StepInfo& info) override { return Agree(info.arrived); }

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  // Returns true if all ranks answered yes at the last forward pass, and starts the question for
  // the next pass.
  absl::StatusOr<bool> Agree(bool yes);
  bool Over() const { return clock_->Now() - start_ns_ >= interval_ns_; }

  const int64_t interval_ns_;  // tau
  const Clock* const clock_;
  const std::shared_ptr<Communicator> replica_;
  const int64_t timeout_ns_;
  int64_t start_ns_ = 0;
  RefPtr<Work> asked_;  // call of the last forward pass; null: none
  uint8_t all_ = 0;     // receives the answer
  bool stale_ = false;  // the pending answer belongs to an earlier interval
};

}  // namespace entrain
