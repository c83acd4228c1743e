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
// two more messages: the neighbours' sums, and the votes (commit_plan.h).
//
// With admit, the counts contain three more numbers, and a round may begin with the admission of
// newcomers (channel_admission.h).
//
// Thread safety: one thread at a time: the worker between Take and Publish, otherwise the caller's
// thread. comm, bytes, bytes_sent, End and Abort may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/train/channel_admission.h"
#include "lib/train/channel_buffers.h"
#include "lib/train/channel_cut.h"
#include "lib/train/channel_recovery.h"
#include "lib/train/channel_transfer.h"
#include "lib/train/commit_plan.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/replica_world.h"
#include "lib/train/round_state.h"
#include "lib/train/shard_step.h"
#include "lib/train/slab.h"

namespace entrain {

class GradientRound {
 public:
  // Tags of those collectives of a round that may be under way at the same time.
  static constexpr int64_t kCountsTag = 0, kDataTag = 1;

  // `options` have been checked and must outlive the object. Nothing else may use `comm`.
  GradientRound(std::shared_ptr<Communicator> comm, const ChannelOptions& options);
  ~GradientRound();  // waits for enqueued work, which uses the arrays

  // Allocates all memory, and gives rank 0's parameters to all ranks. Collective.
  absl::Status Allocate();
  // Allocates the memory of a newcomer, which has no shard before Become. Local.
  absl::Status AllocateForNewcomer();
  // Runs a round on the gradients that were taken, with the counts of this rank.
  absl::Status Run(RoundKind kind, const RoundCounts& mine);
  // Waits for the work that Run has enqueued.
  absl::Status Settle();
  // Collective. Sets the parameters to the masters of all ranks, in com and in the caller's memory.
  absl::Status PublishMasters();

  const RoundState& state() const { return state_; }
  RoundState& state() { return state_; }
  const ChannelCut& cut() const { return *cut_; }
  const ShardStep& shard() const { return cut_->own(); }
  ShardStep& shard() { return cut_->own(); }
  ChannelBuffers& buffers() { return buffers_; }
  const ChannelBuffers& buffers() const { return buffers_; }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Returns the communicator of the remaining ranks and the newcomers.
  std::shared_ptr<Communicator> comm() const;
  uint64_t bytes_sent() const;
  // End and Abort end the communicator as the functions of Communicator do. They also end a
  // recovery under way.
  void End(const absl::Status& why);
  void Abort(absl::string_view reason);
  // Collective. Renews the neighbours' copies of the masters and of the state, which have changed
  // outside a round.
  absl::Status RenewCopies() { return cut_->RenewCopy(); }

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
  // Blocks until no newcomers are being connected. Must be called before untagged calls on comm().
  void AwaitNewcomers();
  // Turns away newcomers that are being connected. Must be called on all ranks.
  void DropNewcomers();
  ChannelTotals totals() const;
  int64_t joins() const { return joins_; }  // newcomers in the whole run
  // Returns the number that the next newcomer gets. No number is used twice.
  int next_number() const { return next_number_; }
  // Replaces the members' communicator and cut by the larger communicator and its cut.
  void Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut);
  // Makes this newcomer a rank of `enlarged`. The members have just finished the round of `totals`.
  void Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
              const ChannelTotals& totals);

  // ---- After a loss
  // Returns null if a loss is an error.
  ChannelRecovery* recovery() const { return recovery_.get(); }
  // Returns true if the recovery can handle the failure of a call with `status`.
  bool Answers(const absl::Status& status) const;
  ChannelPlace place() const;
  // Makes the step of the commit that other ranks have decided, unless this rank has made it.
  // `rounds` is the number of rounds before that commit.
  absl::Status Decide(int64_t rounds, const RoundOutcome& outcome);
  // Collective over `comm`. Receives the shards of a cut for the ranks of `comm`. `members` has the
  // numbers of these ranks. `holders` has, for each shard of the present cut, the rank that holds
  // it.
  absl::Status PrepareCut(std::shared_ptr<Communicator> comm, std::vector<int> members,
                          absl::Span<const int> holders);
  // Replaces the cut by the prepared one, if there is one.
  void TakeCut();
  // Collective. Rank `root` has finished the round that follows `rounds` rounds. A rank that has
  // not finished this round receives the parameters from `root`, and finishes it with them.
  absl::Status ShareParameters(int root, int64_t rounds);
  // Collective. Finishes the round on all ranks, with the masters as parameters.
  absl::Status GatherMasters();

 private:
  struct Carried {
    const char* what;
    RefPtr<Work> work;
  };

  void Adopt(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut, int64_t cuts,
             int64_t joins);
  void StartMembership();
  absl::Status WarmUp();
  absl::Status Make(RoundKind kind, const RoundCounts& mine);
  absl::Status MakeWhole(RoundKind kind, const RoundCounts& mine);
  absl::Status ShareCounts(const RoundCounts& mine, RoundCounts* all);
  absl::Status SetRate(RoundResult* now) const;
  absl::Status CheckCopies(absl::Span<const ShardSums> sums) const;
  absl::Status Step(const GradientSum& sum, double lr);
  absl::Status StepCopy();
  absl::Status Close();
  absl::Status MastersToCom();
  absl::Status Carry(const char* what, Call call);
  Call GradientsCall() const;
  Call ParametersCall() const;
  CallOptions Options(bool on_stream = true) const;
  void Doing(const char* what) const;
  void CountBytes();
  GradientSum Sum() const;
  // Returns true if the round is a commit that ranks also make on their copies.
  bool Votes() const { return recovery_ != nullptr && Commits(state_.kind()); }
  const SlabLayer& layer() const { return cut_->layer(); }

  std::shared_ptr<Communicator> first_comm_;  // null if world_ is set, which then has it
  const ChannelOptions& options_;
  ChannelBuffers buffers_;
  std::unique_ptr<ReplicaWorld> world_;          // null: the ranks do not change
  std::unique_ptr<ChannelRecovery> recovery_;    // null: a loss is an error
  std::unique_ptr<ChannelAdmission> admission_;  // null: no newcomer is taken in
  std::unique_ptr<ChannelCut> cut_, prepared_;
  int64_t cuts_ = 0;   // how often the shards were cut anew
  int64_t joins_ = 0;  // newcomers in the whole run
  int next_number_ = 0;
  RoundState state_;
  std::vector<Carried> carried_;  // calls under way
  std::atomic<int64_t> bytes_{0};
};

}  // namespace entrain
