#include "lib/train/anchor_guard.h"

#include <algorithm>

#include "absl/strings/str_format.h"

#include "lib/device/device.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

// A multiple of 8 (ArrayHash). Two arrays of this length fit the private cache of a core.
constexpr int64_t kPiece = 16384;

}  // namespace

AnchorGuard::AnchorGuard(const Slab& slab, const Anchors& anchors, AnchorCheck check)
    : slab_(slab),
      anchors_(anchors),
      check_(check),
      noted_(static_cast<size_t>(slab.layers()), 0),
      distrusted_(static_cast<size_t>(slab.layers()), 0) {}

// On the host, hashes each piece of the anchor while the piece is in the cache. On a device, the
// hash is a separate pass.
double AnchorGuard::Measure(int layer, const float* theta) {
  const SlabLayer& l = slab_.layer(layer);
  const float* const anchor = anchors_.anchor(layer);
  if (anchor == nullptr) {
    return CurrentKernels().sum_of_squares(theta, l.valid);
  }
  uint64_t& noted = noted_[static_cast<size_t>(layer)];
  if (KernelStream::Current() != nullptr) {
    noted = compares() ? anchors_.HashOf(layer) : 0;
    return CurrentKernels().square_of_delta(anchor, theta, l.valid);
  }
  ArrayHash hash;
  double square = 0;
  int64_t first = 0;
  do {
    const int64_t count = std::min(kPiece, l.valid - first);
    square += CurrentKernels().square_of_delta(anchor + first, theta + first, count);
    if (compares()) {
      hash.Add(anchor + first, first + count == l.valid ? l.shard - first : count);
    }
    first += count;
  } while (first < l.valid);
  noted = hash.Total();
  return square;
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
