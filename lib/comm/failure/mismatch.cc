#include "lib/comm/failure/mismatch.h"

#include <algorithm>
#include <utility>

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

// ---- Mismatches

Deadline Mismatches::Until(int64_t now_ns, int64_t round_trip_ns, Deadline first_deadline) {
  const Deadline until{now_ns + Vote::kVoteNs + 2 * round_trip_ns};
  return first_deadline < Deadline::Never()
             ? std::min(until, {first_deadline.at_ns + Vote::kLateNs})
             : until;
}

void Mismatches::Begin(CallId call, Deadline until) {
  if (!vote_.Begin(call, until)) {
    return;
  }
  voted_ = false;
  witnessed_ = -1;
  for (size_t r = 0; r < gone_.size(); ++r) {
    if (gone_[r]) {
      vote_.OnGone(static_cast<int>(r));
    }
  }
}

void Mismatches::Found(CallId call, int from, const Descriptor& theirs, Deadline until) {
  Begin(call, until);
  if (vote_.IsAbout(call)) {
    witnessed_ = from;
    witnessed_call_ = theirs;
    vote_.Witness(from, theirs);
  }
}

void Mismatches::FoundBetweenTwo(CallId call, absl::Status why, Deadline until) {
  between_two_ = std::move(why);
  Begin(call, until);
}

void Mismatches::OnBallot(int rank, Reader& reader, Deadline until) {
  const CallId call{reader.Get<uint32_t>(), reader.Get<uint32_t>()};
  const auto knows = reader.Get<uint8_t>();
  const auto theirs = reader.Get<Descriptor>();
  const auto witnessed = reader.Get<int32_t>();
  const auto its_call = reader.Get<Descriptor>();
  if (!reader.Finished() || witnessed < -1 || witnessed >= static_cast<int>(gone_.size())) {
    return;
  }
  Begin(call, until);
  if (vote_.IsAbout(call)) {
    vote_.Cast(rank, knows != 0 ? std::optional(theirs) : std::nullopt);
    if (witnessed >= 0) {
      vote_.Witness(witnessed, its_call);
    }
  }
}

void Mismatches::OnGone(int rank) {
  gone_[static_cast<size_t>(rank)] = true;
  if (vote_.on()) {
    vote_.OnGone(rank);
  }
}

std::optional<std::string> Mismatches::TakeBallot(const std::optional<OwnCall>& mine,
                                                  bool forgotten) {
  // If this rank's call has not started, its descriptor is not known. (A call may have its number
  // long before it starts.) This rank votes when the call starts.
  if (!vote_.on() || voted_ || (!mine && !forgotten)) {
    return std::nullopt;
  }
  voted_ = true;
  const Descriptor told = mine ? mine->descriptor : Descriptor();
  vote_.Cast(rank_, mine ? std::optional(told) : std::nullopt);
  return Writer()
      .Put(vote_.call().user_tag)
      .Put(vote_.call().number)
      .Put(static_cast<uint8_t>(mine ? 1 : 0))
      .PutRaw(&told, sizeof(told))
      .Put(int32_t{witnessed_})
      .PutRaw(&witnessed_call_, sizeof(witnessed_call_))
      .Take();
}

std::optional<Mismatches::Verdict> Mismatches::TakeVerdict(int64_t now_ns) {
  if (!vote_.on() || !(vote_.Complete() || vote_.until().Passed(now_ns))) {
    return std::nullopt;
  }
  vote_.Stop();
  return Verdict{vote_.Count(), between_two_};
}

}  // namespace entrain
