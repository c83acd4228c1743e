// How a weighted mean or a task-arithmetic reduction (gta) makes one value of the ranks' contributions:
// x_r = weight_r * contribution_r; without consensus their sum; with it the sum of those whose sign is the elected one;
// normalized: divided by the weights of what was summed. And how contributions travel.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace entrain {

// What elects the sign of an element. A tie elects plus, a sum that is NaN minus; zeros and NaN have no sign.
enum class Consensus : int32_t {
  kNone = 0,
  kSum = 1,    // the sum of all x_r
  kCount = 2,  // one vote a rank
};

// What of a contribution travels; the rest counts as zero.
enum class Sparsification : int32_t {
  kNone = 0,  // everything
  kMagnitude =
      1,  // the floor(density * n) largest of the rank's whole vector of n, or of each chunk; of equal ones the first
  kRandom = 2,          // each with probability density
  kRescaledRandom = 3,  // the same, divided by density
};

// How contributions, and results for all ranks, are written on the wire.
enum class WireFormat : int32_t {
  kFull = 0,  // in the elements' type
  kBF16 = 1,
  kInt8 = 2,  // -127 .. 127 times an f32 scale a block
  kInt4 = 3,  // -7 .. 7 times an f32 scale a block
  kInt2 =
      4,  // -3, -1, 1 or 3 thirds of an f32 scale a block: no zero, so of sparsified contributions, whose results are bf16
};
enum class WireRounding : int32_t {
  kNearest = 0,
  kStochastic = 1,  // up or down with the probability that makes the mean right
};

// Divisors nearer to 0 than this count as 1.
constexpr double kLeastDivisor = 1e-8;

constexpr int64_t kWireBlock = 256;

// Whether a block of values has a scale.
constexpr bool IsScaled(WireFormat format) {
  return format == WireFormat::kInt8 || format == WireFormat::kInt4 || format == WireFormat::kInt2;
}

// The same on all ranks.
struct Merging {
  std::vector<double>
      weights;  // by rank, finite; empty: 1 each. Who has 0 contributes nothing, whatever it has
  Consensus consensus = Consensus::kNone;
  bool normalize = true;
  Sparsification sparsification = Sparsification::kNone;
  double density = 1;  // in (0, 1) with sparsification, 1 without
  // kMagnitude: elements of each chunk, of which at least one is kept; an owner's slice begins a chunk. 0: the whole vector.
  int32_t sparsify_chunk = 0;
  uint64_t seed = 0;  // of whatever is random
  WireFormat wire_format = WireFormat::kFull;
  int32_t wire_block = 0;  // where IsScaled: values a scale; 0: kWireBlock
  WireRounding wire_rounding = WireRounding::kNearest;
  bool error_feedback = false;  // what a call did not send is added to the next one's contribution
  double error_decay = 1;       // with it: what is owed is multiplied by this before

  // Whether contributions travel packed (lib/comm/packed_call.h).
  bool Packs() const {
    return sparsification != Sparsification::kNone || wire_format != WireFormat::kFull;
  }
  // Random sparsification: what draws of 32 bits must be below.
  uint64_t DrawsBelow() const { return static_cast<uint64_t>(density * 4294967296.0); }
  // kMagnitude: how many of n elements, of the whole vector or of a chunk.
  int64_t Kept(int64_t n) const {
    const auto kept = static_cast<int64_t>(density * static_cast<double>(n));
    return kept == 0 && sparsify_chunk > 0 && n > 0 ? 1 : kept;
  }
};

// INVALID_ARGUMENT naming a value that is out of range, or has no effect beside the others.
absl::Status CheckMerging(const Merging& merging);

}  // namespace entrain
