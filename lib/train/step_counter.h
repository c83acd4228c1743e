// Counts what this rank's replica trains: steps, their micro-batches, and what has been done since the last rendezvous or exchange,
// which the next standing says.
//
// Thread safety: one thread at a time, the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/rendezvous.h"
#include "lib/train/trigger.h"

namespace entrain {

class StepCounter {
 public:
  // `training`: the layers that train; the model has `layers`. `reductions`: as EndStep's.
  StepCounter(int64_t warmup_steps, int32_t microbatches_a_step, int layers,
              std::vector<int> training, uint64_t reductions);

  int64_t step() const { return step_; }
  bool in_warmup() const { return step_ < warmup_steps_; }
  // Steps since the end of warm-up.
  int64_t since_warmup() const { return step_ - warmup_steps_; }
  // -1: there was neither a rendezvous nor Begin.
  int64_t last_rendezvous_step() const { return last_rendezvous_step_; }
  bool left() const { return left_; }
  StepInfo Moment() const { return {step_, last_rendezvous_step_, requested_}; }

  // A forward pass in training. kFailedPrecondition: the step has had all its micro-batches.
  absl::Status BeginMicrobatch(bool first);
  // kFailedPrecondition unless the step has had all of them.
  absl::Status CheckAllMicrobatches() const;
  // `reductions`: how many of gradients have begun so far.
  void EndStep(uint64_t reductions);
  // kFailedPrecondition: gradients of this step have been reduced since the last EndStep.
  absl::Status CheckNoneReduced(uint64_t reductions) const;

  absl::Status Record(int64_t tokens, double metric, double weight);
  void Wish(uint64_t flags) { wishes_ |= flags; }
  void Request() { requested_ = true; }
  bool requested() const { return requested_; }
  // The same, and the request is over.
  bool TakeRequest();

  // kFailedPrecondition: this replica has made steps of its own since warm-up, and so differs from the others.
  absl::Status CheckMayBegin() const;
  // The replicas have left warm-up, or begun, alike: counts begin.
  void Begin();
  // kFailedPrecondition: in warm-up, or for the second time.
  absl::Status CheckMayLeave() const;
  void Leave() { left_ = true; }
  // What a rendezvous about these layers learns from this rank; its counts begin anew.
  Standing TakeStanding(const std::vector<int>& layers);
  // The rendezvous exchanged nothing: what was trained counts for the next one.
  void TakeBack(const Standing& standing);
  // A merge has kept something of this replica's own in these layers.
  void Keep(const std::vector<int>& layers);
  // What a replica that leaves has to exchange: where the others' layers have just been, a second time would let the outer momentum
  // take a free step. All, if there is nothing: the rendezvous is about leaving.
  std::vector<int> LeftOver() const;

  void VisitSteps(StateVisitor& visitor);
  void VisitStanding(StateVisitor& visitor);
  void VisitUnshared(StateVisitor& visitor);
  // Of what was loaded. kInvalidArgument: it is of no rendezvous. kFailedPrecondition: it is of a step in warm-up.
  absl::Status CheckLoaded(int64_t steps, int64_t last, int64_t base, int64_t syncs,
                           int64_t rendezvous) const;
  // The state has been loaded. `exchanged`: the replicas had just exchanged.
  void GoOn(bool exchanged);
  int64_t base_step() const { return base_step_; }
  int64_t rendezvous() const { return rendezvous_; }  // begun

 private:
  const int64_t warmup_steps_;  // W_s
  const int32_t microbatches_a_step_;
  const std::vector<int> training_;
  int64_t step_ = 0;  // g
  bool requested_ = false;
  int32_t microbatches_ = 0;  // training forwards of this step, from its first micro-batch on
  int64_t base_step_ = 0;     // of the last exchange
  int64_t tokens_ = 0;
  bool counted_ = false;  // what tokens_ is; else nobody has said anything
  double metric_sum_ = 0, metric_weight_ = 0;
  uint64_t wishes_ = 0;
  bool left_ = false;
  // By layer, 1: though no step was made since the last rendezvous, this replica may have something
  // of its own there: it was about other layers, or a mixed merge has kept it.
  std::vector<int64_t> unshared_;
  int64_t last_rendezvous_step_ = -1;  // when the last rendezvous began
  int64_t rendezvous_ = 0;             // begun
  uint64_t reductions_;                // of gradients, when the step began
};

}  // namespace entrain
