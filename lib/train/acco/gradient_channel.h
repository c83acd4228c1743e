// ACCO (arXiv 2406.02613) and its baselines: a round sums the gradients of all ranks, makes an
// optimizer step and gives the new parameters to the caller. While a round runs, the caller
// accumulates the gradients of the next round. The optimizer's state is sharded over the ranks
// (ZeRO-1). The class implements entrain_acco_*; include/entrain/train.h has the contract of each
// function.
//
// A round consists of counts, reduce-scatter, step and all-gather:
//
//   caller   add add add | install | add add | install |    acc: accumulator
//   worker             round r        |   round r + 1   |    com: buffer of a round
//
// Install waits for the round under way and copies its parameters to the caller. Then Install
// starts the next round, with the gradients added so far. delay_rule.h has the table of methods.
//
// The caller's thread uses:
//   DelayRule         the kind of each round
//   MicrobatchQuota   the number of micro-batches that this rank adds to a round
//   ChannelState      checkpoints
//   ChannelJobs       posts rounds to the worker
// The worker uses GradientRound and its parts.
//
//   caller   ... install: params = com, com = acc |  ...gradients...  | params = com, com = acc |
//   worker                                        | reduce-scatter, step, all-gather |
//
// The counts of all ranks are summed together with the gradients. All ranks use these sums for
// their decisions, so all ranks decide alike and end at the same commit.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
#include "lib/train/acco/channel_jobs.h"
#include "lib/train/acco/channel_ranks.h"
#include "lib/train/acco/channel_state.h"
#include "lib/train/acco/delay_rule.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/acco/gradient_round.h"
#include "lib/train/acco/microbatch_quota.h"
#include "lib/train/shard/slab.h"
#include "lib/train/worker/worker.h"

namespace entrain {

// The state as of the last install. The fields of RoundResult are the same on all ranks after the
// same number of installs.
struct ChannelInfo : RoundResult {
  int64_t losses = 0;   // ranks that were lost before this round, but after this rank began
  int64_t dropped = 0;  // micro-batches of this rank that came too late for the last commit
  bool finished = false;
  // Totals since the channel was created:
  uint64_t exposed_ns = 0;  // time that install has waited
  uint64_t round_ns = 0;    // time that rounds have taken
  uint64_t bytes_sent = 0;
  int64_t bytes_held = 0;  // memory of this rank, without params and the caller's arrays
};

class GradientChannel {
 public:
  // Collective. Rank 0's parameters become the parameters of all ranks. Destruction of the channel
  // aborts a round under way, on all ranks.
  // If a step function of the caller does not return, destruction does not wait for it: the
  // worker's thread frees the object later.
  static absl::StatusOr<std::shared_ptr<GradientChannel>> Create(Communicator& comm,
                                                                 const ChannelOptions& options);
  // Creates the channel of a newcomer, which joins the ranks of a running channel (option admit).
  // `comm` contains only this process. Blocks at most `wait_ns`. If `wait_ns` is 0, the
  // communicator's time limit applies.
  static absl::StatusOr<std::shared_ptr<GradientChannel>> Join(Communicator& comm,
                                                               const ChannelOptions& options,
                                                               int64_t wait_ns);
  // Returns the accumulator: options.count elements of grads_dtype.
  void* gradients() { return accumulator_.data(); }
  // Records how many micro-batches and tokens the caller has added to the accumulator since the
  // last call.
  absl::Status Add(int64_t microbatches, int64_t tokens);
  // Returns true if Install would not wait for other ranks. Also returns true if no further
  // micro-batch may be added before Install. Never blocks.
  absl::StatusOr<bool> Poll() const;
  absl::Status Install();
  // Blocks until Install would not wait. Returns false if Install would still wait at the deadline.
  // If Install would start a round and wait for it (DelayRule::Synchronous), Wait starts this
  // round.
  absl::StatusOr<bool> Wait(Deadline until);
  // Like Wait, but does not block. When Install would not wait, calls `then` once with the round's
  // status. The rules for `then` are those of LayerSync::WhenLayerOver.
  absl::Status WhenReady(Worker::Continuation then);
  // Asks all ranks to end the run. The run ends at the first commit whose counts include this
  // request.
  absl::Status Stop();
  // Makes the round under way fail. If another thread is in a call, makes the call fail too. May be
  // called from any thread.
  void Abandon();
  // Must be called if a call on this rank has failed, because the process may then end. Tells this
  // to the ranks that wait for this rank.
  void Refused(const absl::Status& why) const;

  // Returns the object that gives access to the run's state, for checkpoints and for the caller.
  // Its functions Save and Load must be called between Install and the next Add.
  ChannelState& state() { return state_; }

  ChannelInfo info() const;
  // Returns the losses that this rank knows of, in the order in which it learned of them.
  std::vector<ChannelLoss> losses() const;
  // Returns the partition of the parameters into shards. With on_loss finish or admit, a round may
  // change the partition. So with these options this function must not be called while a round is
  // under way.
  const Slab& slab() const { return round_.ranks().cut().slab(); }
  // Returns this rank's shard: slab().layer(0).valid elements of master_dtype.
  const void* master() const { return round_.ranks().cut().own().theta(); }

 private:
  GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options);
  ~GradientChannel() = default;
  static void Free(GradientChannel* channel);
  absl::Status AllocateAccumulator();
  absl::Status Allocate();
  absl::Status JoinMembers(Communicator& own, int64_t wait_ns);
  absl::Status CheckRound() const;
  absl::Status CheckEnough() const;
  absl::Status StartSynchronous();
  absl::Status Land();
  absl::Status HandOver();

  int ranks_;                 // number of ranks at Create, or after this rank has joined
  int64_t joins_before_ = 0;  // number of newcomers that the run had at that time
  const ChannelOptions options_;
  OwnedBuffer accumulator_;
  GradientRound round_;  // used by the worker while a round is under way, otherwise by the caller
  DelayRule rule_;
  MicrobatchQuota quota_;
  RoundCounts held_;  // counts of the gradients in the accumulator
  bool stop_ = false;
  int64_t dropped_ = 0;
  uint64_t exposed_ns_ = 0;
  uint64_t base_bytes_ = 0;  // bytes sent during Create
  LandedRound landed_;
  ChannelFailure failure_;
  ChannelState state_;

  ChannelJobs jobs_;  // last member: the worker's jobs use the other members
};

}  // namespace entrain
