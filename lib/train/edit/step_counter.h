// Counts the steps and micro-batches of this rank's replica. Also keeps the totals since the last
// rendezvous or exchange, for the next standing.
//
// Thread safety: one thread at a time, the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/edit/rendezvous.h"
#include "lib/train/edit/trigger.h"

namespace entrain {

class StepCounter {
 public:
  // `training` lists the layers that train, out of `layers`. `reductions` is as in EndStep.
  StepCounter(int64_t warmup_steps, int32_t microbatches_a_step, int layers,
              std::vector<int> training, uint64_t reductions);

  int64_t step() const { return step_; }
  bool in_warmup() const { return step_ < warmup_steps_; }
  // Returns the number of steps since the end of warm-up.
  int64_t since_warmup() const { return step_ - warmup_steps_; }
  // Returns the step of the last rendezvous or of Begin; -1 if there was none.
  int64_t last_rendezvous_step() const { return last_rendezvous_step_; }
  // Returns how often the counts have begun anew: by Begin, GoOn and Join.
  int64_t beginnings() const { return beginnings_; }
  bool left() const { return left_; }
  // Returns all tokens that Record has counted on this object.
  int64_t all_tokens() const { return all_tokens_; }
  StepInfo Moment() const {
    return {.step = step_,
            .last_sync_step = last_rendezvous_step_,
            .requested = requested_,
            .rendezvous = rendezvous_};
  }

  // Counts a forward pass in training. Returns kFailedPrecondition if the step already had all its
  // micro-batches.
  absl::Status BeginMicrobatch(bool first);
  // Returns kFailedPrecondition unless the step has had all its micro-batches.
  absl::Status CheckAllMicrobatches() const;
  // `reductions` is the number of gradient reductions that have begun so far.
  void EndStep(uint64_t reductions);
  // Returns kFailedPrecondition if gradients of this step have been reduced since the last EndStep.
  absl::Status CheckNoneReduced(uint64_t reductions) const;

  absl::Status Record(int64_t tokens, double metric, double weight);
  void Wish(uint64_t flags) { wishes_ |= flags; }
  void Request() { requested_ = true; }
  bool requested() const { return requested_; }
  // Returns requested() and clears the request.
  bool TakeRequest();

  // Returns kFailedPrecondition if this replica has made steps alone since warm-up. Its parameters
  // then differ from those of the other replicas.
  absl::Status CheckMayBegin() const;
  // Starts the counts. Must be called when all replicas have equal parameters: at the end of
  // warm-up, or at the first step if there is no warm-up.
  void Begin();
  // Returns kFailedPrecondition in warm-up, or after Leave.
  absl::Status CheckMayLeave() const;
  void Leave() { left_ = true; }
  // Returns this rank's standing for a rendezvous about these layers. Resets the counts.
  Standing TakeStanding(const std::vector<int>& layers);
  // Returns what this rank has not told yet, without its training: the flags and the metric.
  Standing TakeNews();
  // Restores the counts after a rendezvous that exchanged nothing, so that the next standing
  // includes them.
  void TakeBack(const Standing& standing);
  // Restores the counts after an arrival that led to no rendezvous. With `dropped`, does not
  // restore steps and tokens, because the result of these steps was dropped.
  void TakeBackUnsent(const Standing& standing, bool dropped);
  // Sets the number of rendezvous so far, including those that this replica has missed.
  void SetRendezvous(int64_t rendezvous) { rendezvous_ = rendezvous; }
  // Records that a merge has kept changes of this replica in these layers.
  void Keep(const std::vector<int>& layers);
  // Returns the layers that must still be exchanged before this replica leaves. Does not return a
  // layer that was just exchanged. A second exchange would apply the outer momentum once more
  // without a new gradient. If no layer must be exchanged, returns all layers that train, because a
  // rendezvous must still announce that this replica leaves.
  std::vector<int> LeftOver() const;

  void VisitSteps(StateVisitor& visitor);
  void VisitStanding(StateVisitor& visitor);
  void VisitUnshared(StateVisitor& visitor);
  // Checks loaded values. Returns kInvalidArgument if they cannot be those of a rendezvous. Returns
  // kFailedPrecondition if their step is in this run's warm-up.
  absl::Status CheckLoaded(int64_t steps, int64_t last, int64_t base, int64_t syncs,
                           int64_t rendezvous) const;
  // Continues from loaded state. `exchanged`: the state was saved just after an exchange.
  void GoOn(bool exchanged);
  // For a newcomer: begins at step `step` of a run that has had `rendezvous` rendezvous. The last
  // of these was at step `met`; `step` is at least `met`.
  void Join(int64_t step, int64_t met, int64_t rendezvous);
  int64_t base_step() const { return base_step_; }
  int64_t rendezvous() const { return rendezvous_; }  // begun rendezvous

 private:
  const int64_t warmup_steps_;  // W_s
  const int32_t microbatches_a_step_;
  const std::vector<int> training_;
  int64_t step_ = 0;  // g
  bool requested_ = false;
  int32_t microbatches_ = 0;  // training forward passes of this step
  int64_t base_step_ = 0;     // step of the last exchange
  int64_t tokens_ = 0, all_tokens_ = 0;
  bool counted_ = false;  // tokens_ was set by Record
  double metric_sum_ = 0, metric_weight_ = 0;
  uint64_t wishes_ = 0;
  bool left_ = false;
  // By layer: 1 if this replica may have changes in the layer that were not exchanged, even if it
  // has made no step since the last rendezvous. This happens if the rendezvous was about other
  // layers, or if a merge with kMix has kept the changes.
  std::vector<int64_t> unshared_;
  int64_t last_rendezvous_step_ = -1;  // step at which the last rendezvous began
  int64_t rendezvous_ = 0;             // begun rendezvous
  int64_t beginnings_ = 0;
  uint64_t reductions_;  // gradient reductions when the step began
};

}  // namespace entrain
