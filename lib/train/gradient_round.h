// Runs the rounds of a gradient channel, one after the other, on the channel's worker. A round sums
// gradients over all ranks, makes a step of its kind on this rank's shard (shard_step.h) and
// gathers the parameters, all in one buffer:
//
//   com   this rank's gradients --reduce-scatter--> sums of a shard --step--> parameters of a shard --all-gather--> parameters
//
// On a device a round is enqueued on a stream of its own. Run waits only for the counts of
// micro-batches.
//
// With on_loss finish the reduce-scatter reads the gradients from a separate array, where they
// stay. So the round can be repeated without the lost ranks (channel_recovery.h). A commit then has
// two more messages: the neighbours' sums, and the votes (commit_plan.h, round_votes.h).
//
// With admit, the counts contain three more numbers, and a round may begin with the admission of
// newcomers (channel_admission.h).
//
// The object is made of these parts:
//
//   ChannelBuffers   com and the gradients that were taken, and the stream
//   ChannelRanks     the communicator, the cut of the shards, and what changes both
//   RoundState       how far the round under way has come, and the last results
//   ChannelCalls     the calls on the buffers
//
// Thread safety: one thread at a time: the worker between Take and Publish, otherwise the caller's
// thread. ranks() has functions that may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

#include "lib/comm/communicator.h"
#include "lib/train/channel_buffers.h"
#include "lib/train/channel_calls.h"
#include "lib/train/channel_cut.h"
#include "lib/train/channel_ranks.h"
#include "lib/train/channel_transfer.h"
#include "lib/train/commit_plan.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/round_state.h"
#include "lib/train/shard_step.h"
#include "lib/train/slab.h"

namespace entrain {

class GradientRound {
 public:
  // `options` have been checked and must outlive the object. Nothing else may use `comm`.
  GradientRound(std::shared_ptr<Communicator> comm, const ChannelOptions& options);
  ~GradientRound();  // waits for enqueued work, which uses the arrays

  // Allocates all memory, and gives rank 0's parameters to all ranks. Collective.
  absl::Status Allocate();
  // Allocates the memory of a newcomer, which has no shard before Become. Local.
  absl::Status AllocateForNewcomer();
  // Runs a round on the gradients that were taken, with the counts of this rank. On a device the
  // work is only enqueued; ChannelCalls::Settle waits for it.
  absl::Status Run(RoundKind kind, const RoundCounts& mine);
  // Collective. Sets the parameters to the masters of all ranks, in com and in the caller's memory.
  absl::Status PublishMasters();

  const RoundState& state() const { return state_; }
  RoundState& state() { return state_; }
  const ChannelRanks& ranks() const { return ranks_; }
  ChannelRanks& ranks() { return ranks_; }
  ChannelBuffers& buffers() { return buffers_; }
  const ChannelBuffers& buffers() const { return buffers_; }
  ChannelCalls& calls() { return calls_; }

  // ---- The parts of Run, one after the other
  // Sums counts and gradients, and exchanges sums with the neighbours.
  absl::Status AddUp(RoundKind kind, const RoundCounts& mine);
  // With clipping, gathers one number of each rank. From these numbers every rank computes the norm
  // of the mean gradient; all ranks get the same bits. With on_loss = finish, each shard has a copy
  // on another rank. A commit then also gathers the checksums of the shards and of their copies,
  // and compares them.
  absl::Status Vote();
  // Makes the step.
  absl::Status Apply();
  // Gathers the parameters. Meanwhile, steps the copy of the neighbour's shard.
  absl::Status GatherParameters();

  // ---- Newcomers
  // Returns the numbers that members send to newcomers.
  ChannelTotals totals() const;
  // Replaces the members' communicator and cut by the larger communicator and its cut.
  void Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut);
  // Makes this newcomer a rank of `enlarged`. The members have just finished the round of `totals`.
  void Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
              const ChannelTotals& totals);

  // ---- After a loss
  // Returns how far this rank has come.
  ChannelPlace place() const;
  // If this rank has not made the step of the commit that other ranks have decided, makes it.
  // `rounds` is the number of rounds before that commit.
  absl::Status Decide(int64_t rounds, const RoundOutcome& outcome);
  // Collective. Rank `root` has finished the round that follows `rounds` rounds. A rank that has
  // not finished this round receives the parameters from `root`, and finishes it with them.
  absl::Status ShareParameters(int root, int64_t rounds);
  // Collective. Finishes the round on all ranks, with the masters as parameters.
  absl::Status GatherMasters();

 private:
  absl::Status Make(RoundKind kind, const RoundCounts& mine);
  absl::Status MakeWhole(RoundKind kind, const RoundCounts& mine);
  absl::Status ShareCounts(const RoundCounts& mine, RoundCounts* all);
  absl::Status Step(const GradientSum& sum, double lr);
  absl::Status StepCopy();
  absl::Status Close();
  absl::Status MastersToCom();
  GradientSum Sum() const;
  // Returns true if the round is a commit that ranks also make on their copies.
  bool Votes() const { return ranks_.recovery() != nullptr && Commits(state_.kind()); }
  const SlabLayer& layer() const { return ranks_.cut().layer(); }

  const ChannelOptions& options_;
  ChannelBuffers buffers_;
  ChannelRanks ranks_;
  RoundState state_;
  ChannelCalls calls_;
};

}  // namespace entrain
