// Runs the rounds of a gradient channel, one after the other, on the channel's worker. A round sums
// gradients over all ranks, makes a step of its kind on this rank's shard (shard_step.h) and
// gathers the parameters, all in one buffer:
//
//   com   this rank's gradients --reduce-scatter--> sums of a shard --step--> parameters of a shard --all-gather--> parameters
//
// On a device a round is enqueued on a stream of its own. Run waits only for the counts of
// micro-batches.
//
// Thread safety: one thread at a time: the worker's between Take and Publish, otherwise the
// caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/device/arrays.h"
#include "lib/train/channel_progress.h"
#include "lib/train/delay_rule.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/own_stream.h"
#include "lib/train/shard_step.h"
#include "lib/train/slab.h"

namespace entrain {

// The results of a round. They are the same on all ranks.
struct RoundResult {
  int64_t rounds = 0, commits = 0, gradients = 0, tokens = 0;  // totals; the last two committed
  bool committed = false;
  int64_t microbatches = 0;  // of all ranks, in this round
  double lr = 0;
  double grad_norm =
      std::numeric_limits<double>::quiet_NaN();  // of the mean; NaN: without clip_norm
  double clip_factor = 1;
};

class GradientRound {
 public:
  // Tags of a round's collectives that may be under way together.
  static constexpr int64_t kCountsTag = 0, kDataTag = 1;

  // `options` have been checked; they and `slab` must outlive the object.
  GradientRound(std::shared_ptr<Communicator> comm, const ChannelOptions& options,
                const Slab& slab);
  ~GradientRound();  // waits for enqueued work, which uses the arrays

  // Allocates all memory, and gives rank 0's parameters to all ranks. Collective.
  absl::Status Allocate();
  // Copies gradients to com on the caller's stream, and clears the accumulator if they are spent.
  absl::Status Take(const PlacedArray& accumulator, bool spent);
  // Runs a round on the gradients in com, with the counts of this rank.
  absl::Status Run(RoundKind kind, const RoundCounts& mine);
  // Waits for the work that Run has enqueued.
  absl::Status Settle();
  // Copies com to the caller's parameters, in the order of the caller's stream.
  absl::Status Publish();
  // Makes the masters of all ranks the parameters, here and in the caller's memory. Collective.
  absl::Status PublishMasters();

  // Returns the results of the last round that is finished or enqueued.
  const RoundResult& result() const { return result_; }
  // Returns true if that round ends the run.
  bool EndsRun() const { return result_.committed && progress_.Done(); }
  void Restore(const RoundResult& result) { result_ = result; }
  const ChannelProgress& progress() const { return progress_; }
  ChannelProgress& progress() { return progress_; }
  const ShardStep& shard() const { return shard_; }
  ShardStep& shard() { return shard_; }
  OwnStream& own() const { return *own_; }
  bool on_device() const { return options_.at.device != nullptr; }
  std::byte* com() const { return com_.data(); }
  int64_t bytes() const { return com_.size() + shard_.bytes(); }

 private:
  struct Carried {
    const char* what;
    RefPtr<Work> work;
  };

  absl::Status WarmUp();
  absl::Status Make(RoundKind kind, const RoundCounts& mine);
  absl::Status ShareCounts(RoundCounts mine, RoundCounts* all);
  absl::Status SetRate(RoundResult* now) const;
  absl::Status Clip(int64_t microbatches, RoundResult* now);
  absl::StatusOr<double> Norm(int64_t microbatches);
  absl::Status Step(RoundKind kind, const GradientSum& sum, double lr);
  absl::Status Carry(const char* what, Call call);
  Call GradientsCall() const;
  Call ParametersCall() const;
  CallOptions Options(bool on_stream = true) const;
  void Doing(const char* what) const;

  const std::shared_ptr<Communicator> comm_;
  const ChannelOptions& options_;
  const SlabLayer& layer_;  // the only layer
  std::unique_ptr<OwnStream> own_;
  PlacedArray com_;
  ShardStep shard_;
  ChannelProgress progress_;
  RoundResult result_;
  std::vector<Carried> carried_;  // calls under way
};

}  // namespace entrain
