#include "lib/comm/failure/inquiry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/text.h"

namespace entrain {
namespace {

// The time by which an answer may be later than the peer has promised.
constexpr int64_t kSlackNs = 100 * kMillisecond;
// The nonce of a question whose answer matters only as a sign of life. No inquiry has this nonce.
constexpr uint32_t kNoNonce = 0;
// The longest extra time that a peer may request for its answer.
constexpr int64_t kLongestMoreNs = 2 * kSecond;

}  // namespace

Inquiry::Inquiry(const Peers& peers, const CallFunnel& funnel, const OpenCalls& open,
                 const FailureWords& words, const Causes& causes, int64_t silence_ns)
    : peers_(peers),
      funnel_(funnel),
      open_(open),
      words_(words),
      causes_(causes),
      decision_(peers.rank(), peers.size()),
      excuses_(static_cast<size_t>(peers.size())),
      instead_(static_cast<size_t>(peers.size()), CallFunnel::kPing),
      refusals_(static_cast<size_t>(peers.size())),
      silence_ns_(silence_ns),
      silence_(peers.size()),
      received_(static_cast<size_t>(peers.size()), 0) {}

// ---- Silence

bool Inquiry::Watches(int rank) const {
  return peers_.endpoint(rank) != nullptr && !decision_.left(rank) && peers_.member(rank).answers;
}

bool Inquiry::TakeReceived(int rank) {
  const uint64_t now = peers_.endpoint(rank)->received();
  return std::exchange(received_[static_cast<size_t>(rank)], now) != now;
}

const CallWork* Inquiry::Untold() const {
  const CallWork* untold = nullptr;
  for (const CallWork* work : open_.works()) {
    const CallKind kind = work->call().named().kind;
    const bool gathers = kind == CallKind::kGather || kind == CallKind::kReduce;
    if (gathers && work->started_ns() > told_ns_ &&
        (untold == nullptr || work->started_ns() < untold->started_ns())) {
      untold = work;
    }
  }
  return untold;
}

// If all ranks have started the call, and two of them differ, then two neighbours differ.
void Inquiry::Tell(const CallWork& work) {
  told_ns_ = work.started_ns();
  const CallId call{work.wiring().user_tag, work.wiring().call_number};
  int last = peers_.rank();
  for (const int step : {1, peers_.size() - 1}) {
    int r = (peers_.rank() + step) % peers_.size();
    while (r != peers_.rank() && decision_.left(r)) {
      r = (r + step) % peers_.size();
    }
    if (r != peers_.rank() && r != last) {
      AskOne(r, {kNoNonce, Asked::kCollective, call, work.call().descriptor()});
      last = r;
    }
  }
}

CallWork* Inquiry::Unwarned() const {
  CallWork* const oldest = open_.OldestCollective();
  return oldest != nullptr && oldest->started_ns() > warned_ns_ ? oldest : nullptr;
}

Deadline Inquiry::NextWatch() const {
  const auto after = [](const CallWork* work, int64_t ns) {
    return work == nullptr ? Deadline::Never() : Deadline::From(work->started_ns(), ns);
  };
  return std::min({NextQuestion(), after(Untold(), kCompareNs), after(Unwarned(), kWarnNs)});
}

Deadline Inquiry::NextQuestion() const {
  const int64_t allowed = silence_ns();
  const CallWork* const oldest = allowed > 0 ? open_.Oldest() : nullptr;
  if (oldest == nullptr) {
    return Deadline::Never();
  }
  if (oldest->started_ns() != watched_since_ns_) {
    return Deadline::From(oldest->started_ns(), allowed / PeerSilence::kQuestionsPerSilence);
  }
  Deadline next = silence_.ask_at();
  for (int r = 0; r < peers_.size(); ++r) {
    if (Watches(r)) {
      next = std::min(next, silence_.SilentAt(r));
    }
  }
  return next;
}

void Inquiry::Watch(int64_t now_ns) {
  if (const CallWork* const untold = Untold();
      untold != nullptr && now_ns - untold->started_ns() >= kCompareNs) {
    Tell(*untold);
  }
  if (CallWork* const unwarned = Unwarned();
      unwarned != nullptr && now_ns - unwarned->started_ns() >= kWarnNs) {
    warned_ns_ = unwarned->started_ns();
    warns_ = Ask(unwarned, now_ns, BlameDecision::kAnswerToOthersNs);
  }
  const int64_t allowed = silence_ns();
  const CallWork* const oldest = allowed > 0 ? open_.Oldest() : nullptr;
  if (oldest == nullptr ||
      now_ns - oldest->started_ns() < allowed / PeerSilence::kQuestionsPerSilence) {
    watched_since_ns_ = 0;
    return;
  }
  if (oldest->started_ns() != watched_since_ns_) {
    watched_since_ns_ = oldest->started_ns();
    silence_.Begin(watched_since_ns_, allowed + 2 * peers_.SlowestRoundTrip());
  }
  silence_.OnEvent(now_ns);
  const bool asks = silence_.TakeQuestion(now_ns);
  std::vector<int32_t> silent;
  for (int r = 0; r < peers_.size(); ++r) {
    if (!Watches(r)) {
      continue;
    }
    if (TakeReceived(r)) {
      silence_.OnHeard(r, now_ns);
    }
    if (silence_.SilentAt(r).Passed(now_ns)) {
      silent.push_back(r);
    }
    if (asks) {
      AskOne(r, {kNoNonce, Asked::kCollective, CallFunnel::kPing, Descriptor()});
    }
  }
  if (!silent.empty()) {
    End(words_.Silent(*oldest, silent, allowed, now_ns));
  }
}

// ---- Questions

bool Inquiry::AsksForOthers() const {
  return decision_.inquiring() && asked_ != nullptr && !asked_->inquired;
}

void Inquiry::Expire(CallWork* work, int64_t now_ns) {
  if (const Running running = open_.HeldUpByFunction(*work, now_ns); running.work != nullptr) {
    // This rank knows the reason, so it need not ask the other ranks.
    End(words_.TimedOut(*work, words_.FindingOf(running, now_ns), now_ns));
    return;
  }
  // Only one inquiry runs at a time. The running one may be:
  //   about another expired call: Expire is called again for this call when that inquiry ends
  //   for callers of FindOut, about another call: it is stopped here
  //   for callers of FindOut, about this call: this rank uses its answer
  if (AsksForOthers() && work != asked_) {
    decision_.OnFinished();
  }
  work->inquired = work == asked_ || Ask(work, now_ns, BlameDecision::kAnswerNs);
}

bool Inquiry::Ask(CallWork* work, int64_t now_ns, int64_t answer_ns) {
  const Wiring& wiring = work->wiring();
  // For a send or receive, only the peer knows the message. The query to the other members is about
  // kPing, which tests whether they answer. A receive in a line (call_funnel.h) has no number yet.
  // Its query to each peer names the peer's next message. This is correct, because no message has
  // come for an earlier receive of the line.
  const auto query = decision_.OnExpired(
      wiring.point_to_point ? CallFunnel::kPing : CallId{wiring.user_tag, wiring.call_number},
      now_ns, answer_ns + 2 * peers_.SlowestRoundTrip());
  if (!query) {
    return false;
  }
  asked_ = work;
  const Descriptor mine = work->call().descriptor();
  for (int r = 0; r < peers_.size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr || decision_.left(r)) {
      continue;
    }
    const bool peer = wiring.point_to_point && (r == work->peer() || work->peer() < 0);
    const Asked asked = !peer                                  ? Asked::kCollective
                        : work->call().kind == CallKind::kSend ? Asked::kRecv
                                                               : Asked::kSend;
    const CallId about = peer ? funnel_.CallIdWith(*work, r) : query->call;
    TakeReceived(r);
    AskOne(r, {query->nonce, asked, about, mine});
  }
  return true;
}

