#include "lib/comm/vote.h"

#include <algorithm>

#include "transports/transport.h"

namespace entrain {
namespace {

// Returns true if call `a` is before call `b` in an order that is equal on all ranks. So if ranks
// begin votes about several calls, all ranks keep the vote about the same call.
bool IsEarlier(CallId a, CallId b) {
  const uint32_t behind = (b.number - a.number) & Tag::kCallMask;
  return a.user_tag != b.user_tag ? a.user_tag < b.user_tag
                                  : behind != 0 && behind <= Tag::kCallMask / 2;
}

}  // namespace

bool Vote::Begin(CallId call, Deadline until) {
  if (on_ && !IsEarlier(call, call_)) {
    return false;
  }
  on_ = true;
  call_ = call;
  until_ = until;
  std::fill(ballots_.begin(), ballots_.end(), Ballot());
  return true;
}

void Vote::Cast(int rank, std::optional<Descriptor> called) {
  Ballot& ballot = ballots_[static_cast<size_t>(rank)];
  ballot.final = true;
  if (called) {
    ballot.called = called;
  }
}

void Vote::Witness(int rank, const Descriptor& called) {
  Ballot& ballot = ballots_[static_cast<size_t>(rank)];
  if (!ballot.called) {
    ballot.called = called;
  }
}

void Vote::OnGone(int rank) {
  ballots_[static_cast<size_t>(rank)].final = true;
}

bool Vote::Complete() const {
  return std::all_of(ballots_.begin(), ballots_.end(),
                     [](const Ballot& ballot) { return ballot.final; });
}

Vote::Result Vote::Count() const {
  Result result;
  for (size_t r = 0; r < ballots_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (!ballots_[r].called) {
      result.silent.push_back(rank);
      continue;
    }
    auto& parties = result.parties;
    const auto same = std::find_if(parties.begin(), parties.end(), [&](const Party& party) {
      return party.called == *ballots_[r].called;
    });
    if (same == parties.end()) {
      parties.push_back({*ballots_[r].called, {rank}});
    } else {
      same->ranks.push_back(rank);
    }
  }
  std::stable_sort(result.parties.begin(), result.parties.end(),
                   [](const Party& a, const Party& b) { return a.ranks.size() > b.ranks.size(); });
  if (result.parties.size() > 1 &&
      result.parties[0].ranks.size() > result.parties[1].ranks.size()) {
    result.guilty = result.parties[1].ranks[0];
    for (size_t i = 2; i < result.parties.size(); ++i) {
      result.guilty = std::min(result.guilty, result.parties[i].ranks[0]);
    }
  }
  return result;
}

}  // namespace entrain
