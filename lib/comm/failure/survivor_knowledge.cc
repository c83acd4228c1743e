#include "lib/comm/failure/survivor_knowledge.h"

#include <algorithm>

namespace entrain {

namespace {

SurvivorReport EmptyReport(int size) {
  SurvivorReport report;
  report.cut = report.gone = report.exclude = RankSet(size);
  return report;
}

}  // namespace

SurvivorKnowledge::SurvivorKnowledge(int rank, int size)
    : rank_(rank),
      size_(size),
      base_(RankSet::All(size)),
      reports_(static_cast<size_t>(size), EmptyReport(size)) {}

void SurvivorKnowledge::Begin(RankSet base) {
  base_ = std::move(base);
  SurvivorReport mine = std::move(own());
  mine.called = false;
  mine.exclude = RankSet(size_);
  mine.accepted = AcceptedDecision();
  reports_.assign(static_cast<size_t>(size_), EmptyReport(size_));
  own() = std::move(mine);
}

bool SurvivorKnowledge::AddGone(int rank) {
  own().cut.Add(rank);
  return own().gone.Add(rank);
}

std::vector<int> SurvivorKnowledge::not_called() const {
  std::vector<int> ranks;
  for (const int r : reached().ranks()) {
    if (r != rank_ && !of(r).called) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

bool SurvivorKnowledge::AllFollow() const {
  const RankSet reached = this->reached();
  const RankSet lower = base_.Without(reached);
  for (const int r : reached.ranks()) {
    if (r == rank_) {
      continue;
    }
    const SurvivorReport& report = of(r);
    if (!report.called) {
      return false;
    }
    for (const int other : lower.ranks()) {
      if (other < rank_ && !report.cut.Has(other)) {
        return false;  // rank `r` follows `other` or a lower rank, not this rank
      }
    }
  }
  // The leader waits until it has cut all excluded ranks. An excluded rank gives up when it gets a
  // report that excludes it.
  return reached.Without(own().exclude) == reached;
}

bool SurvivorKnowledge::IsQuorum(const RankSet& ranks) const {
  const int have = ranks.count(), all = base_.count();
  return own().any || ranks.Contains(base_.Without(gone())) || 2 * have > all ||
         (2 * have == all && ranks.Has(base_.lowest()));
}

RankSet SurvivorKnowledge::Connected(RankSet among, int keep) const {
  const auto reaches_all = [&](int rank) {
    const std::vector<int> others = among.ranks();
    return std::none_of(others.begin(), others.end(),
                        [&](int other) { return Broken(rank, other); });
  };
  std::vector<int> ranks = among.ranks(), broken(ranks.size(), 0);
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const int edge = Broken(ranks[i], ranks[j]) ? 1 : 0;
      broken[i] += edge;
      broken[j] += edge;
    }
  }
  for (;;) {
    size_t worst = ranks.size();
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (among.Has(ranks[i]) && ranks[i] != keep && broken[i] > 0 &&
          (worst == ranks.size() || broken[i] >= broken[worst])) {
        worst = i;
      }
    }
    if (worst == ranks.size()) {
      break;
    }
    among.Remove(ranks[worst]);
    for (size_t i = 0; i < ranks.size(); ++i) {
      broken[i] -= Broken(ranks[i], ranks[worst]) ? 1 : 0;
    }
  }
  // If a dropped rank reaches all ranks that are left, add it again. (The ranks that it does not
  // reach were dropped after it.)
  for (const int rank : ranks) {
    if (!among.Has(rank) && reaches_all(rank)) {
      among.Add(rank);
    }
  }
  return among;
}

SurvivorDecision SurvivorKnowledge::DecisionFor(const RankSet& members) const {
  using Error = SurvivorDecision::Error;
  const SurvivorReport& mine = own();
  SurvivorDecision decision;
  decision.kind = mine.kind;
  decision.any = mine.any;
  decision.members = members;
  decision.flag = mine.flag;
  const auto blame = [&](Error error, int rank) {
    if (decision.error == Error::kNone) {
      decision.error = error;
      decision.culprit = rank;
    }
  };
  for (const int r : reached().ranks()) {
    const SurvivorReport& report = of(r);
    if (report.kind != mine.kind) {
      blame(Error::kKinds, r);
    } else if (report.any != mine.any) {
      blame(Error::kPolicies, r);
    }
    if (members.Has(r)) {
      if (mine.kind == SurvivorCallKind::kShrink && report.context == 0) {
        blame(Error::kContexts, r);
      }
      decision.contexts.push_back(report.context);
      decision.flag &= report.flag;
    }
  }
  return decision;
}

}  // namespace entrain
