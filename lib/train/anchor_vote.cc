#include "lib/train/anchor_vote.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

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

}  // namespace entrain
