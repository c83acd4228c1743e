#include "lib/train/slab.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace entrain {

absl::StatusOr<Slab> Slab::Make(absl::Span<const int64_t> layer_counts, int slots, int slot,
                                absl::Span<const uint8_t> frozen,
                                absl::Span<const uint8_t> replicated) {
  // Keeps every size in bytes, of slab and padded layer, far from overflow.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 64;
  Slab slab;
  slab.slots_ = slots;
  slab.slot_ = slot;
  if (layer_counts.empty()) {
    return absl::InvalidArgumentError("layers: 0; a model has at least one");
  }
  for (size_t l = 0; l < layer_counts.size(); ++l) {
    const int64_t full = layer_counts[l];
    if (full < 0 || full > kMost - slab.count_ - slots) {
      return absl::InvalidArgumentError(absl::StrCat("layer_counts[", l, "]: ", full,
                                                     full < 0 ? " is negative" : " is too large"));
    }
    SlabLayer layer;
    layer.full = full;
    layer.shard = (full + slots - 1) / slots;
    layer.padded = layer.shard * slots;
    layer.first = layer.shard * slot;
    layer.valid = std::clamp<int64_t>(full - layer.first, 0, layer.shard);
    layer.offset = slab.count_;
    layer.frozen = !frozen.empty() && frozen[l] != 0;
    layer.replicated = !replicated.empty() && replicated[l] != 0;
    slab.count_ += layer.shard;
    slab.layers_.push_back(layer);
    if (layer.trains()) {
      slab.training_.push_back(static_cast<int>(l));
    }
  }
  if (slab.count_ == 0) {
    return absl::InvalidArgumentError("layer_counts: all are 0; a model has at least one element");
  }
  return slab;
}

int Slab::largest_layer() const {
  const auto largest =
      std::max_element(layers_.begin(), layers_.end(),
                       [](const SlabLayer& a, const SlabLayer& b) { return a.padded < b.padded; });
  return static_cast<int>(largest - layers_.begin());
}

}  // namespace entrain
