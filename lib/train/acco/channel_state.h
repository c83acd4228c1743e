// The state of a gradient channel. This class lists the arrays and numbers of a run, checks when
// they may be saved, and continues a run from loaded values. checkpoint.h writes and reads the
// files.
//
// Thread safety: only the caller's thread may use the object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/acco/channel_jobs.h"
#include "lib/train/acco/channel_ranks.h"
#include "lib/train/acco/channel_record.h"
#include "lib/train/acco/delay_rule.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/acco/gradient_round.h"
#include "lib/train/acco/microbatch_quota.h"
#include "lib/train/state/all_ranks.h"
#include "lib/train/state/checkpoint.h"
#include "lib/train/state/joint_calls.h"
#include "lib/train/state/open_state.h"
#include "lib/train/state/state_list.h"

namespace entrain {

// The results of the round that Install has taken last.
struct LandedRound {
  RoundResult result;
  uint64_t round_ns = 0;  // sum of the times of all rounds up to this one
  bool finished = false;  // the run has ended
};

class ChannelState final : public StateOwner {
 public:
  // The parts of the gradient channel that this object uses. They must outlive this object.
  struct Parts {
    const ChannelOptions& options;
    const OwnedBuffer& accumulator;
    RoundCounts& held;
    MicrobatchQuota& quota;
    DelayRule& rule;
    GradientRound& round;
    ChannelJobs& jobs;
    LandedRound& landed;
    ChannelFailure& failure;
  };
  explicit ChannelState(const Parts& parts) : parts_(parts), record_(parts.options) {}

  // Counts a call that changes the state.
  void Move() { ++moves_; }
  // Must be called if this rank has joined a run.
  void Continue() { continues_ = true; }
  // Adds an array of the caller to the run's state. Does not copy it: `data` must stay valid until
  // this object is destroyed.
  absl::Status AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                        int64_t count);
  // Collective. Must be called between an Install and the next micro-batch.
  absl::Status Save(const CheckpointOptions& given);
  // Collective, at the same times as Save. Reduces values over the ranks (AllRanks::Reduce).
  absl::Status Reduce(const JointReduction& reduction);
  absl::Status Load(const CheckpointOptions& options);
  // Gives the caller access to the arrays of the state. Not collective. Waits for the round under
  // way.
  absl::StatusOr<std::unique_ptr<OpenState>> Open(CheckpointKind kind);

  // StateOwner
  int64_t moves() const override { return moves_; }
  absl::Status CheckSavable(CheckpointKind kind) const override;
  absl::Status TakeUp(OpenState& state, int64_t timeout_ns) override;

 private:
  ChannelRanks& ranks() const { return parts_.round.ranks(); }
  const Slab& slab() const { return ranks().cut().slab(); }
  void VisitState(StateVisitor& visitor);
  void Quieten();
  absl::Status MakeJointCall(absl::string_view doing, int64_t timeout_ns,
                             JointCalls::Attempt attempt, std::string* result);
  absl::Status Prepare(AllRanks& all, CheckpointKind kind, absl::Status mine);
  absl::Status Restore(AllRanks& all, absl::string_view doing, absl::Status mine, StateList* state,
                       absl::FunctionRef<absl::Status()> fill);
  absl::Status GoOnFromMasters(const AllRanks& all);
  absl::Status End(const AllRanks& all, absl::Status status, absl::string_view doing);

  const Parts parts_;
  CallersArrays callers_;
  ChannelRecord record_;
  int64_t moves_ = 0;       // calls that changed the state
  bool continues_ = false;  // the run goes on from an earlier one, or has a newcomer's state
};

}  // namespace entrain
