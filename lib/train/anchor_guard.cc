#include "lib/train/anchor_guard.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"

#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {

AnchorGuard::AnchorGuard(const Slab& slab, const Anchors& anchors, AnchorCheck check)
    : slab_(slab),
      anchors_(anchors),
      check_(check),
      noted_(static_cast<size_t>(slab.layers()), 0),
      distrusted_(static_cast<size_t>(slab.layers()), 0) {}

// Hashes each block of the anchor while the block is in the cache. The squares of each block are
// summed by themselves, and the sums of the blocks in their order, so the bits of the norm do not
// depend on the number of threads.
double AnchorGuard::Measure(int layer, const float* theta) {
  const SlabLayer& l = slab_.layer(layer);
  const float* const anchor = anchors_.anchor(layer);
  if (anchor == nullptr) {
    return SharedKernels().sum_of_squares(theta, l.valid);
  }
  uint64_t& noted = noted_[static_cast<size_t>(layer)];
  const Kernels& kernels = BestKernels();
  const auto blocks = static_cast<size_t>((l.shard + kHashBlock - 1) / kHashBlock);
  std::vector<double> squares(blocks);
  std::vector<uint64_t> hashes(blocks);
  ForPieces(l.shard, kHashBlock, [&](int64_t first, int64_t length) {
    for (const int64_t end = first + length; first < end; first += kHashBlock) {
      const auto block = static_cast<size_t>(first / kHashBlock);
      const int64_t count = std::min(kHashBlock, end - first);
      const int64_t valid = std::clamp<int64_t>(l.valid - first, 0, count);  // the rest is padding
      squares[block] = kernels.square_of_delta(anchor + first, theta + first, valid);
      hashes[block] = compares() ? HashBlock(anchor + first, count) : 0;
    }
  });
  noted = compares() ? CombineHashes(hashes) : 0;
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

uint64_t AnchorGuard::Checksum(const std::vector<int>& layers) const {
  if (!compares() || !anchors_.exist()) {
    return anchors_.checksum();
  }
  std::vector<uint64_t> hashes;
  for (const int layer : layers) {
    hashes.push_back(noted_[static_cast<size_t>(layer)]);
  }
  return CombineHashes(hashes);
}

absl::Status AnchorGuard::CheckSeals(const std::vector<int>& layers) const {
  for (const int layer : layers) {
    const uint64_t now = noted_[static_cast<size_t>(layer)];
    if (anchors_.exist() && compares() && now != anchors_.seal(layer)) {
      return absl::DataLossError(
          absl::StrFormat("layer %d: the anchor has changed in memory since its last exchange: its "
                          "checksum was %016x and is %016x",
                          layer, anchors_.seal(layer), now));
    }
  }
  return absl::OkStatus();
}

std::vector<AnchorHash> AnchorGuard::Hashes(const std::vector<int>& layers) const {
  std::vector<AnchorHash> hashes;
  for (const int layer : layers) {
    hashes.push_back({noted_[static_cast<size_t>(layer)], anchors_.seal(layer)});
  }
  return hashes;
}

}  // namespace entrain
