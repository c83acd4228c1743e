#include "lib/train/shard/slab.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace entrain {

absl::StatusOr<Slab> Slab::Make(absl::Span<const int64_t> layer_counts, int slots, int slot,
                                absl::Span<const uint8_t> frozen,
                                absl::Span<const uint8_t> replicated,
                                absl::Span<const std::vector<SlabSegment>> segments) {
  // Limits the sizes in bytes of the slab and of a padded layer, so that they do not overflow.
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
    const SlabSegment whole = {full, full};
    const absl::Status cut =
        slab.Cut(segments.empty() ? absl::MakeConstSpan(&whole, 1) : segments[l], &layer);
    if (!cut.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", l, ": ", cut.message()));
    }
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

absl::Status Slab::Cut(absl::Span<const SlabSegment> segments, SlabLayer* layer) const {
  int64_t first = 0;  // start of the segment in the layer
  for (const auto& [count, rows] : segments) {
    if (count < 0 || count > layer->full - first || rows < 0 || (count > 0 && rows == 0) ||
        (rows > 0 && count % rows != 0)) {
      return absl::InvalidArgumentError(absl::StrCat("a segment of ", count, " elements in ", rows,
                                                     " rows, after ", first, " of the layer's ",
                                                     layer->full));
    }
    const int64_t row = rows == 0 ? 0 : count / rows;
    const int64_t chunk = (rows + slots_ - 1) / slots_;
    const int64_t own = std::clamp<int64_t>(rows - chunk * slot_, 0, chunk);
    if (own * row > 0) {
      layer->pieces.push_back({layer->shard, first + chunk * slot_ * row, own * row});
      layer->valid = layer->shard + own * row;
    }
    layer->shard += chunk * row;
    first += count;
  }
  if (first != layer->full) {
    return absl::InvalidArgumentError(
        absl::StrCat("its segments have ", first, " elements, the layer ", layer->full));
  }
  layer->padded = layer->shard * slots_;
  layer->first = layer->shard * slot_;
  return absl::OkStatus();
}

int Slab::largest_layer() const {
  const auto largest =
      std::max_element(layers_.begin(), layers_.end(),
                       [](const SlabLayer& a, const SlabLayer& b) { return a.padded < b.padded; });
  return static_cast<int>(largest - layers_.begin());
}

}  // namespace entrain
