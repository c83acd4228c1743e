#include "lib/comm/mismatch.h"

#include <algorithm>
#include <utility>

namespace entrain {
namespace {

OwnCall OwnCallOf(const Wiring& call, const Descriptor& descriptor) {
  return {{call.user_tag, call.call_number}, call.sequence, descriptor};
}

}  // namespace

// A work that is over when the vote is over. Only the driver may wait for this work, so Finish
// wakes no thread.
class Mismatches::EndWork final : public Work {
 public:
  EndWork() : Work(nullptr) {}
  void Give() { Finish(absl::OkStatus()); }
};

Mismatches::Mismatches(CommShell& shell, const ComparedCalls& open, const Peers& peers,
                       const Clock& clock)
    : shell_(shell), open_(open), peers_(peers), clock_(clock), vote_(peers.size()) {}

Mismatches::~Mismatches() = default;

// ---- Calls of peers and of this rank

void Mismatches::Compare(const Endpoint& from, CallId call, const Descriptor& theirs) {
  if (const auto open = open_.OwnCollective(call)) {
    if (open->descriptor != theirs) {
      Found(from, theirs, *open);
    }
  } else if (const OwnCall* const over = notes_.Hear(from, call, theirs)) {
    Found(from, theirs, *over);
  }
}

void Mismatches::Meet(const Wiring& call, const Descriptor& mine) {
  if (call.point_to_point) {
    return;
  }
  const OwnCall own = OwnCallOf(call, mine);
  if (const auto heard = notes_.Meet(own.id, mine)) {
    Found(*heard->from, heard->descriptor, own);
  }
  if (vote_.IsAbout(own.id)) {
    shell_.NeedAttention();  // this rank can vote now
  }
}

void Mismatches::NoteOver(const Wiring& call, const Descriptor& mine) {
  if (!call.point_to_point) {
    notes_.Over(OwnCallOf(call, mine));
  }
}

std::optional<OwnCall> Mismatches::Own(CallId call) const {
  if (const auto open = open_.OwnCollective(call)) {
    return open;
  }
  const OwnCall* const over = notes_.OwnThatIsOver(call);
  return over != nullptr ? std::optional(*over) : std::nullopt;
}

void Mismatches::Found(const Endpoint& from, const Descriptor& theirs, const OwnCall& mine) {
  Begin(mine.id);
  if (vote_.IsAbout(mine.id)) {
    witnessed_ = peers_.RankOf(&from);
    witnessed_call_ = theirs;
    vote_.Witness(witnessed_, theirs);
  }
}

void Mismatches::FoundBetweenTwo(CallId call, absl::Status why) {
  between_two_ = std::move(why);
  Begin(call);
}

// ---- The vote

void Mismatches::Begin(CallId call) {
  Deadline until{clock_.Now() + Vote::kVoteNs + 2 * peers_.SlowestRoundTrip()};
  // If the deadline of a call passes during the vote, the inquiry about the call begins after the
  // vote. So the vote must end at most kLateNs after the first deadline.
  if (const Deadline first = open_.FirstDeadline(); first < Deadline::Never()) {
    until = std::min(until, {first.at_ns + Vote::kLateNs});
  }
  if (!vote_.Begin(call, until)) {
    return;
  }
  voted_ = false;
  witnessed_ = -1;
  for (int r = 0; r < peers_.size(); ++r) {
    if (shell_.SaysNothing(r)) {
      vote_.OnGone(r);
    }
  }
  shell_.NeedAttention();
}

void Mismatches::SendBallot() {
  const CallId call = vote_.call();
  const std::optional<OwnCall> own = Own(call);
  if (!own && !notes_.HasForgotten(call)) {
    // This rank's call has not started, so its descriptor is not known. (A call may have its number
    // long before it starts.) This rank votes when the call starts (see Meet).
    return;
  }
  voted_ = true;
  const Descriptor told = own ? own->descriptor : Descriptor();
  vote_.Cast(peers_.rank(), own ? std::optional(told) : std::nullopt);
  const std::string ballot = Writer()
                                 .Put(call.user_tag)
                                 .Put(call.number)
                                 .Put(static_cast<uint8_t>(own ? 1 : 0))
                                 .PutRaw(&told, sizeof(told))
                                 .Put(int32_t{witnessed_})
                                 .PutRaw(&witnessed_call_, sizeof(witnessed_call_))
                                 .Take();
  for (int r = 0; r < peers_.size(); ++r) {
    if (peers_.endpoint(r) != nullptr && !shell_.SaysNothing(r)) {
      peers_.SendSoon(r, ControlKind::kBallot, ballot);
    }
  }
  shell_.NeedFlush();
}

void Mismatches::OnBallot(int rank, Reader& reader) {
  const CallId call{reader.Get<uint32_t>(), reader.Get<uint32_t>()};
  const auto knows = reader.Get<uint8_t>();
  const auto theirs = reader.Get<Descriptor>();
  const auto witnessed = reader.Get<int32_t>();
  const auto its_call = reader.Get<Descriptor>();
  if (!reader.Finished() || witnessed < -1 || witnessed >= peers_.size()) {
    return;
  }
  Begin(call);
  if (vote_.IsAbout(call)) {
    vote_.Cast(rank, knows != 0 ? std::optional(theirs) : std::nullopt);
    if (witnessed >= 0) {
      vote_.Witness(witnessed, its_call);
    }
    shell_.NeedAttention();
  }
}

void Mismatches::OnGone(int rank) {
  if (vote_.on()) {
    vote_.OnGone(rank);
    shell_.NeedAttention();
  }
}

void Mismatches::Attend() {
  if (vote_.on() && !voted_) {
    SendBallot();
  }
  if (vote_.on() && vote_.Complete()) {
    Count();
  }
}

void Mismatches::OnTick(int64_t now_ns) {
  if (vote_.on() && vote_.until().Passed(now_ns)) {
    Count();
  }
}

void Mismatches::Count() {
  const Vote::Result result = vote_.Count();
  const CallId call = vote_.call();
  if (result.parties.size() > 1) {
    const std::optional<OwnCall> own = Own(call);
    shell_.Disagree(call, own ? own->sequence : call.number, result);
  } else if (!between_two_.ok()) {
    // All descriptors are equal, but FoundBetweenTwo has reported a difference that descriptors do
    // not show.
    shell_.Fail(between_two_);
  }
  EndVote();
}

RefPtr<Work> Mismatches::End() {
  if (!end_) {
    end_ = RefPtr<EndWork>::Adopt(new EndWork());
  }
  return RefPtr<Work>::Share(end_.get());
}

void Mismatches::EndVote() {
  vote_.Stop();
  if (end_) {
    std::exchange(end_, {})->Give();
  }
}

void Mismatches::Stop() {
  EndVote();
  notes_.Clear();
}

}  // namespace entrain
