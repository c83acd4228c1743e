// Decides when a round is closed, and who takes part (options quorum and round_deadline). A pure
// function: every rank has the same table and reaches the same decision.
//
//   arrival      a replica's caller comes to a rendezvous: it has when all ranks of the replica have
//   close        a round of the replicas that have arrived begins; the others are late for it
//   take up      a replica arrives that has been late for rounds: it takes up their results
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
  int quorum = 0;           // replicas that are enough; 0: any number
  int64_t deadline_ns = 0;  // after the first arrival; 0: at once
};

// The message of a rank to the others, in the format in which it is sent.
struct Attendance {
  int64_t arrivals = 0;     // so far, of its caller
  int64_t waited_ns = 0;    // since the last of them
  int64_t flags = 0;        // kLeaving and kInsist of the last of them
  int64_t has_anchors = 0;  // 1: the rank can take part without its caller
};

// The count of a replica's arrivals, which all ranks keep.
struct Attended {
  int64_t arrivals = 0;  // that have had a round, or have taken up
  int64_t missed = 0;    // rounds since then for which the replica was late
};

struct Closing {
  enum class Kind { kWait, kTakeUp, kClose };
  Kind kind = Kind::kWait;
  std::vector<bool> replicas;  // by row: those that take up, or that take part
  bool others_wait = false;    // some rank waits for another decision
};

// `all` and `places` are by rank, `replicas` by row: the replicas' numbers in ascending order are
// the rows. A replica that leaves takes part, but does not count for the quorum, and starts no
// deadline. If a replica insists, the round needs all replicas; a replica that has arrived and does
// not insist takes up, and goes on training. No round is closed before all ranks have anchors.
Closing CloseRound(const ClosingRule& rule, absl::Span<const Attendance> all,
                   absl::Span<const ReplicaPlace> places, absl::Span<const Attended> replicas);
// Counts the decision.
void Attend(const Closing& closing, std::vector<Attended>* replicas);

}  // namespace entrain
