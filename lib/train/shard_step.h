// The optimizer's steps on a shard: this rank's own shard, or a copy of the left neighbour's. A
// step turns sums of gradients into parameters, in place. The object keeps theta (the masters) and
// the state of Opt. Opt is an optimizer for each group of elements, or the caller's step function.
//
// A step works on the shard in pieces that stay in the cache. On a device everything is enqueued on
// the bound stream (ComputeAt, lib/device/arrays.h). SumOfSquares is enqueued too, and waits for
// its result.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/device/arrays.h"
#include "lib/optim/optimizer.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/slab.h"

namespace entrain {

// Gradients of a round, summed over all ranks.
struct GradientSum {
  std::byte* com = nullptr;  // all elements; the sums are in the shard; afterwards parameters
  int64_t microbatches = 0;  // N: micro-batches in the sum
  double clip = 1;           // factor of the mean
};

// The place of a step in the run.
struct StepTime {
  int64_t commit = 1;  // number of the commit that is made or previewed
  double lr = 0;
};

class ShardStep {
 public:
  // `options` have been checked; they and `layer` must outlive the object.
  ShardStep(const ChannelOptions& options, const SlabLayer& layer)
      : ShardStep(options, layer, layer.first) {}
  // `at` is the element of com at which the shard begins.
  ShardStep(const ChannelOptions& options, const SlabLayer& layer, int64_t at)
      : options_(options), layer_(layer), at_(at), groups_(AllGroups(options)) {}
  absl::Status Allocate();

  // Writes theta~ = Opt(theta, A / N_A) to com. theta and the state of Opt stay as they are.
  absl::Status Estimate(const GradientSum& a, const StepTime& t);
  // Makes theta = Opt(theta, (A + B) / (N_A + N_B)), and writes it to com.
  absl::Status Commit(const GradientSum& a_and_b, const StepTime& t);
  // Makes theta = Opt(theta, G / N_G). Then writes theta^ = Opt(theta, G / N_G), computed from the
  // new theta, to com. As in Estimate, this leaves no trace in theta and the state.
  absl::Status Predict(const GradientSum& g, const StepTime& t);

  // Returns the sum of squares of this rank's part of com, in wire_dtype.
  double SumOfSquares(const std::byte* com) const;
  // Sets theta to this rank's part of `params`, which holds all parameters in params_dtype. Sets
  // the state to zero.
  void Start(const std::byte* params);
  // Writes theta to this rank's part of com, in params_dtype.
  void WriteTheta(std::byte* com) const;

  const void* theta() const { return theta_.data(); }
  // Returns theta and the arrays of the state: `layer.shard` elements each, f32 except for an f64
  // theta.
  std::vector<float*> Arrays() const;
  int64_t bytes() const;
  void VisitState(StateVisitor& visitor);

 private:
  // Elements [first, first + count) of the shard, and their mean gradient.
  struct Piece {
    int64_t first, count;
    const std::byte* mean;
  };
  // The address of the parameters that a step has computed for a piece, in master_dtype.
  using Made = absl::StatusOr<const std::byte*>;

  absl::Status ForEachPiece(const GradientSum& sum, absl::FunctionRef<Made(const Piece&)> step);
  Made Preview(const Piece& piece, const StepTime& t);
  Made Keep(const Piece& piece, const StepTime& t);
  absl::Status Opt(Apply apply, const Piece& piece, const StepTime& t);
  absl::Status CallersStep(Apply apply, const Piece& piece, const StepTime& t);
  void GroupsStep(Apply apply, const Piece& piece, const StepTime& t);
  std::byte* Theta(int64_t first) const;
  std::byte* Previewed() const;
  std::byte* Own(std::byte* com, DType dtype) const { return com + at_ * SizeOf(dtype); }

  const ChannelOptions& options_;
  const SlabLayer& layer_;
  const int64_t at_;                          // first element of the shard in com
  const std::vector<ParameterGroup> groups_;  // cover all parameters
  PlacedArray theta_;
  std::vector<PlacedArray> state_;  // like the shard; zeros in groups that need fewer arrays
  int64_t piece_ = 0;               // elements of a piece
  PlacedArray room_;                // for a mean gradient, and for a preview
};

}  // namespace entrain
