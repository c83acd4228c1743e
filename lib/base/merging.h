// Merging: how a weighted mean or a task-arithmetic reduction (gta) combines the ranks'
// contributions, and in which format contributions are sent. Let x_r = weight_r * contribution_r.
// Without consensus the result is the sum of all x_r. With consensus it is the sum of those x_r
// that have the elected sign. If `normalize` is set, the sum is divided by the sum of the weights
// of its terms.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace entrain {

// The vote that elects the sign of an element. A tie elects plus, and a sum that is NaN elects
// minus. Zeros and NaN have no sign.
enum class Consensus : int32_t {
  kNone = 0,
  kSum = 1,    // the sum of all x_r
  kCount = 2,  // one vote per rank
};

// The elements of a contribution that are sent. The other elements count as zero.
enum class Sparsification : int32_t {
  kNone = 0,  // everything
  // the floor(density * n) largest elements, where n is the length of the rank's whole vector, or
  // of a chunk. Of equal elements the first count as larger.
  kMagnitude = 1,
  kRandom = 2,          // each element is sent with probability `density`
  kRescaledRandom = 3,  // like kRandom, and divided by `density`
};

// The wire format of contributions, and of results that go to all ranks.
enum class WireFormat : int32_t {
  kFull = 0,  // in the type of the elements
  kBF16 = 1,
  kInt8 = 2,  // -127 .. 127 times an f32 scale per block
  kInt4 = 3,  // -7 .. 7 times an f32 scale per block
  // -3, -1, 1 or 3 thirds of an f32 scale per block. The format has no zero, so only sparsified
  // contributions may use it. Results are sent as bf16.
  kInt2 = 4,
};
enum class WireRounding : int32_t {
  kNearest = 0,
  kStochastic = 1,  // up or down, with the probabilities that make the mean exact
};

// A divisor nearer to 0 than this counts as 1.
constexpr double kLeastDivisor = 1e-8;

constexpr int64_t kWireBlock = 256;

// Returns true if each block of values has a scale.
constexpr bool IsScaled(WireFormat format) {
  return format == WireFormat::kInt8 || format == WireFormat::kInt4 || format == WireFormat::kInt2;
}

// All members must be equal on all ranks.
struct Merging {
  // By rank, finite; empty: every rank has weight 1. A rank with weight 0 contributes nothing,
  // whatever its data.
  std::vector<double> weights;
  Consensus consensus = Consensus::kNone;
  bool normalize = true;
  Sparsification sparsification = Sparsification::kNone;
  double density = 1;  // in (0, 1) with sparsification, 1 without
  // kMagnitude: the length of a chunk. Each chunk keeps at least one element. A new chunk also
  // begins where the slice of the next rank begins. 0: the whole vector is one chunk.
  int32_t sparsify_chunk = 0;
  uint64_t seed = 0;  // seed of all random choices
  WireFormat wire_format = WireFormat::kFull;
  int32_t wire_block = 0;  // if IsScaled: values per scale; 0: kWireBlock
  WireRounding wire_rounding = WireRounding::kNearest;
  // The part of a contribution that a call did not send is added to the contribution of the next
  // call.
  bool error_feedback = false;
  double error_decay = 1;  // error_feedback: factor of the part that is added

  // Returns true if contributions are sent packed (lib/comm/packed_call.h).
  bool Packs() const {
    return sparsification != Sparsification::kNone || wire_format != WireFormat::kFull;
  }
  // Random sparsification: returns a bound. An element is kept if its random 32-bit number is below
  // the bound.
  uint64_t DrawsBelow() const { return static_cast<uint64_t>(density * 4294967296.0); }
  // kMagnitude: returns how many of n elements are kept. n is the length of the whole vector, or of
  // one chunk.
  int64_t Kept(int64_t n) const {
    const auto kept = static_cast<int64_t>(density * static_cast<double>(n));
    return kept == 0 && sparsify_chunk > 0 && n > 0 ? 1 : kept;
  }
};

// Checks the values. INVALID_ARGUMENT names a value that is out of range, or that has no effect
// with the other values.
absl::Status CheckMerging(const Merging& merging);

}  // namespace entrain