Deadline Inquiry::FindOut(int64_t now_ns) {
  if (!decision_.inquiring() && !open_.empty()) {
    Ask(open_.Oldest(), now_ns, BlameDecision::kAnswerToOthersNs);
  }
  return decision_.until();
}

bool Inquiry::OnAnswer(int rank, Reader& reader, int64_t now_ns) {
  using Answer = BlameDecision::Answer;
  const auto nonce = reader.Get<uint32_t>();
  auto answer = reader.Get<Answer>();
  const auto more_ns = reader.Get<int64_t>();
  const auto tag = reader.Get<uint32_t>();
  const CallId instead{tag, reader.Get<uint32_t>()};
  const auto excuse = DecodeStatus(reader.GetText(kMaxControlBytes));
  if (!reader.Finished() || answer == Answer::kNone || answer > Answer::kAbsent || !excuse) {
    return false;
  }
  if (answer == Answer::kExcused && excuse->ok()) {
    answer = Answer::kAbsent;
  }
  Deadline more_by{0};
  if (answer == Answer::kElsewhere) {
    more_by = {now_ns + std::clamp<int64_t>(more_ns, 0, kLongestMoreNs) +
               peers_.endpoint(rank)->round_trip_ns() + kSlackNs};
  }
  if (!decision_.OnAnswer(rank, nonce, answer, more_by)) {
    return false;
  }
  excuses_[static_cast<size_t>(rank)] = *excuse;
  instead_[static_cast<size_t>(rank)] = instead;
  return decision_.next_tick().Passed(now_ns);
}

