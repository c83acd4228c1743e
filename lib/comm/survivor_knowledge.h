// Holds what a rank knows in an agreement on the ranks that go on (survivors.h): the base, and the
// last report of each rank. This rank's own report holds its knowledge of the others. The class
// answers the questions of a leader: whether all ranks follow it, which ranks reach each other,
// whether they are a quorum, and what the leader proposes.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lib/comm/rank_set.h"
#include "lib/comm/survivor_messages.h"

namespace entrain {

class SurvivorKnowledge {
 public:
  // At first the base contains all ranks.
  SurvivorKnowledge(int rank, int size);

  // Begins the agreement of these ranks. Forgets everything about the agreement before, except
  // which ranks are cut and gone, and this rank's last call. Its reports repeat that call until the
  // next call.
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
  // Add a rank to a set of this rank's report. Return true if it was not in the set before. A rank
  // that is gone is also cut.
  bool AddGone(int rank);
  bool AddCut(int rank) { return own().cut.Add(rank); }
  bool AddExcluded(int rank) { return own().exclude.Add(rank); }

  // ---- What follows
  // Returns the ranks of the base that this rank has not cut.
  RankSet reached() const { return base_.Without(cut()); }
  // Returns the rank that this rank follows.
  int leader() const { return reached().lowest(); }
  // Returns the ranks that this rank reaches and whose caller has not made the call.
  std::vector<int> not_called() const;
  // Returns true if the caller of every reached rank has made the call, each of these ranks follows
  // this rank, and this rank has cut all ranks that are excluded.
  bool AllFollow() const;
  bool IsQuorum(const RankSet& ranks) const;
  // Returns a large set of ranks of `among` that all reach each other. Drops the rank with the most
  // broken edges, again and again until no edge is broken. If several ranks have the most, drops
  // the highest of these. Never drops `keep`.
  RankSet Connected(RankSet among, int keep) const;
  // Returns the decision that these ranks go on, with their contexts and the AND of their flags.
  // If the reached ranks have not made the same call, or a member has no context number left, the
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
