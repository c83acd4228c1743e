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

#include "lib/train/replica_world.h"

namespace entrain {

struct ClosingRule {
  int quorum = 0;           // number of replicas that are enough; 0: any number
  int64_t deadline_ns = 0;  // time after the first arrival; 0: at once
};

// The message of a rank to all ranks in a tick. Ranks send this struct as it is in memory.
struct Attendance {
  int64_t arrivals = 0;     // number of arrivals of the rank's caller so far
  int64_t waited_ns = 0;    // time since the last arrival; 0: the arrival has been answered
  int64_t flags = 0;        // kLeaving and kInsist of the last arrival
  int64_t has_anchors = 0;  // 1: the rank can take part without its caller
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
  bool others_wait = false;    // true: some rank waits for another decision
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
// Records the decision in `replicas`.
void Attend(const Closing& closing, std::vector<Attended>* replicas);

}  // namespace entrain
