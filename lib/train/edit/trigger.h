// Decides when replicas exchange. An exchange may begin only before the first micro-batch of a
// training step. Due is called once at each such time.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/comm/communicator.h"
#include "lib/train/edit/fragments.h"
#include "lib/train/edit/replica_agreement.h"

namespace entrain {

struct StepInfo {
  int64_t step = 0;  // number of optimizer steps so far (g)
  // The value of `step` at the last rendezvous or at the creation of anchors; -1: neither yet. For
  // Settled: the step at which the exchange began.
  int64_t last_sync_step = -1;
  bool requested = false;  // a caller asked for an early exchange
  bool arrived = false;    // for Settled: the exchange is over on this rank
  int64_t rendezvous = 0;  // number of rendezvous so far
};

class SyncTrigger {
 public:
  explicit SyncTrigger(int64_t warmup_steps) : warmup_steps_(warmup_steps) {}
  virtual ~SyncTrigger() = default;

  // Returns the same result on all ranks of a replica. Returns false in warm-up, and at the step of
  // the last rendezvous. A second exchange at that step would have no new gradient, but would apply
  // the outer momentum once more.
  absl::StatusOr<bool> Due(const StepInfo& info) {
    if (info.step < warmup_steps_ || info.step == info.last_sync_step) {
      return false;
    }
    if (info.requested) {
      return true;
    }
    return info.last_sync_step < 0 ? true : IsTime(info);
  }
  // For an exchange that overlaps with further steps and began at last_sync_step. Returns true if
  // the exchange must be merged at this step. Returns the same result on all ranks of a replica.
  virtual absl::StatusOr<bool> Settled(const StepInfo& info) = 0;
  // Begins a new interval. Must be called after each rendezvous, and after the creation of anchors.
  virtual void Met() {}
  // Makes a pending call within the replica fail on all its ranks. May be called from any thread.
  virtual void GiveUp(const absl::Status& /*why*/) {}

 protected:
  // Returns true if a rendezvous is due. Called only after warm-up, at a step that has had no
  // rendezvous.
  virtual absl::StatusOr<bool> IsTime(const StepInfo& info) = 0;
  int64_t warmup_steps() const { return warmup_steps_; }

 private:
  const int64_t warmup_steps_;  // W_s
};

// EDiT: an exchange is due at the steps of a schedule, W_s + k H. No communication is necessary,
// because all replicas count the same steps.
class StepTrigger final : public SyncTrigger {
 public:
  // `schedule` must outlive this object.
  StepTrigger(int64_t warmup_steps, const FragmentSchedule* schedule, int64_t overlap_steps = 0)
      : SyncTrigger(warmup_steps), schedule_(schedule), overlap_steps_(overlap_steps) {}

  // An exchange is merged overlap_steps steps after its beginning. If the exchange is not over by
  // then, the merge waits for it.
  absl::StatusOr<bool> Settled(const StepInfo& info) override {
    return info.step >= info.last_sync_step + overlap_steps_;
  }

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  const FragmentSchedule* const schedule_;
  const int64_t overlap_steps_;
};

// A-EDiT: an exchange is due when tau seconds have passed since the last rendezvous, by the clock
// of the replica's first rank. This rank reads its clock before each forward pass. The other ranks
// learn the result before the next forward pass, from an all-reduce of one byte that runs during
// the step. Clocks of different replicas are not compared. Each replica comes to its k-th
// rendezvous at its own time. It comes to the next rendezvous only after all replicas have come to
// the k-th.
class TimeTrigger final : public SyncTrigger {
 public:
  // Nothing else may use `replica`; null: the replica has one rank. The clock of `options` must
  // outlive this object.
  TimeTrigger(const EditOptions& options, std::shared_ptr<Communicator> replica);

  // Must be called after the wait for the other replicas. Otherwise the replica that comes first
  // would count its wait as part of the interval. It would then come first again, by a larger
  // margin each time. In the end it would only wait.
  void Met() override;
  void GiveUp(const absl::Status& why) override;
  // Returns true one step after the exchange is over on all ranks of the replica. The ranks learn
  // this with a delay of one step.
  absl::StatusOr<bool> Settled(const StepInfo& info) override { return Agree(info.arrived); }

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  // Returns true if `yes` was true on all ranks at the last forward pass.
  absl::StatusOr<bool> Agree(bool yes);
  // Warns once if many exchanges in turn were due after one step: tau is then shorter than an
  // exchange, whose time counts (Met), and local steps are never made.
  void WarnIfTooShort(const StepInfo& info, int64_t interval_ns);

  const EditOptions options_;
  const bool first_;  // this is the replica's first rank
  ReplicaAgreement agreement_;
  int64_t start_ns_ = 0;
  int after_one_step_ = 0;  // the number of exchanges in turn that were due after one step
};

}  // namespace entrain
