#include "lib/train/edit/anchor_guard.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "lib/kernels/array_hash.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {

bool SameAnchor(absl::Span<const AnchorHash> hashes) {
  return std::all_of(hashes.begin(), hashes.end(),
                     [&](const AnchorHash& hash) { return hash.memory == hashes[0].memory; });
}

AnchorVote Vote(absl::Span<const AnchorHash> hashes) {
  AnchorVote vote;
  const auto most = std::find_if(hashes.begin(), hashes.end(), [&](const AnchorHash& candidate) {
    const auto votes = std::count_if(hashes.begin(), hashes.end(), [&](const AnchorHash& hash) {
      return hash.sealed == candidate.sealed;
    });
    return 2 * static_cast<size_t>(votes) > hashes.size();
  });
  if (most == hashes.end()) {
    return vote;
  }
  vote.right = most->sealed;
  for (size_t row = 0; row < hashes.size(); ++row) {
    if (hashes[row].memory != vote.right) {
      vote.wrong.push_back(static_cast<int>(row));
    } else if (vote.from < 0) {
      vote.from = static_cast<int>(row);
    }
  }
  return vote;
}

std::string DescribeAnchors(int layer, absl::Span<const AnchorHash> hashes,
                            absl::Span<const int> replicas) {
  std::string text = absl::StrCat("layer ", layer, ": checksum ");
  std::vector<uint64_t> named;
  for (const AnchorHash& hash : hashes) {
    if (std::find(named.begin(), named.end(), hash.memory) != named.end()) {
      continue;
    }
    std::vector<std::string> holders;
    for (size_t row = 0; row < hashes.size(); ++row) {
      if (hashes[row].memory == hash.memory) {
        const bool changed = hashes[row].memory != hashes[row].sealed;
        holders.push_back(absl::StrCat(
            replicas[row], changed ? " (changed in memory since its last exchange)" : ""));
      }
    }
    absl::StrAppendFormat(&text, "%s%016x on %s %s", named.empty() ? "" : ", ", hash.memory,
                          holders.size() > 1 ? "replicas" : "replica",
                          absl::StrJoin(holders, " and "));
    named.push_back(hash.memory);
  }
  return text;
}

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
