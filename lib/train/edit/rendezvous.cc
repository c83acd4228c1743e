#include "lib/train/edit/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace entrain {

size_t NormTable::RowOf(int replica) const {
  return static_cast<size_t>(std::find(replicas.begin(), replicas.end(), replica) -
                             replicas.begin());
}

NormTable NormTable::Of(absl::Span<const int> kept) const {
  NormTable table;
  table.layers = layers;
  for (size_t row = 0; row < rows(); ++row) {
    if (std::find(kept.begin(), kept.end(), replicas[row]) == kept.end()) {
      continue;
    }
    table.replicas.push_back(replicas[row]);
    table.standings.push_back(standings[row]);
    for (size_t i = 0; i < layers.size(); ++i) {
      table.norms.push_back(norm(row, i));
    }
  }
  return table;
}

absl::Status CheckRounds(absl::Span<const Standing> all, absl::Span<const int> replicas) {
  for (size_t n = 1; n < all.size(); ++n) {
    if (all[n].round != all[0].round) {
      return absl::DataLossError(absl::StrCat("replica ", replicas[0], " is at its rendezvous ",
                                              all[0].round + 1, ", replica ", replicas[n],
                                              " at its rendezvous ", all[n].round + 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAnchors(absl::Span<const Standing> all, absl::Span<const int> replicas) {
  for (size_t n = 1; n < all.size(); ++n) {
    if (all[n].anchor_checksum != all[0].anchor_checksum) {
      return absl::DataLossError(absl::StrFormat(
          "anchors differ: checksum %016x on replica %d, %016x on replica %d",
          all[0].anchor_checksum, replicas[0], all[n].anchor_checksum, replicas[n]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScheduledSteps(absl::Span<const Standing> all, absl::Span<const int> replicas) {
  const bool scheduled = std::none_of(all.begin(), all.end(), [](const Standing& one) {
    return (one.flags & (kInsist | kLeaving)) != 0;
  });
  for (size_t n = 1; scheduled && n < all.size(); ++n) {
    if (all[n].steps != all[0].steps) {
      return absl::DataLossError(absl::StrCat(
          "interval_schedule: exchange ", all[0].round + 1, " is after ", all[0].steps,
          " steps on replica ", replicas[0], ", after ", all[n].steps, " steps on replica ",
          replicas[n], "; the function must return the same values on all replicas"));
    }
  }
  return absl::OkStatus();
}

bool Exchanges(absl::Span<const Standing> all, int64_t least) {
  uint64_t steps = 0;
  bool insists = false;
  for (const Standing& one : all) {
    steps += one.steps_since;
    insists = insists || (one.flags & kInsist) != 0;
  }
  return steps > 0 && (steps >= static_cast<uint64_t>(least) || insists || AllLeave(all));
}

bool AllLeave(absl::Span<const Standing> all) {
  return std::all_of(all.begin(), all.end(),
                     [](const Standing& one) { return (one.flags & kLeaving) != 0; });
}

double Grown(const Standing& one, int64_t warmup) {
  const uint64_t counted = (one.flags >> kNewShift) & kMostNew;
  return counted == 0 ? 1 : static_cast<double>(counted) / static_cast<double>(warmup + 1);
}

std::vector<double> Trained(absl::Span<const Standing> all, Amount amount) {
  const bool counted = std::all_of(all.begin(), all.end(), [](const Standing& one) {
    return (one.flags & kCounted) != 0 || one.steps_since == 0;
  });
  const bool any =
      std::any_of(all.begin(), all.end(), [](const Standing& one) { return one.tokens_since > 0; });
  std::vector<double> trained;
  for (const Standing& one : all) {
    const auto since = static_cast<double>(counted && any ? one.tokens_since : one.steps_since);
    const auto steps = static_cast<double>(std::max<uint64_t>(1, one.steps_since));
    trained.push_back(amount == Amount::kPublished   ? static_cast<double>(one.steps)
                      : amount == Amount::kTimesRate ? since * since / steps
                                                     : since);
  }
  return trained;
}

}  // namespace entrain
