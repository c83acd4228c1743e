// ACCO and its baselines. The caller adds gradients and receives parameters a round later, while it
// accumulates the next gradients. Optimizer state is sharded over the ranks (ZeRO-1). The class
// implements entrain_acco_*; include/entrain/train.h has the contract of each function. ACCO is
// arXiv 2406.02613. A round consists of counts, reduce-scatter, step and all-gather.
//
//   caller   add add add | install | add add | install |    acc: the gradients added
//   worker             round r        |   round r + 1   |    com: the buffer of a round
//
// install waits for the round under way, takes its parameters, hands over the gradients added so
// far and starts the next round. delay_rule.h has the table of methods. The caller's thread uses
// DelayRule, MicrobatchQuota (how many micro-batches this rank adds to a round), ChannelState
// (checkpoints) and ChannelJobs, which hands rounds over to the worker. The worker uses
// GradientRound and its parts.
//
// On a device the worker enqueues a round on a stream of its own as soon as it knows the counts.
// install waits only until the round is enqueued. It enqueues its copies on the caller's stream,
// and the two streams wait for each other:
//
//   caller's   ... install: params = com, com = acc |  ...gradients...  | params = com, com = acc |
//   own                                             | reduce-scatter, step, all-gather |
//
// Counts are summed over all ranks together with the gradients. So every decision that follows from
// counts is the same on all ranks, and all ranks end at the same commit.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/device/arrays.h"
#include "lib/train/channel_failure.h"
#include "lib/train/channel_jobs.h"
#include "lib/train/channel_state.h"
#include "lib/train/delay_rule.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/gradient_round.h"
#include "lib/train/microbatch_quota.h"
#include "lib/train/slab.h"
#include "lib/train/worker_thread.h"

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
  // Collective. Rank 0's parameters become the parameters of all ranks. Releasing the channel ends
  // a round under way on all ranks. On a device the release also waits for the round that was taken
  // last. If a step function of the caller does not return, the worker's thread goes on, and frees
  // the object later.
  static absl::StatusOr<std::shared_ptr<GradientChannel>> Create(Communicator& comm,
                                                                 const ChannelOptions& options);
  // Used in place of Create to join the ranks of a channel that trains (option admit). `comm`
  // contains only this process. Blocks at most `wait_ns`; 0: the communicator's time limit.
  static absl::StatusOr<std::shared_ptr<GradientChannel>> Join(Communicator& comm,
                                                               const ChannelOptions& options,
                                                               int64_t wait_ns);
  // Returns the accumulator: options.count elements of grads_dtype.
  void* gradients() { return accumulator_.data(); }
  // Returns the stream of rounds, for the caller's step function; null on the host.
  StreamHandle stream() const { return round_.buffers().own().at().stream; }
  // On a device: makes later calls use this stream, which waits for the work on the previous one.
  absl::Status SetStream(StreamHandle stream);
  // Counts micro-batches and tokens that were added to the accumulator since the last call.
  absl::Status Add(int64_t microbatches, int64_t tokens);
  // Returns true if Install would not wait for other ranks, or if no micro-batch may be added
  // before Install. Never blocks.
  absl::StatusOr<bool> Poll() const;
  absl::Status Install();
  // Blocks until Install would not wait. Returns false if Install would still wait at the deadline.
  // If Install would wait for the round that it starts itself, this function starts that round.
  absl::StatusOr<bool> Wait(Deadline until);
  // Non-blocking form of Wait: calls `then` once when Install would not wait, with the round's
  // status; see LayerSync::WhenLayerOver.
  absl::Status WhenReady(WorkerThread::Continuation then);
  // Asks all ranks to end. They end at the first commit whose counts include the request.
  absl::Status Stop();
  // Makes a call that runs on another thread fail, and the round under way too. May be called from
  // any thread.
  void Abandon();
  // Tells the ranks that wait for this rank that a call on this rank has failed, and that its
  // process may therefore end.
  void Refused(const absl::Status& why) const;

  // Returns the run's state, for checkpoints and for the caller. Save and Load must be called
  // between Install and the next Add.
  ChannelState& state() { return state_; }

  ChannelInfo info() const;
  // Returns the losses that this rank knows of, in the order in which it learned of them.
  std::vector<ChannelLoss> losses() const;
  // Returns the cut of which this rank has a shard. A round may cut the shards anew, so with
  // on_loss finish or admit this must not be called while a round is under way.
  const Slab& slab() const { return round_.ranks().cut().slab(); }
  // Returns this rank's shard: slab().layer(0).valid elements of master_dtype.
  const void* master() const { return round_.ranks().cut().own().theta(); }

 private:
  GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options);
  ~GradientChannel() = default;
  static void Free(GradientChannel* channel);
  absl::Status Allocate();
  absl::Status JoinMembers(Communicator& own, int64_t wait_ns);
  absl::Status CheckRound() const;
  absl::Status CheckEnough() const;
  absl::Status StartSynchronous();
  absl::Status Land();
  absl::Status HandOver();

  int ranks_;                 // number of ranks at Create, or after this rank has joined
  int64_t joins_before_ = 0;  // number of newcomers up to that time
  const ChannelOptions options_;
  PlacedArray accumulator_;
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

  ChannelJobs jobs_;  // last member: the worker's jobs use the others
};

}  // namespace entrain
