// Runs the rounds of a gradient channel one after the other, on the channel's worker. A round sums
// the gradients of all ranks, makes a step on this rank's shard (shard_step.h), and gathers the
// parameters. One buffer, com, holds the data of all three:
//
//   com   this rank's gradients --reduce-scatter--> sums of this rank's shard
//         --step--> parameters of this rank's shard --all-gather--> all parameters
//
// With on_loss finish, the reduce-scatter reads the gradients from a second array and leaves them
// unchanged. So the round can be repeated without the lost ranks (Recover). A commit then has two more messages: the neighbours' sums, and the votes (commit_plan.h, round_votes.h).
//
// With admit, the counts contain three more numbers. A round may begin with the admission of
// newcomers (channel_admission.h).
//
// The object is made of these parts:
//
//   ChannelBuffers   the arrays of a round, and its calls
//   ChannelRanks     the communicator and the partition into shards; both may change
//   RoundState       the phase of the round under way, and the results of the last round
//
// Thread safety: one thread at a time. From ChannelBuffers::Take to Publish the worker uses the
// object, otherwise the caller's thread. Some functions of ranks() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/train/acco/channel_buffers.h"
#include "lib/train/acco/channel_cut.h"
#include "lib/train/acco/channel_ranks.h"
#include "lib/train/acco/channel_transfer.h"
#include "lib/train/acco/commit_plan.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/acco/round_state.h"
#include "lib/train/acco/shard_step.h"
#include "lib/train/shard/slab.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {

class GradientRound {
 public:
  // Tags of the collectives of a round. Calls with different tags may be under way at the same
  // time.
  static constexpr int64_t kCountsTag = 0, kDataTag = 1;

  // `options` have been checked and must outlive the object. Nothing else may use `comm`.
  GradientRound(std::shared_ptr<Communicator> comm, const ChannelOptions& options);

  // Allocates all memory, and gives rank 0's parameters to all ranks. Collective.
  absl::Status Allocate();
  // Allocates the memory of a newcomer, which has no shard before Become. Local.
  absl::Status AllocateForNewcomer();
  // Runs a round on the gradients that ChannelBuffers::Take has copied. `mine` holds the counts of
  // this rank.
  absl::Status Run(RoundKind kind, const RoundCounts& mine);
  // Collective. Sets the parameters to the master parameters of all ranks, in com and in the
  // caller's memory.
  absl::Status PublishMasters();

  const RoundState& state() const { return state_; }
  RoundState& state() { return state_; }
  const ChannelRanks& ranks() const { return ranks_; }
  ChannelRanks& ranks() { return ranks_; }
  ChannelBuffers& buffers() { return buffers_; }
  const ChannelBuffers& buffers() const { return buffers_; }

  // ---- The steps of a round (Make), in this order
  // Sums the counts and the gradients of all ranks. In a commit with on_loss finish, also sends
  // this rank's sum to the right neighbour and receives that of the left neighbour.
  absl::Status AddUp(RoundKind kind, const RoundCounts& mine);
  // With clip_norm, gathers one number of each rank. From these numbers every rank computes the
  // norm of the mean gradient, and all ranks get the same bits. With on_loss finish, each shard has
  // a copy on another rank. A commit then also gathers the checksums of the shards and of their
  // copies, and compares them.
  absl::Status Vote();
  // Makes the step on this rank's shard (ShardStep).
  absl::Status MakeStep();
  // Gathers the parameters. During the gather, makes the left neighbour's step on the copy of its
  // shard.
  absl::Status GatherParameters();

  // ---- Newcomers
  // Returns the numbers that members send to newcomers.
  ChannelTotals totals() const;
  // Used on members: replaces the communicator and the partition by those that include the
  // newcomers.
  void Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut);
  // Used on a newcomer: makes this process a rank of `enlarged`. The members have just finished the
  // round of `totals`.
  void Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
              const ChannelTotals& totals);

  // ---- After a loss (option on_loss finish)
  // Finishes the round on the remaining ranks:
  //
  //   1  the communicators end, and one of the remaining ranks is made     ChannelRanks::Shrink
  //   2  all ranks send their progress, and make the same plan             commit_plan
  //      if only some ranks have finished a joint call, all get its outcome   joint_calls
  //   3  if a rank has decided the commit, all ranks make the commit's step
  //   4  the remaining ranks make a new partition                          channel_cut
  //   5  a rank that has finished the round sends the parameters to the others. If there is none:
  //      if the commit was decided, the parameters are gathered from the master parameters; if not,
  //      the round must be repeated
  //
  // If another rank is lost meanwhile, Recover begins again and uses the results that this rank
  // already has. Collective over the remaining ranks. A rank may call it during a round or between
  // rounds. Returns OK if the round is finished or can be repeated, or if the next round can begin.
  // After an error this rank cannot continue.
  absl::Status Recover();
  // Returns the progress of this rank.
  ChannelPlace place() const;
  // Other ranks have decided a commit. If this rank has not made the step of this commit, makes it.
  // `rounds` is the number of rounds before the commit.
  absl::Status Decide(int64_t rounds, const RoundOutcome& outcome);

 private:
  absl::Status Make(RoundKind kind, const RoundCounts& mine);
  absl::Status MakeWhole(RoundKind kind, const RoundCounts& mine);
  absl::Status ShareCounts(const RoundCounts& mine, RoundCounts* all);
  absl::Status Step(const GradientSum& sum, double lr);
  absl::Status StepCopy();
  absl::Status Close();
  absl::Status MastersToCom();
  absl::Status GoOn();
  absl::Status ShareOutcome(const CommitPlan& plan);
  absl::Status CutAnew();
  absl::Status ShareParameters(int root, int64_t rounds);
  // Options of a call of the remaining ranks. `what` names the call in errors.
  CallOptions AfterLoss(const char* what) const;
  // Names the next step of the worker's job (Worker::Doing), with the number of the round.
  void Doing(const char* what) const;
  CallOptions DataOptions() const { return TimedCall(options_.timeout_ns, kDataTag, true); }
  // Runs a call of buffers_. `what` names it in errors.
  absl::Status RunCall(const char* what, Call call);
  GradientSum Sum() const;
  // Returns true if the round is a commit that ranks also make on their copies of shards.
  bool Votes() const { return ranks_.recovers() && Commits(state_.kind()); }
  const SlabLayer& layer() const { return ranks_.cut().layer(); }

  const ChannelOptions& options_;
  ChannelBuffers buffers_;
  ChannelRanks ranks_;
  RoundState state_;
};

}  // namespace entrain
