// The state of EDiT. This class lists the arrays and numbers of a run, checks when they may be
// saved, and continues a run from loaded values. checkpoint.h writes and reads the files.
//
// Thread safety: only the caller's thread may use the object.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/comm/mesh.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange.h"
#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/edit/fragments.h"
#include "lib/train/edit/layer_gates.h"
#include "lib/train/edit/round_closer.h"
#include "lib/train/edit/round_runner.h"
#include "lib/train/edit/step_counter.h"
#include "lib/train/edit/trigger.h"
#include "lib/train/shard/layer_shards.h"
#include "lib/train/state/all_ranks.h"
#include "lib/train/state/checkpoint.h"
#include "lib/train/state/open_state.h"
#include "lib/train/state/state_list.h"
#include "lib/train/worker/worker.h"

namespace entrain {

class EditState final : public StateOwner {
 public:
  // The parts of the EDiT object that this object uses. They must outlive this object.
  struct Parts {
    const Mesh& mesh;
    const LayerShards& shards;
    const EditOptions& options;
    const FragmentSchedule& schedule;
    SyncTrigger& trigger;
    Exchange& exchange;
    StepCounter& counter;
    RoundsBehind& behind;
    ExchangeResults& results;
    const LayerGates& gates;
    RoundRunner& runner;
    const FirstError& error;
    Worker& worker;
    const RoundCloser* closer;  // null: rounds need all replicas
  };
  // `continues`: this replica has joined a run.
  EditState(const Parts& parts, bool continues) : parts_(parts), continues_(continues) {}

  // Counts a call that changes the state.
  void Move() { ++moves_; }
  // Adds an array of the caller to the run's state. Does not copy it: `data` must stay valid until
  // this object is destroyed.
  absl::Status AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                        int64_t count);
  // Collective. Must be called between the end of an exchange and the next reduction of gradients.
  // An exact checkpoint may also be saved after a rendezvous without an exchange. At other times
  // returns kFailedPrecondition.
  absl::Status Save(const CheckpointOptions& given);
  // Collective, when an exact checkpoint may be saved, in warm-up, and after Leave. Reduces values
  // over the ranks of all replicas (AllRanks::Reduce).
  absl::Status Reduce(const JointReduction& reduction);
  // Collective. Returns kFailedPrecondition while an exchange is under way, or while a layer's
  // parameters are gathered.
  absl::Status Load(const CheckpointOptions& options);
  // Gives the caller access to the arrays of the state. Not collective. Returns kFailedPrecondition
  // while an exchange is under way. Always returns kFailedPrecondition with quorum or
  // round_deadline.
  absl::StatusOr<std::unique_ptr<OpenState>> Open(CheckpointKind kind);

  // StateOwner
  int64_t moves() const override { return moves_; }
  absl::Status CheckSavable(CheckpointKind kind) const override;
  absl::Status TakeUp(OpenState& state, int64_t timeout_ns) override;

 private:
  const Slab& slab() const { return parts_.shards.slab(); }
  void VisitState(StateVisitor& visitor);
  absl::Status CheckWaited() const;
  absl::Status CheckQuiet() const;
  absl::Status CheckNothingBehind() const;
  absl::Status CheckOnTime() const;
  absl::Status CheckRendezvous(CheckpointKind kind) const;
  absl::Status CheckTrusted(CheckpointKind kind) const;
  absl::Status CheckTogether() const;
  absl::Status CheckNobodyLeaves() const;
  absl::Status CheckLoaded(const StateList& state) const;
  absl::Status PrepareSnapshots();
  absl::Status Restore(AllRanks& all, absl::string_view doing, absl::Status mine, StateList* state,
                       absl::FunctionRef<absl::Status()> fill);
  void GoOnFrom(CheckpointKind kind);
  AllRanks Everybody(int64_t timeout_ns) const;
  ModelPart Part() const;
  bool LacksAnchors() const {
    return !parts_.options.plain() && !parts_.exchange.anchors().exist();
  }
  absl::Status End(const AllRanks& all, absl::Status status, absl::string_view doing);

  const Parts parts_;
  CallersArrays callers_;
  int64_t moves_ = 0;  // calls that changed the state
  bool continues_;     // the run goes on from an earlier one, or has a newcomer's state
};

}  // namespace entrain
