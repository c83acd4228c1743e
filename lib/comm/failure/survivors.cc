#include "lib/comm/failure/survivors.h"

#include <algorithm>
#include <utility>

namespace entrain {
namespace {

// The time between an exclusion and its effect. All messages that a stopped process finds when it
// wakes up are read within this time.
constexpr int64_t kObeysAfter = 50 * kMillisecond;

}  // namespace

Survivors::Survivors(int rank, int size)
    : rank_(rank), size_(size), knows_(rank, size), silence_(size), went_on_(size) {}

void Survivors::Begin(RankSet base) {
  knows_.Begin(std::move(base));
  recovered_ = AcceptedDecision();
  attempt_.reset();
  attempts_ = 0;
  excluders_.clear();
  obeys_at_ = Deadline::Never();
}

// ---- Events

void Survivors::Call(const Wish& wish, int64_t now_ns, int64_t silence_ns) {
  silence_.Begin(now_ns, silence_ns);
  if (end_ != End::kNone) {
    return;
  }
  SurvivorReport& mine = knows_.own();
  if (!mine.called) {
    mine.called = true;
    mine.kind = wish.kind;
    mine.any = wish.any;
    mine.flag = wish.flag;
    mine.context = wish.context;
  }
  for (const int rank : wish.exclude) {
    knows_.AddExcluded(rank);
  }
  TellAll(/*asks=*/true);
  Step();
}

void Survivors::OnMessage(int from, absl::string_view text, int64_t now_ns) {
  using Type = SurvivorMessageType;
  Reader in(text);
  const auto number = in.Get<uint32_t>();
  const auto type = in.Get<Type>();
  if (!in.ok() || from < 0 || from >= size_ || from == rank_) {
    return;
  }
  silence_.OnEvent(now_ns);
  if (type == Type::kDecision) {
    OnDecision(from, number, &in);
    return;
  }
  SurvivorReport report;
  const bool reports = type == Type::kReport && report.Read(&in, size_);
  const bool cut = knows_.cut().Has(from);
  if (reports && report.given_up && !cut) {
    if (knows_.AddGone(from)) {
      Changed();
    }
    return;
  }
  if (cut || end_ != End::kNone) {
    // The sender may not know that this rank does not wait for it any more.
    if (reports && !report.given_up && !(cut && report.cut.Has(rank_))) {
      SendReport(from);
    }
    return;
  }
  silence_.OnHeard(from, now_ns);
  if (number < number_) {
    if (last_) {
      Send(from, last_->ToText(number_ - 1));
    }
  } else if (number > number_) {
    return;  // this rank first needs the decision about call number_ from the sender
  } else if (reports) {
    OnReport(from, std::move(report), now_ns);
  } else if (type == Type::kProposal) {
    OnProposal(from, &in);
  } else if (type == Type::kAcceptance) {
    OnAcceptance(from, &in);
  }
}

void Survivors::OnGone(int rank, int64_t now_ns) {
  silence_.OnEvent(now_ns);
  if (knows_.AddGone(rank)) {
    Changed();
  }
}

void Survivors::OnCut(int rank, int64_t now_ns) {
  silence_.OnEvent(now_ns);
  if (AddCut(rank)) {
    Changed();
  }
}

void Survivors::OnTick(int64_t now_ns) {
  silence_.OnEvent(now_ns);
  Obey(now_ns);
  if (!pending()) {
    return;
  }
  if (silence_.TakeQuestion(now_ns)) {
    TellAll(/*asks=*/true);
  }
  bool changed = false;
  for (const int r : knows_.reached().ranks()) {
    if (r != rank_ && silence_.SilentAt(r).Passed(now_ns)) {
      changed = AddCut(r) || changed;
    }
  }
  if (changed) {
    Changed();
  }
}

Deadline Survivors::next_tick() const {
  if (!pending()) {
    return obeys_at_;
  }
  Deadline next = std::min(silence_.ask_at(), obeys_at_);
  for (const int r : knows_.reached().ranks()) {
    if (r != rank_) {
      next = std::min(next, silence_.SilentAt(r));
    }
  }
  return next;
}

// ---- Messages

void Survivors::Send(int to, std::string text) {
  out_.push_back({to, std::move(text)});
}

std::string Survivors::ReportText(bool asks) const {
  SurvivorReport report = knows_.own();
  report.asks = asks;
  return report.ToText(number_);
}

void Survivors::TellAll(bool asks) {
  const std::string text = ReportText(asks);
  for (const int r : knows_.reached().ranks()) {
    if (r != rank_) {
      Send(r, text);
    }
  }
}

// ---- What this rank knows

bool Survivors::AddCut(int rank) {
  if (!knows_.AddCut(rank)) {
    return false;
  }
  SendReport(rank);  // so that the cut rank does not wait for this rank
  return true;
}

void Survivors::Changed() {
  if (pending()) {
    TellAll(/*asks=*/false);
    Step();
  }
}

void Survivors::OnReport(int from, SurvivorReport report, int64_t now_ns) {
  knows_.Take(from, std::move(report));
  const SurvivorReport& news = knows_.of(from);
  if (news.gone.Has(rank_)) {
    GiveUp(End::kTakenGone, from);
    return;
  }
  if (news.exclude.Has(rank_)) {
    excluders_.push_back(from);
    obeys_at_ = std::min(obeys_at_, Deadline{now_ns + kObeysAfter});
    if (news.cut.Has(rank_) && AddCut(from)) {
      Changed();
    }
    return;
  }
  bool changed = false;
  for (const int r : news.gone.ranks()) {
    changed = knows_.AddGone(r) || changed;
  }
  for (const int r : news.exclude.ranks()) {
    changed = knows_.AddExcluded(r) || changed;
  }
  if (news.cut.Has(rank_)) {
    changed = AddCut(from) || changed;
  }
  if (news.asks && !knows_.cut().Has(from)) {
    SendReport(from);
  }
  if (changed) {
    Changed();
  } else {
    Step();
  }
}

// Gives up if the time has come, and a rank excludes this rank that has not cut it.
void Survivors::Obey(int64_t now_ns) {
  if (end_ != End::kNone || !obeys_at_.Passed(now_ns)) {
    return;
  }
  obeys_at_ = Deadline::Never();
  const std::vector<int> excluders = std::exchange(excluders_, {});
  const auto by = std::find_if(excluders.begin(), excluders.end(),
                               [this](int rank) { return !knows_.cut().Has(rank); });
  if (by != excluders.end()) {
    GiveUp(End::kExcluded, *by);
  } else {
    Changed();
  }
}

void Survivors::GiveUp(End end, int by) {
  end_ = end;
  obeys_at_ = Deadline::Never();
  by_ = by;
  knows_.own().given_up = true;
  attempt_.reset();
  TellAll(/*asks=*/false);
}

// ---- The leader

// If this rank is a leader and all ranks that it reaches follow it, proposes a decision. Otherwise
// does nothing.
void Survivors::Step() {
  if (!pending() || !excluders_.empty() || knows_.leader() != rank_ || !knows_.AllFollow()) {
    return;
  }
  if (std::optional<Decision> decision = Choose()) {
    Propose(*std::move(decision));
  }
}

std::optional<Survivors::Decision> Survivors::Choose() {
  const RankSet reached = knows_.reached();
  if (!knows_.IsQuorum(reached)) {
    GiveUp(End::kMinority, -1);
    return std::nullopt;
  }
  const auto consider = [this](const AcceptedDecision& accepted) {
    if (accepted.ballot.leader < rank_ && recovered_.ballot < accepted.ballot) {
      recovered_ = accepted;
    }
  };
  consider(knows_.own().accepted);
  for (const int r : reached.ranks()) {
    consider(knows_.of(r).accepted);
  }
  if (recovered_.ballot.leader >= 0) {
    return recovered_.decision;
  }
  const RankSet members = knows_.Connected(reached, rank_);
  const RankSet live = knows_.base().Without(knows_.gone()).Without(knows_.own().exclude);
  const RankSet best = knows_.Connected(live, -1);
  if (!best.Has(rank_) && best.count() > members.count() && knows_.IsQuorum(best)) {
    GiveUp(End::kMinority, -1);
    return std::nullopt;
  }
  return knows_.DecisionFor(members);
}

void Survivors::Propose(Decision decision) {
  const RankSet reached = knows_.reached();
  if (attempt_ && attempt_->to == reached && attempt_->proposal.gone == knows_.gone() &&
      attempt_->proposal.decision == decision) {
    return;  // the attempt under way has the same proposal
  }
  attempt_ = {{++attempts_, knows_.gone(), std::move(decision)}, reached, RankSet(size_)};
  const SurvivorProposal& proposal = attempt_->proposal;
  knows_.own().accepted = {{rank_, proposal.attempt}, proposal.decision};
  attempt_->accepted_by.Add(rank_);
  const std::string text = proposal.ToText(number_);
  for (const int r : reached.ranks()) {
    if (r != rank_) {
      Send(r, text);
    }
  }
  CountAcceptances();
}

void Survivors::OnProposal(int from, Reader* in) {
  SurvivorProposal proposal;
  if (!proposal.Read(in, size_) || !knows_.own().called) {
    return;
  }
  if (proposal.gone.Has(rank_)) {
    GiveUp(End::kTakenGone, from);
    return;
  }
  bool changed = false;
  for (const int r : proposal.gone.ranks()) {
    changed = knows_.AddGone(r) || changed;
  }
  const SurvivorBallot ballot{from, proposal.attempt};
  if (from == knows_.leader() && excluders_.empty() && knows_.own().accepted.ballot < ballot) {
    Send(from, SurvivorAcceptance{proposal.attempt}.ToText(number_));
    knows_.own().accepted = {ballot, std::move(proposal.decision)};
  }
  if (changed) {
    Changed();
  }
}

void Survivors::OnAcceptance(int from, Reader* in) {
  SurvivorAcceptance acceptance;
  if (acceptance.Read(in) && attempt_ && attempt_->proposal.attempt == acceptance.attempt) {
    attempt_->accepted_by.Add(from);
    CountAcceptances();
  }
}

void Survivors::CountAcceptances() {
  if (attempt_->accepted_by.Contains(attempt_->to)) {
    Decide(Decision(attempt_->proposal.decision));
  }
}

void Survivors::OnDecision(int from, uint32_t number, Reader* in) {
  Decision decision;
  if (!decision.Read(in, size_) || !in->Finished() || number < number_) {
    return;
  }
  if (end_ != End::kNone) {
    if (went_on_.empty()) {
      went_on_ = decision.members;
    }
    return;
  }
  const bool cut = knows_.cut().Has(from);
  if (cut && (decision.any || (number == number_ && decision.members.Has(rank_)))) {
    // With kAny, a cut rank may be on another side of a partition. Its decision is then not valid
    // on this side. Without kAny, this rank also gets the decision from a rank that is not cut.
    return;
  }
  if (number == number_ && knows_.own().called && !cut) {
    Decide(decision);
    return;
  }
  went_on_ = decision.members;
  GiveUp(End::kLeftOut, from);
}

void Survivors::Decide(const Decision& decision) {
  const std::string text = decision.ToText(number_);
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
  ++number_;
  Begin(decision.members);
}

}  // namespace entrain
