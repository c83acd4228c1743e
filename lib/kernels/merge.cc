#include "lib/kernels/merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/container/inlined_vector.h"

namespace entrain {

bool AnyCounts(const Merging& merging, size_t ranks) {
  const auto end = merging.weights.begin() +
                   static_cast<std::ptrdiff_t>(std::min(ranks, merging.weights.size()));
  return merging.weights.empty() ||
         std::any_of(merging.weights.begin(), end, [](double weight) { return weight != 0; });
}

void Merge(const Kernels& kernels, const Merging& merging, DType dtype, void* dst,
           absl::Span<const void* const> sources, int64_t count) {
  absl::InlinedVector<const void*, 16> used;
  absl::InlinedVector<double, 16> weights;
  double divisor = 0;
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    const double weight = merging.weights.empty() ? 1 : merging.weights[rank];
    if (weight != 0) {
      used.push_back(sources[rank]);
      weights.push_back(weight);
      divisor += weight;
    }
  }
  if (used.empty()) {
    std::memset(dst, 0, static_cast<size_t>(count * SizeOf(dtype)));
    return;
  }
  const int n = static_cast<int>(used.size());
  if (merging.consensus != Consensus::kNone) {
    kernels.combine_agreeing(merging.consensus, merging.normalize, dtype, dst, used.data(),
                             weights.data(), n, count);
    return;
  }
  if (merging.normalize && std::abs(divisor) >= kLeastDivisor) {
    for (double& weight : weights) {
      weight /= divisor;
    }
  }
  kernels.combine_weighted(dtype, dst, used.data(), weights.data(), n, count);
}

}  // namespace entrain
