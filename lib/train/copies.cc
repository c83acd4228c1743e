#include "lib/train/copies.h"

#include <algorithm>
#include <cmath>

#include "absl/base/casts.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

// Returns the first rank that holds the same parameters as `rank`.
size_t FirstOf(const std::vector<int64_t>& holds, size_t rank) {
  return static_cast<size_t>(std::find(holds.begin(), holds.end(), holds[rank]) - holds.begin());
}

bool SameBits(double a, double b) {
  return absl::bit_cast<uint64_t>(a) == absl::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

absl::StatusOr<Copies> Copies::Find(const Mesh& mesh, Communicator& model) {
  const int64_t shard =
      mesh.coordinate(Axis::kPipeline) * mesh.length(Axis::kShard) + mesh.coordinate(Axis::kShard);
  const int64_t mine[] = {shard * mesh.length(Axis::kTensor) + mesh.coordinate(Axis::kTensor),
                          shard};
  std::vector<int64_t> all(2 * static_cast<size_t>(model.size()));
  ENTRAIN_RETURN_IF_ERROR(model.AllGather(mine, all.data(), 2, DType::kI64));
  Copies copies;
  for (size_t at = 0; at < all.size(); at += 2) {
    copies.holds_.push_back(all[at]);
    copies.holds_replicated_.push_back(all[at + 1]);
  }
  return copies;
}

absl::Status Copies::CheckSquares(const Slab& slab, absl::Span<const int> layers,
                                  absl::Span<const double> all) const {
  for (size_t rank = 0; rank < holds_.size(); ++rank) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const size_t first =
          FirstOf(slab.layer(layers[i]).replicated ? holds_replicated_ : holds_, rank);
      const double want = all[first * layers.size() + i], got = all[rank * layers.size() + i];
      if (!SameBits(want, got)) {
        return absl::DataLossError(absl::StrFormat(
            "layer %d: the copies of ranks %d and %d of the replica have drifted apart: the "
            "squares of their pseudo-gradients are %.17g and %.17g",
            layers[i], first, rank, want, got));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Copies::CheckAnchors(absl::Span<const uint64_t> all) const {
  for (size_t rank = 0; rank < holds_.size(); ++rank) {
    const size_t first = FirstOf(holds_, rank);
    if (all[first] != all[rank]) {
      return absl::DataLossError(
          absl::StrFormat("the anchors of ranks %d and %d of the replica, which hold copies, "
                          "differ: checksums %016x and %016x",
                          first, rank, all[first], all[rank]));
    }
  }
  return absl::OkStatus();
}

}  // namespace entrain
