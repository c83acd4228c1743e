// How a weighted mean or a task-arithmetic reduction (gta) makes one value of the ranks' contributions:
// x_r = weight_r * contribution_r; without consensus their sum; with it the sum of those whose sign is the elected one;
// normalized: divided by the weights of what was summed.
#pragma once

#include <cstdint>
#include <vector>

namespace entrain {

// What elects the sign of an element. A tie elects plus, a sum that is NaN minus; zeros and NaN have no sign.
enum class Consensus : uint8_t {
  kNone = 0,
  kSum = 1,    // the sum of all x_r
  kCount = 2,  // one vote a rank
};

// Divisors nearer to 0 than this count as 1.
constexpr double kLeastDivisor = 1e-8;

// The same on all ranks.
struct Merging {
  std::vector<double>
      weights;  // by rank, finite; empty: 1 each. Who has 0 contributes nothing, whatever it has
  Consensus consensus = Consensus::kNone;
  bool normalize = true;
};

}  // namespace entrain
