// Merging: how a weighted mean or a task-arithmetic reduction (gta) combines the contributions of
// the ranks, and in which format contributions are sent.
//
// Let x_r = weight_r * contribution_r. Without consensus, the result is the sum of all x_r. With
// consensus, a sign is elected for each element, and the result is the sum of the x_r that have
// this sign. If `normalize` is set, the sum is divided by the sum of the weights of its terms.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace entrain {

// The vote that elects the sign of an element. A tie elects plus. A sum that is NaN elects minus.
// Zeros and NaN have no sign.
enum class Consensus : int32_t {
  kNone = 0,
  kSum = 1,    // the sign of the sum of all x_r
  kCount = 2,  // the sign that more ranks have
};

// Selects the elements of a contribution that are sent. The other elements count as zero.
enum class Sparsification : int32_t {
  kNone = 0,  // everything
  // The floor(density * n) elements of largest magnitude. n is the length of the rank's whole
  // vector, or the length of a chunk. Of elements of equal magnitude, those with lower index are
  // kept.
  kMagnitude = 1,
  kRandom = 2,          // each element is sent with probability `density`
  kRescaledRandom = 3,  // like kRandom; a sent element is divided by `density`
};

// The format in which contributions are sent, and results that go to all ranks.
enum class WireFormat : int32_t {
  kFull = 0,  // the type of the elements
  kBF16 = 1,
  kInt8 = 2,  // -127 .. 127 times an f32 scale per block
  kInt4 = 3,  // -7 .. 7 times an f32 scale per block
  // -3, -1, 1 or 3 times a third of an f32 scale per block. The format cannot represent zero, so it
  // requires a sparsification. Results are sent as bf16.
  kInt2 = 4,
};
enum class WireRounding : int32_t {
  kNearest = 0,
  kStochastic = 1,  // up or down at random, so that the expected value is exact
};

// A divisor whose magnitude is below this counts as 1.
constexpr double kLeastDivisor = 1e-8;

constexpr int64_t kWireBlock = 256;

// Returns true if the format has a scale for each block of values.
constexpr bool IsScaled(WireFormat format) {
  return format == WireFormat::kInt8 || format == WireFormat::kInt4 || format == WireFormat::kInt2;
}

// All members must be equal on all ranks.
struct Merging {
  // The weight of each rank; all are finite. Empty: every rank has weight 1. A rank with weight 0
  // contributes nothing, even if its data contains NaN or infinity.
  std::vector<double> weights;
  Consensus consensus = Consensus::kNone;
  bool normalize = true;
  Sparsification sparsification = Sparsification::kNone;
  double density = 1;  // in (0, 1) with a sparsification, else 1
  // kMagnitude: the number of elements in a chunk; 0: the whole vector is one chunk. At least one
  // element of each chunk is kept. A new chunk also begins at the first element of each rank's
  // slice.
  int32_t sparsify_chunk = 0;
  uint64_t seed = 0;  // for all random choices
  WireFormat wire_format = WireFormat::kFull;
  int32_t wire_block = 0;  // IsScaled formats: the number of values per scale; 0: kWireBlock
  WireRounding wire_rounding = WireRounding::kNearest;
  // Each call keeps the part of the contribution that it did not send. The next call adds this part
  // to its contribution.
  bool error_feedback = false;
  double error_decay = 1;  // with error_feedback: factor of the part that is added

  // Returns true if contributions are sparsified or sent in another type (lib/comm/packed_call.h).
  bool Packs() const {
    return sparsification != Sparsification::kNone || wire_format != WireFormat::kFull;
  }
  // Random sparsification: an element is kept if its random 32-bit number is below the returned
  // value.
  uint64_t DrawsBelow() const { return static_cast<uint64_t>(density * 4294967296.0); }
  // kMagnitude: returns how many of `n` elements are kept. `n` is the length of the whole vector,
  // or of one chunk.
  int64_t Kept(int64_t n) const {
    const auto kept = static_cast<int64_t>(density * static_cast<double>(n));
    return kept == 0 && sparsify_chunk > 0 && n > 0 ? 1 : kept;
  }
};

// Returns INVALID_ARGUMENT if a value is out of range, or if a value has no effect in combination
// with the others. The error text contains the value.
absl::Status CheckMerging(const Merging& merging);

}  // namespace entrain
