// When replicas exchange: asked once before each forward pass that may (training, first micro-batch).
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
  // g at the last rendezvous or anchor creation, -1: none yet; to Settled: when the exchange began
  int64_t last_sync_step = -1;
  bool requested = false;  // somebody asked for an exchange as soon as possible
  bool arrived = false;    // to Settled: the exchange that was begun is over on this rank
};

class SyncTrigger {
 public:
  explicit SyncTrigger(int64_t warmup_steps) : warmup_steps_(warmup_steps) {}
  virtual ~SyncTrigger() = default;

  // The same answer on all ranks of a replica. Never in warm-up, never twice at one step: a second
  // exchange there has nothing to exchange and would let the outer momentum take a free step.
  absl::StatusOr<bool> Due(const StepInfo& info) {
    if (info.step < warmup_steps_ || info.step == info.last_sync_step) {
      return false;
    }
    if (info.requested) {
      return true;
    }
    return info.last_sync_step < 0 ? true : IsTime(info);
  }
  // Of an exchange behind further steps, begun at last_sync_step: whether this is the step at which it is merged. The same answer on
  // all ranks of a replica.
  virtual absl::StatusOr<bool> Settled(const StepInfo& info) = 0;
  // The replicas have just met, or begun: an interval begins.
  virtual void Met() {}
  // Any thread: makes a question that is under way fail, on all ranks of the replica.
  virtual void GiveUp(const absl::Status& /*why*/) {}

 protected:
  // After warm-up, at a step without an exchange.
  virtual absl::StatusOr<bool> IsTime(const StepInfo& info) = 0;
  int64_t warmup_steps() const { return warmup_steps_; }

 private:
  const int64_t warmup_steps_;  // W_s
};

// EDiT: at the steps of a schedule, W_s + k H. Needs no agreement, since all replicas count the same steps.
class StepTrigger final : public SyncTrigger {
 public:
  // `schedule` outlives this.
  StepTrigger(int64_t warmup_steps, const FragmentSchedule* schedule, int64_t overlap_steps = 0)
      : SyncTrigger(warmup_steps), schedule_(schedule), overlap_steps_(overlap_steps) {}

  // So many steps later, whether it has come or must be waited for.
  absl::StatusOr<bool> Settled(const StepInfo& info) override {
    return info.step >= info.last_sync_step + overlap_steps_;
  }

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  const FragmentSchedule* const schedule_;
  const int64_t overlap_steps_;
};

// A-EDiT: when tau seconds have passed since the replicas met, by the clock of the replica's first rank. What it reads before
// one forward pass, the others know at the next: one byte travels behind the step between. Clocks of replicas are not
// compared: each comes to its k-th rendezvous some time, and nobody to the next one before.
class TimeTrigger final : public SyncTrigger {
 public:
  // `replica`: for this object alone; null: a replica of one rank. `clock` outlives this.
  TimeTrigger(int64_t warmup_steps, int64_t interval_ns, const Clock* clock,
              std::shared_ptr<Communicator> replica, int64_t timeout_ns);
  ~TimeTrigger() override;

  // After the wait for the others, not before: else whoever came first would have its wait on the
  // clock, come first again by more, and in the end do nothing but wait.
  void Met() override;
  void GiveUp(const absl::Status& why) override;
  // When it has come on all ranks of the replica, which they too know a step later.
  absl::StatusOr<bool> Settled(const StepInfo& info) override { return Agree(info.arrived); }

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  // Whether all ranks said yes at the last forward pass, and starts asking for the next.
  absl::StatusOr<bool> Agree(bool yes);
  bool Over() const { return clock_->Now() - start_ns_ >= interval_ns_; }

  const int64_t interval_ns_;  // tau
  const Clock* const clock_;
  const std::shared_ptr<Communicator> replica_;
  const int64_t timeout_ns_;
  int64_t start_ns_ = 0;
  RefPtr<Work> asked_;  // of the last forward pass; null: nothing is
  uint8_t all_ = 0;     // where the answer arrives
  bool stale_ = false;  // what is asked is of the interval before
};

}  // namespace entrain
