// Decides when a round is closed, and which replicas take part (options quorum and round_deadline).
// CloseRound is a pure function: every rank has the same table and makes the same decision.
//
//   arrival      a replica has arrived when every rank's caller has come to a rendezvous
//   close        the round begins with the replicas that have arrived; the other replicas are late
//   take up      a late replica arrives, and takes over the results of the rounds it has missed
//   in           the replica takes part in the round
//
//                round 1          round 2
//   replica 0    arrives, in      arrives, in
//   replica 1    arrives, in          arrives, in
//   replica 2         late   arrives, takes up  arrives, in
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "lib/train/elastic/replica_world.h"

namespace entrain {

struct ClosingRule {
  int quorum = 0;           // number of replicas that are enough; 0: any number
  int64_t deadline_ns = 0;  // time after the first arrival; 0: at once
  // Number of fragments that are exchanged behind further steps (background_rounds.h), each in
  // rounds of its own; 0: none. With fragments, the rounds to which callers come need all replicas.
  int fragments = 0;
};

// The message of a rank to all ranks in a tick. Ranks send this struct as it is in memory.
struct Attendance {
  int64_t arrivals = 0;     // number of arrivals of the rank's caller so far
  int64_t waited_ns = 0;    // time since the last arrival; 0: the arrival has been answered
  int64_t flags = 0;        // kLeaving and kInsist of the last arrival
  int64_t has_anchors = 0;  // 1: the rank can take part without its caller
};

// The part of a rank's message about one fragment. Ranks send this struct as it is in memory.
struct FragmentWait {
  int64_t waited_ns = 0;  // time since the fragment was offered for an exchange, > 0; 0: it is not
  // Time for which the result is not needed yet. At this time the rank's caller would merge it.
  int64_t slack_ns = 0;
};

// The record of a replica's arrivals. All ranks keep the same records.
struct Attended {
  int64_t arrivals = 0;  // number of arrivals that a round or a take-up has answered
  int64_t missed = 0;    // rounds for which the replica was late after the last of these arrivals
};

struct Closing {
  enum class Kind { kWait, kTakeUp, kClose };
  Kind kind = Kind::kWait;
  std::vector<bool> replicas;  // by row: true if the replica takes up or takes part
  int fragment = -1;  // the fragment that the round exchanges; -1: callers wait for the round
  bool others_wait = false;  // true: some rank waits for another decision
};

// `all` and `places` are indexed by rank. `replicas` is indexed by row; the rows are the replicas
// in ascending order of their numbers.
//
// A replica that leaves (kLeaving) takes part, but does not count for the quorum, and its arrival
// starts no deadline. If a replica insists (kInsist), the round needs all replicas. A replica that
// has arrived with neither flag then takes up, and continues to train. A round is closed without
// some replicas only if all ranks have anchors.
Closing CloseRound(const ClosingRule& rule, absl::Span<const Attendance> all,
                   absl::Span<const ReplicaPlace> places, absl::Span<const Attended> replicas);
// Decides about the rounds of fragments (ClosingRule::fragments). `waits` has the entries of each
// rank, one after the other. A round of a fragment is closed when all replicas that train offer the
// fragment. It is also closed when enough of them do, and either the deadline has passed, or the
// result is needed: one of them has no slack left. So stragglers are waited for only as long as
// this costs nobody anything (the adaptive grace window of Decoupled DiLoCo, arXiv 2604.21428). Of
// several fragments, the one comes first that has waited longest. A lost replica does not count; if
// fewer replicas train than the quorum, all of them are enough.
Closing CloseFragment(const ClosingRule& rule, absl::Span<const Attendance> all,
                      absl::Span<const FragmentWait> waits, absl::Span<const ReplicaPlace> places,
                      absl::Span<const Attended> replicas);
// Records the decision in `replicas`. Rounds of fragments are not recorded.
void Attend(const Closing& closing, std::vector<Attended>* replicas);

}  // namespace entrain