bool Inquiry::OnFinished(const CallWork* work) {
  if (work != asked_) {
    return false;
  }
  asked_ = nullptr;
  warns_ = false;
  decision_.OnFinished();
  Found(absl::OkStatus());
  return true;
}

void Inquiry::Stop(const absl::Status& why) {
  asked_ = nullptr;
  warns_ = false;
  Found(why);
}

// ---- Verdicts

void Inquiry::OnTick(int64_t now_ns) {
  if (decision_.inquiring() && decision_.until().Passed(now_ns)) {
    for (int r = 0; r < peers_.size(); ++r) {
      if (Watches(r) && TakeReceived(r)) {
        decision_.OnBytes(r);
      }
    }
  }
  if (const auto verdict = decision_.OnTick(now_ns)) {
    TakeVerdict(*verdict, now_ns);
  } else if (NextWatch().Passed(now_ns)) {
    Watch(now_ns);
  }
}

void Inquiry::OnLost(int rank, const absl::Status& why, int64_t now_ns) {
  if (!decision_.losing()) {
    lost_why_ = why;
  }
  // If the peer has already reported an error, no better reason will come, so do not wait.
  const bool told = !CauseOf(rank).ok();
  decision_.OnLost(rank, now_ns, told ? 0 : BlameDecision::kGraceNs + peers_.SlowestRoundTrip());
}

void Inquiry::Warn(const CallWork& work, const Finding& finding, int64_t now_ns) {
  const auto member = static_cast<size_t>(finding.awaited);
  if (finding.awaited < 0 || instead_[member] == CallFunnel::kPing ||
      funnel_.HasMade(finding.awaited, Asked::kCollective, instead_[member])) {
    return;
  }
  Todo().warning =
      absl::StrCat("rank ", peers_.rank(), " has waited ", (now_ns - work.started_ns()) / kSecond,
                   " s: ", words_.HeldUp(work, finding).message(),
                   ". If no thread makes the missing call, both wait until a deadline");
}

void Inquiry::TakeVerdict(const BlameDecision::Verdict& verdict, int64_t now_ns) {
  if (verdict.lost) {
    End(Loss(verdict.guilty, lost_why_));
    return;
  }
  CallWork* const work = std::exchange(asked_, nullptr);
  const bool warns = std::exchange(warns_, false);
  if (work == nullptr) {
    return;
  }
  Finding finding = FindingOf(*work, verdict, now_ns);
  if (work->inquired) {
    finding.blame.late.assign(verdict.late.begin(), verdict.late.end());
    finding.blame.late_ranks = static_cast<int32_t>(verdict.late.size());
    End(words_.TimedOut(*work, finding, now_ns));
  } else {
    if (warns) {
      Warn(*work, finding, now_ns);
    }
    Found(finding.awaited < 0 ? absl::OkStatus() : words_.HeldUp(*work, finding));
  }
}

