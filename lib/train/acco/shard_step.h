// Makes optimizer steps on a shard: this rank's own shard, or the copy of the left neighbour's
// shard. A step reads sums of gradients from a buffer and overwrites them with parameters. The
// object owns theta (the master parameters) and the state of the optimizer. Below, Opt is the
// optimizer of each group of elements, or the caller's step function.
//
// A step processes the shard in pieces that stay in the cache.
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
#include "lib/memory/buffer.h"
#include "lib/optim/optimizer.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// Gradients of a round, summed over all ranks.
struct GradientSum {
  std::byte* com = nullptr;  // array of all elements; its shard holds sums, then parameters
  int64_t microbatches = 0;  // N: micro-batches in the sum
  double clip = 1;           // factor of the mean
};

// Says which commit a step belongs to, and its learning rate.
struct StepTime {
  int64_t commit = 1;  // number of the commit that is made or previewed
  double lr = 0;
};

class ShardStep {
 public:
  // `options` have been checked. `options` and `layer` must outlive the object.
  ShardStep(const ChannelOptions& options, const SlabLayer& layer)
      : ShardStep(options, layer, layer.first) {}
  // `at` is the index in com of the first element of the shard.
  ShardStep(const ChannelOptions& options, const SlabLayer& layer, int64_t at)
      : options_(options), layer_(layer), at_(at), groups_(AllGroups(options)) {}
  absl::Status Allocate();

  // Writes theta~ = Opt(theta, A / N_A) to com. Changes neither theta nor the state of Opt.
  absl::Status Estimate(const GradientSum& a, const StepTime& t);
  // Sets theta to Opt(theta, (A + B) / (N_A + N_B)), and writes theta to com.
  absl::Status Commit(const GradientSum& a_and_b, const StepTime& t);
  // Sets theta to Opt(theta, G / N_G). Then computes theta^ = Opt(theta, G / N_G) from the new
  // theta, and writes theta^ to com. The computation of theta^ changes neither theta nor the state
  // of Opt.
  absl::Status Predict(const GradientSum& g, const StepTime& t);

  // Returns the sum of squares of this rank's part of com, in wire_dtype.
  double SumOfSquares(const std::byte* com) const;
  // Sets theta to this rank's part of `params`, and the state of Opt to zero. `params` holds all
  // parameters in params_dtype.
  void Start(const std::byte* params);
  // Writes theta to this rank's part of com, in params_dtype.
  void WriteTheta(std::byte* com) const;

  const void* theta() const { return theta_.data(); }
  // Returns theta and the arrays of Opt's state. Each has `layer.shard` elements of type f32. If
  // params_dtype is f64, theta is f64.
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
  const int64_t at_;                          // index in com of the shard's first element
  const std::vector<ParameterGroup> groups_;  // all parameters are in one of them
  OwnedBuffer theta_;
  std::vector<OwnedBuffer> state_;  // as long as the shard; a group may not use all arrays
  int64_t piece_ = 0;               // number of elements of a piece
  OwnedBuffer room_;                // room for a piece's mean gradient and its preview
};

}  // namespace entrain
