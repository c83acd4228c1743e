#include "lib/train/round_closing.h"

#include <algorithm>
#include <cstddef>

#include "lib/train/rendezvous.h"

namespace entrain {
namespace {

// Combines the messages of a replica's ranks. A replica has arrived when all of its ranks have
// arrived.
std::vector<Attendance> ByReplica(absl::Span<const Attendance> all,
                                  absl::Span<const ReplicaPlace> places) {
  const std::vector<int> numbers = ReplicasOf(places);
  std::vector<Attendance> replicas(numbers.size(), {INT64_MAX, INT64_MAX, 0, 1});
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto row =
        std::lower_bound(numbers.begin(), numbers.end(), places[rank].replica) - numbers.begin();
    Attendance& replica = replicas[static_cast<size_t>(row)];
    replica.arrivals = std::min(replica.arrivals, all[rank].arrivals);
    replica.waited_ns = std::min(replica.waited_ns, all[rank].waited_ns);
    replica.flags |= all[rank].flags;
    replica.has_anchors = std::min(replica.has_anchors, all[rank].has_anchors);
  }
  return replicas;
}

bool OthersWait(absl::Span<const Attendance> all, absl::Span<const ReplicaPlace> places,
                const std::vector<Attended>& replicas) {
  const std::vector<int> numbers = ReplicasOf(places);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto row =
        std::lower_bound(numbers.begin(), numbers.end(), places[rank].replica) - numbers.begin();
    if (all[rank].arrivals > replicas[static_cast<size_t>(row)].arrivals) {
      return true;
    }
  }
  return false;
}

// Returns true if enough replicas have arrived.
bool Suffice(const ClosingRule& rule, absl::Span<const Attendance> replicas,
             const std::vector<bool>& present) {
  int active = 0;
  int64_t longest = 0;
  bool insists = false, all = true, anchors = true;
  for (size_t row = 0; row < replicas.size(); ++row) {
    all = all && present[row];
    anchors = anchors && replicas[row].has_anchors != 0;
    if (!present[row]) {
      continue;
    }
    insists = insists || (replicas[row].flags & static_cast<int64_t>(kInsist)) != 0;
    if ((replicas[row].flags & static_cast<int64_t>(kLeaving)) == 0) {
      ++active;
      longest = std::max(longest, replicas[row].waited_ns);
    }
  }
  return all ||
         (anchors && !insists && active >= std::max(1, rule.quorum) && longest >= rule.deadline_ns);
}

}  // namespace

Closing CloseRound(const ClosingRule& rule, absl::Span<const Attendance> all,
                   absl::Span<const ReplicaPlace> places, absl::Span<const Attended> replicas) {
  const std::vector<Attendance> told = ByReplica(all, places);
  const auto waits = [&](size_t row) { return told[row].arrivals > replicas[row].arrivals; };
  const auto has = [&](size_t row, uint64_t flag) {
    return (told[row].flags & static_cast<int64_t>(flag)) != 0;
  };
  bool insists = false;
  for (size_t row = 0; row < told.size(); ++row) {
    insists = insists || (waits(row) && has(row, kInsist));
  }
  std::vector<bool> present, late;
  for (size_t row = 0; row < told.size(); ++row) {
    // A replica that has not insisted yet must not take part. Otherwise the replica would insist
    // after this round, when the others do not insist any more, and would wait alone.
    const bool too_early = insists && !has(row, kInsist) && !has(row, kLeaving);
    late.push_back(waits(row) && (replicas[row].missed > 0 || too_early));
    present.push_back(waits(row) && !late.back());
  }
  Closing closing;
  if (std::find(late.begin(), late.end(), true) != late.end()) {
    closing = {.kind = Closing::Kind::kTakeUp, .replicas = late};
  } else if (Suffice(rule, told, present)) {
    closing = {.kind = Closing::Kind::kClose, .replicas = present};
  }
  std::vector<Attended> after(replicas.begin(), replicas.end());
  Attend(closing, &after);
  closing.others_wait = OthersWait(all, places, after);
  return closing;
}

void Attend(const Closing& closing, std::vector<Attended>* replicas) {
  for (size_t row = 0; row < closing.replicas.size(); ++row) {
    Attended& replica = (*replicas)[row];
    if (closing.replicas[row]) {
      ++replica.arrivals;
      replica.missed = 0;
    } else if (closing.kind == Closing::Kind::kClose) {
      ++replica.missed;
    }
  }
}

}  // namespace entrain