Finding Inquiry::FindingOf(const CallWork& work, const BlameDecision::Verdict& verdict,
                           int64_t now_ns) const {
  using Answer = BlameDecision::Answer;
  Finding finding{verdict.guilty, verdict.reason,
                  words_.BlameFor(&work, verdict.guilty, Phase::kTransfer)};
  const bool message = work.wiring().point_to_point;
  if (verdict.guilty < 0) {
    return FindingOfNobody(work, std::move(finding), now_ns);
  }
  const bool answers = verdict.answer != Answer::kNone;
  const bool from_any = message && work.peer() < 0 && peers_.size() > 2;
  if (from_any && answers && !verdict.late.empty()) {
    // Each of the late ranks could be the missing sender.
    finding.awaited = -1;
    finding.blame = words_.BlameFor(&work, -1, Phase::kTransfer);
    finding.reason = absl::StrCat("nothing has come from ", words_.RankList(verdict.late));
    return finding;
  }
  if (message && answers && !from_any && (verdict.guilty == work.peer() || work.peer() < 0)) {
    finding.reason = "it has not made the matching call";
  }
  const auto member = static_cast<size_t>(verdict.guilty);
  // If a member has left, the reason may be a failure that the member has reported before.
  const absl::Status excuse =
      verdict.answer == Answer::kExcused
          ? excuses_[member]
          : (decision_.left(verdict.guilty) ? CauseOf(verdict.guilty) : absl::OkStatus());
  if (!excuse.ok()) {
    absl::StrAppend(&finding.reason, ": ", excuse.message());
    finding.blame = words_.WithCall(words_.BlameHere(excuse), work);
  } else if (verdict.answer == Answer::kElsewhere) {
    absl::StrAppend(&finding.reason,
                    ", and waits in one of another communicator: who is guilty cannot be known");
    finding.blame = words_.BlameFor(&work, -1, Phase::kTransfer);
  } else if (IsDue(verdict.guilty, refusals_[member])) {
    absl::StrAppend(&finding.reason, ": its call failed: ", refusals_[member].why);
  } else if (verdict.answer == Answer::kAbsent && !excuses_[member].ok()) {
    absl::StrAppend(&finding.reason, " (", excuses_[member].message(), ")");
  }
  return finding;
}

Finding Inquiry::FindingOfNobody(const CallWork& work, Finding finding, int64_t now_ns) const {
  if (const Running running = open_.HeldUpByFunction(work, now_ns); running.work != nullptr) {
    return words_.FindingOf(running, now_ns);
  }
  // All ranks have started the call. A member may still be in a function of its caller.
  for (int r = 0; r < peers_.size(); ++r) {
    const absl::Status& excuse = excuses_[static_cast<size_t>(r)];
    if (r != peers_.rank() && !decision_.left(r) && !excuse.ok()) {
      return {r, std::string(excuse.message()), words_.BlameFor(&work, r, Phase::kReduce)};
    }
  }
  const int from = work.WaitingFor();
  absl::StrAppend(&finding.reason,
                  from < 0 ? "" : absl::StrCat("; waiting for ", peers_.NameOf(from)));
  return finding;
}

absl::Status Inquiry::Loss(int rank, const absl::Status& path) const {
  const Refusal& refusal = refusals_[static_cast<size_t>(rank)];
  return words_.Loss(rank, path, open_.first(), IsDue(rank, refusal) ? refusal.why : "",
                     CauseOf(rank));
}

// ---- Calls that members could not start

void Inquiry::OnRefused(int rank, Reader& reader) {
  Refusal refusal;
  refusal.kind = reader.Get<Asked>();
  refusal.call.user_tag = reader.Get<uint32_t>();
  refusal.call.number = reader.Get<uint32_t>();
  refusal.why = CleanText(reader.GetText(Refusal::kMaxWhy));
  if (reader.Finished() && refusal.kind <= Asked::kRecv) {
    refusals_[static_cast<size_t>(rank)] = std::move(refusal);
  }
}

bool Inquiry::IsDue(int rank, const Refusal& refusal) const {
  if (refusal.why.empty()) {
    return false;
  }
  const bool collective = refusal.kind == Asked::kCollective;
  if (open_.empty()) {
    return collective && !funnel_.HasStarted(refusal.call);
  }
  return std::any_of(open_.works().begin(), open_.works().end(), [&](const CallWork* work) {
    const bool message = work->wiring().point_to_point;
    const bool receives = work->call().kind != CallKind::kSend;
    return message != collective && funnel_.CallIdWith(*work, rank) == refusal.call &&
           (collective || (receives == (refusal.kind == Asked::kSend) &&
                           (work->peer() == rank || work->peer() < 0)));
  });
}

}  // namespace entrain
