#include "lib/train/edit/round_closing.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lib/train/edit/rendezvous.h"

namespace entrain {
namespace {

// Returns the row of a replica. `numbers` has the numbers of all replicas, ascending.
size_t RowOf(const std::vector<int>& numbers, int replica) {
  return static_cast<size_t>(std::lower_bound(numbers.begin(), numbers.end(), replica) -
                             numbers.begin());
}

// Combines the messages of a replica's ranks. A replica has arrived when all of its ranks have
// arrived.
std::vector<Attendance> ByReplica(absl::Span<const Attendance> all,
                                  absl::Span<const ReplicaPlace> places) {
  const std::vector<int> numbers = ReplicasOf(places);
  std::vector<Attendance> replicas(numbers.size(), {INT64_MAX, INT64_MAX, 0, 1});
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Attendance& replica = replicas[RowOf(numbers, places[rank].replica)];
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
    if (all[rank].arrivals > replicas[RowOf(numbers, places[rank].replica)].arrivals) {
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
  return all || (rule.fragments == 0 && anchors && !insists && active >= std::max(1, rule.quorum) &&
                 longest >= rule.deadline_ns);
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

Closing CloseFragment(const ClosingRule& rule, absl::Span<const Attendance> all,
                      absl::Span<const FragmentWait> waits, absl::Span<const ReplicaPlace> places,
                      absl::Span<const Attended> replicas) {
  const std::vector<Attendance> told = ByReplica(all, places);
  const auto fragments = static_cast<size_t>(rule.fragments);
  const std::vector<int> numbers = ReplicasOf(places);
  const auto leaves = [&](size_t row) {
    return told[row].arrivals > replicas[row].arrivals &&
           (told[row].flags & static_cast<int64_t>(kLeaving)) != 0;
  };
  int training = 0;
  bool anchors = true;
  for (size_t row = 0; row < told.size(); ++row) {
    training += leaves(row) ? 0 : 1;
    anchors = anchors && told[row].has_anchors != 0;
  }
  const int enough = std::min(std::max(1, rule.quorum), training);
  Closing closing;
  int64_t longest_of_all = 0;
  for (size_t fragment = 0; anchors && fragment < fragments; ++fragment) {
    std::vector<FragmentWait> offers(told.size(), {INT64_MAX, INT64_MAX});
    for (size_t rank = 0; rank < all.size(); ++rank) {
      FragmentWait& offer = offers[RowOf(numbers, places[rank].replica)];
      const FragmentWait& mine = waits[rank * fragments + fragment];
      offer.waited_ns = std::min(offer.waited_ns, mine.waited_ns);
      offer.slack_ns = std::min(offer.slack_ns, mine.slack_ns);
    }
    int present = 0;
    int64_t longest = 0, slack = INT64_MAX;
    std::vector<bool> takes_part;
    for (const FragmentWait& offer : offers) {
      takes_part.push_back(offer.waited_ns > 0);
      if (offer.waited_ns > 0) {
        ++present;
        longest = std::max(longest, offer.waited_ns);
        slack = std::min(slack, offer.slack_ns);
      }
    }
    const bool over = longest >= rule.deadline_ns || slack <= 0;
    if (longest > longest_of_all && (present >= training || (present >= enough && over))) {
      longest_of_all = longest;
      closing = {.kind = Closing::Kind::kClose,
                 .replicas = std::move(takes_part),
                 .fragment = static_cast<int>(fragment)};
    }
  }
  closing.others_wait = OthersWait(all, places, {replicas.begin(), replicas.end()});
  for (size_t i = 0; i < waits.size(); ++i) {
    const bool answered = closing.fragment == static_cast<int>(i % fragments) &&
                          closing.replicas[RowOf(numbers, places[i / fragments].replica)];
    closing.others_wait = closing.others_wait || (waits[i].waited_ns > 0 && !answered);
  }
  return closing;
}

void Attend(const Closing& closing, std::vector<Attended>* replicas) {
  if (closing.fragment >= 0) {
    return;
  }
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
