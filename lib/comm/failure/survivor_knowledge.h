// The knowledge of a rank in an agreement on the remaining ranks (survivors.h): the base, and the
// last report of each rank. This rank's own report contains its knowledge of the other ranks. For a
// leader, the class computes whether all ranks follow the leader, which ranks reach each other,
// whether a set of ranks is a quorum, and the decision to propose.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lib/comm/failure/survivor_messages.h"

namespace entrain {

class SurvivorKnowledge {
 public:
  // At first the base contains all ranks.
  SurvivorKnowledge(int rank, int size);

  // Begins a new agreement of these ranks. Discards the previous agreement, except which ranks are
  // cut and gone, and this rank's last wish. Until the next call, this rank's reports contain that
  // wish.
  void Begin(RankSet base);

  // ---- What this rank knows
  const RankSet& base() const { return base_; }
  const RankSet& gone() const { return own().gone; }
  const RankSet& cut() const { return own().cut; }
  // Returns this rank's report.
  SurvivorReport& own() { return reports_[static_cast<size_t>(rank_)]; }
  const SurvivorReport& own() const { return of(rank_); }
  // Returns the last report of the rank about this agreement, or an empty report.
  const SurvivorReport& of(int rank) const { return reports_[static_cast<size_t>(rank)]; }
  void Take(int from, SurvivorReport report) {
    reports_[static_cast<size_t>(from)] = std::move(report);
  }
  // Add a rank to a set of this rank's report. Return true if the rank was not in the set before. A
  // gone rank is also cut.
  bool AddGone(int rank);
  bool AddCut(int rank) { return own().cut.Add(rank); }
  bool AddExcluded(int rank) { return own().exclude.Add(rank); }

  // ---- What follows
  // Returns the ranks of the base that this rank has not cut.
  RankSet reached() const { return base_.Without(cut()); }
  // Returns the rank that this rank follows.
  int leader() const { return reached().lowest(); }
  // Returns the reached ranks whose callers have not made the call.
  std::vector<int> not_called() const;
  // Returns true if three conditions hold: the caller of every reached rank has made the call,
  // every reached rank follows this rank, and this rank has cut all excluded ranks.
  bool AllFollow() const;
  bool IsQuorum(const RankSet& ranks) const;
  // Returns a large set of ranks of `among` that all reach each other. Repeatedly drops the rank
  // with the most broken paths, until no broken path is left. If several ranks have the most broken
  // paths, drops the highest of these ranks. Never drops `keep`.
  RankSet Connected(RankSet among, int keep) const;
  // Returns the decision that `members` go on, with their contexts and the AND of their flags. If
  // the reached ranks have made different calls, or a member has no context number left, the
  // decision is an error.
  SurvivorDecision DecisionFor(const RankSet& members) const;

 private:
  // Returns true if one of the two ranks has cut the other.
  bool Broken(int a, int b) const { return of(a).cut.Has(b) || of(b).cut.Has(a); }

  const int rank_, size_;
  RankSet base_;
  std::vector<SurvivorReport> reports_;  // by rank
};

}  // namespace entrain
