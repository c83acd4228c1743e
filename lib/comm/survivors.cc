#include "lib/comm/survivors.h"

#include <algorithm>
#include <tuple>

namespace entrain {
namespace {

constexpr int64_t kAsksPerSilence = 4;

enum : uint8_t { kCalled = 1, kGivenUp = 2, kAsks = 4, kAny = 8 };

}  // namespace

Survivors::Survivors(int rank, int size)
    : rank_(rank),
      size_(size),
      base_(RankSet::All(size)),
      gone_(size),
      cut_(size),
      exclude_(size),
      heard_ns_(static_cast<size_t>(size), 0),
      went_on_(size) {
  Begin();
}

void Survivors::Begin() {
  called_ = false;
  exclude_ = RankSet(size_);
  Report none;
  none.cut = none.gone = none.exclude = RankSet(size_);
  reports_.assign(static_cast<size_t>(size_), none);
  accepted_ = recovered_ = Accepted();
  proposal_.reset();
  attempts_ = 0;
}

// ---- Events

void Survivors::Call(const Wish& wish, int64_t now_ns, int64_t silence_ns) {
  silence_ns_ = silence_ns;
  awake_since_ns_ = last_event_ns_ = now_ns;
  ask_at_ns_ = now_ns + silence_ns_ / kAsksPerSilence;
  if (end_ != End::kNone) {
    return;
  }
  if (!called_) {
    wish_ = wish;
    called_ = true;
  }
  for (const int rank : wish.exclude) {
    exclude_.Add(rank);
  }
  TellAll(/*asks=*/true);
  Step();
}

void Survivors::OnMessage(int from, absl::string_view text, int64_t now_ns) {
  Reader in(text);
  const auto number = in.Get<uint32_t>();
  const auto type = in.Get<Type>();
  if (!in.ok() || from < 0 || from >= size_ || from == rank_) {
    return;
  }
  NoteTime(now_ns);
  if (type == Type::kDecision) {
    OnDecision(from, number, &in);
    return;
  }
  Report report;
  const bool reports = type == Type::kReport && ReadReport(&in, &report);
  if (reports && report.given_up && !cut_.Has(from)) {
    if (AddGone(from)) {
      Changed();
    }
    return;
  }
  if (cut_.Has(from) || end_ != End::kNone) {
    // The sender may not know that this rank no longer waits for it.
    if (reports && !report.given_up && !(cut_.Has(from) && report.cut.Has(rank_))) {
      SendReport(from);
    }
    return;
  }
  heard_ns_[static_cast<size_t>(from)] = now_ns;
  if (number < number_) {
    if (last_) {
      Send(from, DecisionText(number_ - 1, *last_));
    }
  } else if (number > number_) {
    return;  // this rank first needs the sender's decision about the call number_
  } else if (reports) {
    OnReport(from, std::move(report));
  } else if (type == Type::kProposal) {
    OnProposal(from, &in);
  } else if (type == Type::kAcceptance) {
    OnAcceptance(from, &in);
  }
}

void Survivors::OnGone(int rank, int64_t now_ns) {
  NoteTime(now_ns);
  if (AddGone(rank)) {
    Changed();
  }
}

void Survivors::OnCut(int rank, int64_t now_ns) {
  NoteTime(now_ns);
  if (AddCut(rank)) {
    Changed();
  }
}

// Detects a break: if no event came for half of silence_ns_, this process may have been stopped. A
// stopped process does not hear its peers, so it must not count this time as silence of the peers.
void Survivors::NoteTime(int64_t now_ns) {
  if (now_ns - last_event_ns_ > silence_ns_ / 2) {
    awake_since_ns_ = now_ns;
  }
  last_event_ns_ = now_ns;
}

void Survivors::OnTick(int64_t now_ns) {
  NoteTime(now_ns);
  if (!pending()) {
    return;
  }
  if (now_ns >= ask_at_ns_) {
    ask_at_ns_ = now_ns + silence_ns_ / kAsksPerSilence;
    TellAll(/*asks=*/true);
  }
  bool changed = false;
  for (const int r : base_.Without(cut_).ranks()) {
    if (r != rank_ && SilentAt(r) <= now_ns) {
      changed = AddCut(r) || changed;
    }
  }
  if (changed) {
    Changed();
  }
}

int64_t Survivors::SilentAt(int rank) const {
  return std::max(heard_ns_[static_cast<size_t>(rank)], awake_since_ns_) + silence_ns_;
}

Deadline Survivors::next_tick() const {
  if (!pending()) {
    return Deadline::Never();
  }
  Deadline next{ask_at_ns_};
  for (const int r : base_.Without(cut_).ranks()) {
    if (r != rank_) {
      next = std::min(next, Deadline{SilentAt(r)});
    }
  }
  return next;
}

std::vector<int> Survivors::not_called() const {
  std::vector<int> ranks;
  for (const int r : base_.Without(cut_).ranks()) {
    if (r != rank_ && !of(r).called) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

// ---- Messages

void Survivors::Send(int to, std::string text) {
  out_.push_back({to, std::move(text)});
}

void Survivors::WriteDecision(const Decision& decision, Writer* out) const {
  out->Put(decision.kind)
      .Put(decision.error)
      .Put(static_cast<uint8_t>(decision.any ? 1 : 0))
      .Put(int32_t{decision.culprit})
      .Put(decision.flag);
  decision.members.WriteTo(out);
  for (const uint16_t context : decision.contexts) {
    out->Put(context);
  }
}

bool Survivors::ReadDecision(Reader* in, Decision* decision) const {
  decision->kind = in->Get<Kind>();
  decision->error = in->Get<Error>();
  decision->any = in->Get<uint8_t>() != 0;
  decision->culprit = in->Get<int32_t>();
  decision->flag = in->Get<uint32_t>();
  decision->members = RankSet::ReadFrom(in, size_);
  const int members = decision->members.count();
  for (int i = 0; i < members; ++i) {
    decision->contexts.push_back(in->Get<uint16_t>());
  }
  return in->ok() && (decision->kind == Kind::kAgree || decision->kind == Kind::kShrink) &&
         decision->error <= Error::kContexts && decision->culprit >= -1 &&
         decision->culprit < size_ && members > 0;
}

std::string Survivors::ReportText(bool asks) const {
  const bool called = called_;
  Writer out;
  out.Put(number_)
      .Put(Type::kReport)
      .Put(static_cast<uint8_t>((called ? kCalled : 0) | (end_ != End::kNone ? kGivenUp : 0) |
                                (asks ? kAsks : 0) | (wish_.any ? kAny : 0)))
      .Put(wish_.kind)
      .Put(wish_.flag)
      .Put(wish_.context);
  cut_.WriteTo(&out);
  gone_.WriteTo(&out);
  exclude_.WriteTo(&out);
  out.Put(accepted_.ballot.leader).Put(accepted_.ballot.attempt);
  if (accepted_.ballot.leader >= 0) {
    WriteDecision(accepted_.decision, &out);
  }
  return out.Take();
}

bool Survivors::ReadReport(Reader* in, Report* report) const {
  const auto flags = in->Get<uint8_t>();
  report->called = (flags & kCalled) != 0;
  report->given_up = (flags & kGivenUp) != 0;
  report->asks = (flags & kAsks) != 0;
  report->any = (flags & kAny) != 0;
  report->kind = in->Get<Kind>();
  report->flag = in->Get<uint32_t>();
  report->context = in->Get<uint16_t>();
  report->cut = RankSet::ReadFrom(in, size_);
  report->gone = RankSet::ReadFrom(in, size_);
  report->exclude = RankSet::ReadFrom(in, size_);
  Ballot& ballot = report->accepted.ballot;
  ballot.leader = in->Get<int32_t>();
  ballot.attempt = in->Get<uint32_t>();
  if (ballot.leader >= size_ ||
      (ballot.leader >= 0 && !ReadDecision(in, &report->accepted.decision))) {
    return false;
  }
  return in->Finished();
}

std::string Survivors::DecisionText(uint32_t number, const Decision& decision) const {
  Writer out;
  out.Put(number).Put(Type::kDecision);
  WriteDecision(decision, &out);
  return out.Take();
}

void Survivors::TellAll(bool asks) {
  const std::string text = ReportText(asks);
  for (const int r : base_.Without(cut_).ranks()) {
    if (r != rank_) {
      Send(r, text);
    }
  }
}

// ---- What this rank knows

bool Survivors::AddGone(int rank) {
  cut_.Add(rank);
  return gone_.Add(rank);
}

bool Survivors::AddCut(int rank) {
  if (!cut_.Add(rank)) {
    return false;
  }
  SendReport(rank);  // so that the cut rank does not wait for this rank
  return true;
}

void Survivors::Changed() {
  if (end_ == End::kNone && called_) {
    TellAll(/*asks=*/false);
    Step();
  }
}

void Survivors::OnReport(int from, Report report) {
  reports_[static_cast<size_t>(from)] = std::move(report);
  const Report& news = of(from);
  if (news.gone.Has(rank_)) {
    GiveUp(End::kTakenGone, from);
    return;
  }
  if (news.exclude.Has(rank_)) {
    GiveUp(End::kExcluded, from);
    return;
  }
  bool changed = false;
  for (const int r : news.gone.ranks()) {
    changed = AddGone(r) || changed;
  }
  for (const int r : news.exclude.ranks()) {
    changed = exclude_.Add(r) || changed;
  }
  if (news.cut.Has(rank_)) {
    changed = AddCut(from) || changed;
  }
  if (news.asks && !cut_.Has(from)) {
    SendReport(from);
  }
  if (changed) {
    Changed();
  } else {
    Step();
  }
}

void Survivors::GiveUp(End end, int by) {
  end_ = end;
  by_ = by;
  proposal_.reset();
  TellAll(/*asks=*/false);
}

// ---- The leader

// Makes the leader propose a decision, if all ranks that the leader reaches also follow the leader.
// Does nothing on a rank that is not a leader.
void Survivors::Step() {
  if (!pending() || leader() != rank_) {
    return;
  }
  const RankSet reached = base_.Without(cut_);
  if (!AllFollow(reached)) {
    return;
  }
  if (std::optional<Decision> decision = Choose(reached)) {
    Propose(reached, *std::move(decision));
  }
}

bool Survivors::AllFollow(const RankSet& reached) const {
  const RankSet lower = base_.Without(reached);
  for (const int r : reached.ranks()) {
    if (r == rank_) {
      continue;
    }
    const Report& report = of(r);
    if (!report.called) {
      return false;
    }
    for (const int other : lower.ranks()) {
      if (other < rank_ && !report.cut.Has(other)) {
        return false;  // rank `r` follows `other` or a still lower rank, not this rank
      }
    }
  }
  // The leader waits until it has cut all excluded ranks. An excluded rank gives up when a report
  // tells it that it is excluded.
  return reached.Without(exclude_) == reached;
}

std::optional<Survivors::Decision> Survivors::Choose(const RankSet& reached) {
  if (!IsQuorum(reached)) {
    GiveUp(End::kMinority, -1);
    return std::nullopt;
  }
  const auto consider = [this](const Accepted& accepted) {
    if (accepted.ballot.leader < rank_ && recovered_.ballot < accepted.ballot) {
      recovered_ = accepted;
    }
  };
  consider(accepted_);
  for (const int r : reached.ranks()) {
    consider(of(r).accepted);
  }
  if (recovered_.ballot.leader >= 0) {
    return recovered_.decision;
  }
  const RankSet members = Connected(reached, rank_);
  const RankSet best = Connected(base_.Without(gone_).Without(exclude_), -1);
  if (!best.Has(rank_) && best.count() > members.count() && IsQuorum(best)) {
    GiveUp(End::kMinority, -1);
    return std::nullopt;
  }
  return Fresh(reached, members);
}

Survivors::Decision Survivors::Fresh(const RankSet& reached, const RankSet& members) const {
  Decision decision;
  decision.kind = wish_.kind;
  decision.any = wish_.any;
  decision.members = members;
  decision.flag = wish_.flag;
  const auto blame = [&](Error error, int rank) {
    if (decision.error == Error::kNone) {
      decision.error = error;
      decision.culprit = rank;
    }
  };
  for (const int r : reached.ranks()) {
    const bool self = r == rank_;
    if (!self && of(r).kind != wish_.kind) {
      blame(Error::kKinds, r);
    } else if (!self && of(r).any != wish_.any) {
      blame(Error::kPolicies, r);
    }
    if (members.Has(r)) {
      const uint16_t context = self ? wish_.context : of(r).context;
      if (wish_.kind == Kind::kShrink && context == 0) {
        blame(Error::kContexts, r);
      }
      decision.contexts.push_back(context);
      decision.flag &= self ? wish_.flag : of(r).flag;
    }
  }
  return decision;
}

bool Survivors::Broken(int a, int b) const {
  const auto says = [this](int from, int of_rank) {
    return (from == rank_ ? cut_ : of(from).cut).Has(of_rank);
  };
  return says(a, b) || says(b, a);
}

RankSet Survivors::Connected(RankSet among, int keep) const {
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
  // Takes a dropped rank back if the ranks that it does not reach have been dropped after it.
  for (const int rank : ranks) {
    if (!among.Has(rank) && reaches_all(rank)) {
      among.Add(rank);
    }
  }
  return among;
}

bool Survivors::IsQuorum(const RankSet& ranks) const {
  const int have = ranks.count(), all = base_.count();
  return wish_.any || ranks.Contains(base_.Without(gone_)) || 2 * have > all ||
         (2 * have == all && ranks.Has(base_.lowest()));
}

void Survivors::Propose(const RankSet& reached, Decision decision) {
  if (proposal_ && proposal_->to == reached && proposal_->gone == gone_ &&
      proposal_->decision == decision) {
    return;  // the attempt that is under way has this proposal
  }
  proposal_ = {{rank_, ++attempts_}, std::move(decision), gone_, reached, RankSet(size_)};
  accepted_ = {proposal_->ballot, proposal_->decision};
  proposal_->accepted_by.Add(rank_);
  Writer out;
  out.Put(number_).Put(Type::kProposal).Put(proposal_->ballot.attempt);
  gone_.WriteTo(&out);
  WriteDecision(proposal_->decision, &out);
  const std::string text = out.Take();
  for (const int r : reached.ranks()) {
    if (r != rank_) {
      Send(r, text);
    }
  }
  CountAcceptances();
}

void Survivors::OnProposal(int from, Reader* in) {
  Accepted proposed;
  proposed.ballot = {from, in->Get<uint32_t>()};
  const RankSet gone = RankSet::ReadFrom(in, size_);
  if (!ReadDecision(in, &proposed.decision) || !in->Finished() || !called_) {
    return;
  }
  if (gone.Has(rank_)) {
    GiveUp(End::kTakenGone, from);
    return;
  }
  bool changed = false;
  for (const int r : gone.ranks()) {
    changed = AddGone(r) || changed;
  }
  if (from == leader() && accepted_.ballot < proposed.ballot) {
    Writer out;
    out.Put(number_).Put(Type::kAcceptance).Put(proposed.ballot.attempt);
    Send(from, out.Take());
    accepted_ = std::move(proposed);
  }
  if (changed) {
    Changed();
  }
}

void Survivors::OnAcceptance(int from, Reader* in) {
  const auto attempt = in->Get<uint32_t>();
  if (in->Finished() && proposal_ && proposal_->ballot.attempt == attempt) {
    proposal_->accepted_by.Add(from);
    CountAcceptances();
  }
}

void Survivors::CountAcceptances() {
  if (proposal_->accepted_by.Contains(proposal_->to)) {
    Decide(Decision(proposal_->decision));
  }
}

void Survivors::OnDecision(int from, uint32_t number, Reader* in) {
  Decision decision;
  if (!ReadDecision(in, &decision) || !in->Finished() || number < number_) {
    return;
  }
  if (end_ != End::kNone) {
    if (went_on_.empty()) {
      went_on_ = decision.members;
    }
    return;
  }
  if (cut_.Has(from) && (decision.any || (number == number_ && decision.members.Has(rank_)))) {
    // With kAny, a cut rank may be on another side, and then its decision does not hold here.
    // Without kAny, a rank that this rank reaches also sends the decision.
    return;
  }
  if (number == number_ && called_ && !cut_.Has(from)) {
    Decide(decision);
    return;
  }
  went_on_ = decision.members;
  GiveUp(End::kLeftOut, from);
}

void Survivors::Decide(const Decision& decision) {
  const std::string text = DecisionText(number_, decision);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      Send(r, text);
    }
  }
  if (!decision.members.Has(rank_)) {
    went_on_ = decision.members;
    GiveUp(End::kLeftOut, -1);
    return;
  }
  last_ = decision;
  base_ = decision.members;
  ++number_;
  Begin();
}

}  // namespace entrain
