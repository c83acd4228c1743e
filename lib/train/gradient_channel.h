// ACCO and its baselines: gradients go in, parameters come out a round later, while the caller accumulates the next ones.
// Optimizer state is sharded over the ranks (ZeRO-1). Behind entrain_acco_*; include/entrain/train.h has the contract of each
// function; ACCO is arXiv 2406.02613.
//
//   caller    add add add | install | add add | install |      acc: what was added; com: what travels
//   worker         round r          | round r + 1       |      counts, reduce-scatter, step, all-gather
//
// install waits for the round under way, takes its parameters, hands over what has been added and starts the next round.
// delay_rule.h has the table of methods: what a round takes and makes. The parts: DelayRule, MicrobatchQuota (what this rank adds to
// a round) and the rest of this class are the caller's; GradientRound, with ShardStep and ChannelProgress, is the worker's.
//
// On a device the worker enqueues a round on a stream of its own when it knows the counts, and
// install waits for that alone; what it takes and hands over is enqueued on the caller's stream,
// and the streams wait for each other:
//
//   caller's   ... install: params = com, com = acc |  ...gradients...  | params = com, com = acc |
//   own                                             | reduce-scatter, step, all-gather |
//
// All that follows from counts is the same on all ranks, since counts are summed with the gradients; so all end at the same commit.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/state_visitor.h"
#include "lib/comm/communicator.h"
#include "lib/train/callers_arrays.h"
#include "lib/train/channel_record.h"
#include "lib/train/checkpoint.h"
#include "lib/train/delay_rule.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/gradient_round.h"
#include "lib/train/microbatch_quota.h"
#include "lib/train/open_state.h"
#include "lib/train/placed_array.h"
#include "lib/train/slab.h"
#include "lib/train/worker_thread.h"

namespace entrain {

// As of the last install, and so the same on all ranks after as many of them, but for what is this rank's own.
struct ChannelInfo : RoundResult {
  int64_t dropped = 0;  // micro-batches of this rank that came too late for the last commit
  bool finished = false;
  // Since the beginning:
  uint64_t exposed_ns = 0;  // waited in install
  uint64_t round_ns = 0;    // spent by rounds
  uint64_t bytes_sent = 0;
  int64_t bytes_held = 0;  // memory of this rank's, beside params and the caller's arrays
};

class GradientChannel final : public StateOwner {
 public:
  // Collective; rank 0's parameters become everybody's. Letting go of it ends a round under way, on all ranks; on a device, it
  // waits for the one that was taken last. A step of the caller's that does not return is left to its thread, which frees the
  // object.
  static absl::StatusOr<std::shared_ptr<GradientChannel>> Create(Communicator& comm,
                                                                 const ChannelOptions& options);
  // The accumulator: options.count elements of grads_dtype.
  void* gradients() { return accumulator_.data(); }
  // Of rounds, for a step of the caller's own; null on the host.
  StreamHandle stream() const { return round_.own().at().stream; }
  // On a device: from now on calls are in the order of this stream, which waits for what is on the one before.
  absl::Status SetStream(StreamHandle stream);
  // So much has been added to it since the last call.
  absl::Status Add(int64_t microbatches, int64_t tokens);
  // Whether Install would not wait for other ranks, or nothing more can be added before it. Never blocks.
  absl::StatusOr<bool> Poll() const;
  absl::Status Install();
  // Blocks until Install would not wait; false: it would still when the time is up. Where Install waits for the round that it
  // starts, this starts it.
  absl::StatusOr<bool> Wait(Deadline until);
  // The same without blocking: calls `then` once when Install would not wait, with the round's status; see LayerSync::WhenLayerOver.
  absl::Status WhenReady(WorkerThread::Continuation then);
  // This rank wants to end: all do at the first commit that knows.
  absl::Status Stop();
  // Any thread: makes the call that another thread is inside of fail, and the round that is under way.
  void Abandon();
  // A call of this rank's failed, and it may end: for those who wait for it.
  void Refused(const absl::Status& why) const;

  absl::Status AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                        int64_t count);
  // Collective; between Install and the next Add.
  absl::Status Save(const CheckpointOptions& options);
  absl::Status Load(const CheckpointOptions& options);
  // The state in the caller's hands. Not collective; waits for the round under way.
  absl::StatusOr<std::unique_ptr<OpenState>> Open(CheckpointKind kind);

  // StateOwner
  int64_t moves() const override { return moves_; }
  absl::Status CheckSavable(CheckpointKind kind) const override;
  absl::Status TakeUp(OpenState& state, int64_t timeout_ns) override;

  ChannelInfo info() const;
  const Slab& slab() const { return slab_; }
  // This rank's shard: slab().layer(0).valid elements of master_dtype.
  const void* master() const { return round_.shard().theta(); }

 private:
  GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options, Slab slab);
  ~GradientChannel() = default;
  static void Free(GradientChannel* channel);
  absl::Status Allocate();
  absl::Status CheckRound() const;
  absl::Status CheckEnough() const;
  absl::Status CheckNotStarted() const;
  absl::Status StartSynchronous();
  absl::Status Land();
  absl::Status HandOver();
  void PostRound(RoundKind kind, const RoundCounts& mine);
  absl::Status Fail(const absl::Status& why);
  absl::Status FailAll(const absl::Status& why);
  // gradient_channel_state.cc:
  void VisitState(StateVisitor& visitor);
  absl::Status Prepare(AllRanks& all, CheckpointKind kind, absl::Status mine);
  absl::Status Restore(AllRanks& all, absl::string_view doing, absl::Status mine, StateList* state,
                       absl::FunctionRef<absl::Status()> fill);
  absl::Status GoOnFromMasters(const AllRanks& all);
  absl::Status End(const AllRanks& all, absl::Status status, absl::string_view doing);

  const std::shared_ptr<Communicator> comm_;
  const ChannelOptions options_;
  const Slab slab_;  // one layer
  PlacedArray accumulator_;
  GradientRound round_;  // the worker's while a round is under way, the caller's otherwise
  DelayRule rule_;
  MicrobatchQuota quota_;
  RoundCounts held_;        // in the accumulator
  int64_t moves_ = 0;       // calls by which the run has gone on
  bool started_ = false;    // a synchronous round, by Wait; Install takes it
  bool in_flight_ = false;  // a round is under way, or over and not taken
  bool stop_ = false, finished_ = false;
  int64_t dropped_ = 0;
  uint64_t exposed_ns_ = 0;
  uint64_t base_bytes_ = 0;  // sent while this was created
  uint64_t job_ = 0;
  RoundResult landed_;      // what the last install has taken
  uint64_t landed_ns_ = 0;  // round_ns_ then
  CallersArrays callers_;
  ChannelRecord record_;
  absl::Status status_;
  std::atomic<uint64_t> round_ns_{0};
  std::atomic<int64_t> over_{0};  // of the rounds handed over, those that are over

  WorkerThread worker_;  // last: its jobs use the rest
};

}  // namespace entrain
