#include "lib/comm/call_runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/log.h"
#include "lib/comm/call_funnel.h"

namespace entrain {
namespace {

// Adds to a sum. The driver is the only thread that writes the sum. Other threads read it.
void Add(std::atomic<uint64_t>& sum, int64_t more) {
  sum.store(sum.load(std::memory_order_relaxed) + static_cast<uint64_t>(more),
            std::memory_order_relaxed);
}

constexpr int64_t kMaxKeptScratch = 64 << 10;

CallId IdOf(const Wiring& call) {
  return {call.user_tag, call.call_number};
}

}  // namespace

// A work that is over when the vote is over, for an inline call whose messages were all
// transferred. Only the driver waits for this work, so Finish wakes no thread.
class CallRunner::VoteWork final : public Work {
 public:
  VoteWork() : Work(nullptr) {}
  using Work::Finish;
};

CallRunner::CallRunner(CommShell& shell, std::shared_ptr<Engine> engine, const Parts& parts,
                       bool pays)
    : shell_(shell), engine_(std::move(engine)), with_(parts), pays_(pays) {}

CallRunner::~CallRunner() = default;

// ---- Calls begin

RefPtr<CallWork> CallRunner::Prepare(Admitted admitted, CallBegin begin) {
  auto work = RefPtr<CallWork>::Adopt(new CallWork(*engine_, shell_.Keep(), with_.config.name,
                                                   std::move(admitted), std::move(begin)));
  work->flight = with_.flight.Begin(work->flight_call());
  work->AddRef();  // the engine's reference, released when the work is over
  engine_->seat().CountOpenWork(1);
  return work;
}

RefPtr<CallWork> CallRunner::Submit(Admitted admitted, CallBegin begin) {
  auto work = Prepare(std::move(admitted), std::move(begin));
  engine_->seat().Submit(work.get());
  return work;
}

void CallRunner::StartWork(CallWork* work) {
  work->started = true;
  with_.open.Add(work);
  if (with_.end.ended()) {
    if (!work->from().lent.empty()) {
      // The inline path has sent RTS messages that name the caller's buffers. Fail revokes the
      // context, so peers stop reading these buffers before the caller gets them back.
      shell_.Fail(with_.end.status());
    }
    if (with_.open.Has(work)) {
      Finish(work, with_.end.status());
    }
    return;
  }
  if (work->waits()) {
    shell_.NeedAttention();
    return;
  }
  Meet(work->wiring(), work->call().descriptor());
  if (work->call().reduction.op == ReduceOp::kCustom) {
    work->executor().CombineBy(
        {engine_, with_.funnel.Reductions(),
         std::make_shared<const std::string>(with_.words.ReductionOf(*work))});
  }
  work->executor().Start(work->from());
  Record(work, work->flight_state());
  work->ready = true;  // Start may have completed the call
  shell_.NeedAttention();
}

// ---- Inline calls

bool CallRunner::InlinePays(const Topology& topology, const Paths& paths) {
  constexpr size_t kFewRanks = 8;
  return (topology.hosts == 1 && paths.inside <= Link::kShm) ||
         topology.host_of.size() <= kFewRanks;
}

bool CallRunner::MayRunInline(const Call& call) const {
  return pays_.load(std::memory_order_relaxed) && !call.options.background &&
         call.kind != CallKind::kRecvAny && call.reduction.op != ReduceOp::kCustom &&
         !ContributionDiffers(call, with_.peers.size()) && !IsPacked(call);
}

std::optional<absl::Status> CallRunner::RunAgain(const CallKey& key, const void* in, void* out) {
  const CallCache::Query query(key, plans_made());
  if (!cache_.MayHold(query) || !pays_.load(std::memory_order_relaxed) ||
      !engine_->seat().TakeIfQuiet()) {
    return std::nullopt;
  }
  CachedCall* const cached = cache_.Find(query);
  if (cached == nullptr || !cached->Serves(in, out) || with_.funnel.ended() ||
      !ReserveScratch(cached->plan->slot_bytes)) {
    engine_->seat().Leave();
    return std::nullopt;
  }
  cached->call.in.data = const_cast<void*>(in);
  cached->call.out.data = out;
  with_.funnel.Number(cached->series, &cached->wiring);
  InlineCall call(*cached->plan, cached->call, cached->descriptor, cached->wiring, BestKernels(),
                  scratch_.data());
  const InlineEnd end = call.Run(engine_->seat());
  if (end == InlineEnd::kDone) {
    return OverInline(cached->call, *cached->plan, cached->descriptor, cached->wiring,
                      call.progress());
  }
  return GoOn(end, cached->call, {cached->plan, std::move(scratch_), cached->wiring},
              call.progress());
}

std::optional<absl::Status> CallRunner::Run(const Call& call) {
  if (!MayRunInline(call) || !engine_->seat().TakeIfQuiet()) {
    return std::nullopt;
  }
  // Must be read before Admit. If Forget is called during Admit, the plan may be out of date. The
  // plan then has an older number in the cache, so the cache does not use it again.
  const uint64_t made = plans_made();
  with_.pool.Give(std::move(scratch_));
  Admitted admitted;
  const absl::Status status = with_.funnel.Admit(call, &admitted);
  if (!status.ok() || admitted.waits) {
    engine_->seat().Leave();
    return status.ok() ? std::nullopt : std::optional(status);
  }
  if (!admitted.plan->fits_inline) {
    return GoOn(InlineEnd::kNoFit, call, std::move(admitted), {});
  }
  const Descriptor descriptor = call.descriptor();
  if (CachedCall::MayRepeat(call)) {
    cache_.Keep(CachedCall(call, descriptor, admitted.wiring, made, admitted.plan));
  }
  InlineCall inlined(*admitted.plan, call, descriptor, admitted.wiring, BestKernels(),
                     admitted.scratch.data());
  if (const InlineEnd end = inlined.Run(engine_->seat()); end != InlineEnd::kDone) {
    return GoOn(end, call, std::move(admitted), inlined.progress());
  }
  scratch_ = std::move(admitted.scratch);
  return OverInline(call, *admitted.plan, descriptor, admitted.wiring, inlined.progress());
}

bool CallRunner::ReserveScratch(int64_t bytes) {
  if (bytes <= scratch_.size()) {
    return true;
  }
  with_.pool.Give(std::move(scratch_));
  absl::StatusOr<OwnedBuffer> taken = with_.pool.Take(bytes);
  if (!taken.ok()) {
    return false;  // the caller then calls Run, and Admit returns the error
  }
  scratch_ = *std::move(taken);
  return true;
}

absl::Status CallRunner::OverInline(const Call& call, const Plan& plan,
                                    const Descriptor& descriptor, const Wiring& wiring,
                                    const Progress& progress) {
  with_.flight.Inline(call.kind, descriptor, wiring.sequence + 1, call.root, wiring.user_tag,
                      plan.algorithm);
  if (scratch_.size() > kMaxKeptScratch) {
    with_.pool.Give(std::move(scratch_));
  }
  Add(ends_[static_cast<size_t>(InlineEnd::kDone)], 1);
  Add(bytes_sent_, progress.bytes_sent);
  Add(bytes_received_, progress.bytes_received);
  NoteOver(wiring, descriptor);
  Meet(wiring, descriptor);
  if (with_.mismatches.voting()) {
    return AwaitVote();
  }
  if (engine_->causes().told()) {
    engine_->causes().Succeeded(engine_->clock().Now());
  }
  engine_->seat().Leave();
  return absl::OkStatus();
}

absl::Status CallRunner::AwaitVote() {
  const std::shared_ptr<CommShell> keep = shell_.Keep();
  if (!vote_end_) {
    vote_end_ = RefPtr<VoteWork>::Adopt(new VoteWork());
  }
  const RefPtr<Work> end = RefPtr<Work>::Share(vote_end_.get());
  shell_.NeedAttention();  // this rank can vote now
  engine_->seat().Stay(*end);
  return with_.end.status();
}

absl::Status CallRunner::GoOn(InlineEnd why, const Call& call, Admitted admitted,
                              const Progress& progress) {
  Add(ends_[static_cast<size_t>(why)], 1);
  if (why != InlineEnd::kNoFit) {
    ENTRAIN_LOG(kDebug, NameOf(call.kind), " does not end inline: ", SentenceOf(why));
  }
  const int64_t now = engine_->clock().Now();
  Call rest = call;
  with_.funnel.SetDeadline(&rest, now);
  // The start of the call is the deadline minus the timeout, but not later than `now`. If the
  // caller has set the deadline, the call started before `now`.
  const CallOptions& options = rest.options;
  const std::shared_ptr<CommShell> keep =
      shell_.Keep();  // keeps the communicator until the call ends
  const auto work =
      Prepare(std::move(admitted),
              {rest, {}, progress, std::min(now, options.deadline.at_ns - options.timeout_ns)});
  // Start the call here and not in a job. Jobs that wait for this driver must find the call open.
  StartWork(work.get());
  engine_->seat().Stay(*work);
  return work->status();
}

// ---- Receives in line

int CallRunner::SenderTo(uint32_t tag) {
  const int size = with_.peers.size();
  for (int i = 1; i <= size; ++i) {
    // Begin with the rank after the last sender, so that no peer starves.
    const int r = (last_source_ + i) % size;
    const Endpoint* const endpoint = with_.peers.endpoint(r);
    if (endpoint != nullptr &&
        endpoint->HasEarly(
            Tag(with_.config.context, tag, with_.funnel.NextFrom(tag, r), Tag::kPointToPoint))) {
      return last_source_ = r;
    }
  }
  return -1;
}

int CallRunner::LastOfAllGone() const {
  int last = -1;
  for (int r = 0; r < with_.peers.size(); ++r) {
    const Endpoint* const endpoint = with_.peers.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    if (!with_.inquiry.left(r) || engine_->PathStatus(endpoint).ok()) {
      return -1;
    }
    last = r;
  }
  return last;
}

void CallRunner::TendLines() {
  const std::vector<CallWork*> begun =
      with_.funnel.TakeTurns([this](uint32_t tag) { return SenderTo(tag); });
  with_.open.LeftLine(begun.size());
  for (CallWork* work : begun) {
    work->executor().Start();
    with_.flight.Number(work->flight, work->number(), work->peer());
    Record(work, work->flight_state());
    work->ready = true;
  }
  // If a receive has just begun, do not fail. Its sender may have sent the message before the
  // sender left.
  const int gone = begun.empty() && with_.open.in_line() > 0 ? LastOfAllGone() : -1;
  if (gone >= 0) {
    shell_.Fail(with_.inquiry.Loss(gone, engine_->PathStatus(with_.peers.endpoint(gone))));
  }
}

// ---- Calls go on

void CallRunner::Attend() {
  if (with_.open.in_line() > 0) {
    TendLines();
  }
  CompleteReady();
  for (size_t i = 0; i < draining_.size();) {
    CallWork* const work = draining_[i];
    if (work->executor().pending() > 0) {
      ++i;
      continue;
    }
    draining_[i] = draining_.back();
    draining_.pop_back();
    work->GiveBuffers(with_.pool);
    work->Release();
  }
}

void CallRunner::CompleteReady() {
  // Finish removes the call at index i, and the next call moves to i. If the communicator fails in
  // this loop, all calls are removed.
  for (size_t i = 0; i < with_.open.size();) {
    CallWork* const work = with_.open[i];
    if (!std::exchange(work->ready, false)) {
      ++i;
    } else if (!work->executor().Advance()) {
      Record(work, work->flight_state());
      ++i;
    } else if (work->executor().status().ok() && work->executor().reduction_failed() == 0) {
      Finish(work, absl::OkStatus());
    } else {
      OnBroken(*work);
      ++i;
    }
  }
}

void CallRunner::OnBroken(const CallWork& work) {
  if (work.executor().reduction_failed() != 0) {
    shell_.Fail(with_.words.ReductionFailed(work));
    return;
  }
  const absl::Status& cause = work.executor().status();
  const int peer = work.WaitingFor();
  const bool gone =
      cause.code() == absl::StatusCode::kUnavailable || cause.code() == absl::StatusCode::kAborted;
  if (gone && peer >= 0 && with_.inquiry.left(peer)) {
    shell_.Fail(with_.inquiry.Loss(peer, cause));
  } else if (gone && peer >= 0) {
    with_.mismatches.OnGone(peer);
    shell_.NeedAttention();
    // The verdict of the inquiry ends the call.
    with_.inquiry.OnLost(peer, cause, engine_->clock().Now());
  } else if (cause.code() == absl::StatusCode::kDataLoss && !work.wiring().point_to_point) {
    with_.mismatches.FoundBetweenTwo(IdOf(work.wiring()), with_.words.Explain(work, cause),
                                     VoteLimit());
    shell_.NeedAttention();
  } else {
    shell_.Fail(with_.words.Explain(work, cause));
  }
}

// ---- Calls are over

void CallRunner::Finish(CallWork* work, const absl::Status& status) {
  with_.open.Remove(work);
  Record(work, status.ok() ? FlightState::kDone : FlightState::kFailed);
  if (work->waits()) {
    with_.funnel.LeaveLine(work);
  }
  if (status.ok() && work->call().source != nullptr) {
    *work->call().source = work->peer();
  }
  Add(bytes_sent_, work->executor().bytes_sent());
  Add(bytes_received_, work->executor().bytes_received());
  if (with_.inquiry.OnFinished(work)) {
    shell_.NeedAttention();
  }
  if (status.ok()) {
    NoteOver(work->wiring(), work->call().descriptor());
    engine_->causes().Succeeded(work->started_ns());
  }
  engine_->seat().CountOpenWork(-1);
  if (work->executor().pending() > 0) {
    draining_.push_back(work);
    work->Finish(status);
    return;
  }
  work->GiveBuffers(with_.pool);
  work->Finish(status);
  work->Release();
}

void CallRunner::Record(CallWork* work, FlightState state) {
  if (std::exchange(work->recorded, state) != state) {
    with_.flight.Enter(work->flight, state, engine_->clock().Roughly());
  }
}

void CallRunner::Stop(const absl::Status& why) {
  while (!with_.open.empty()) {
    CallWork* const work = with_.open.works().back();
    work->executor().Stop(why);
    Finish(work, with_.words.ForCall(why, *work));
  }
  notes_.Clear();
  VoteIsOver();
}

// ---- Calls that do not match

void CallRunner::Compare(const Endpoint& from, CallId call, const Descriptor& theirs) {
  if (const std::optional<OwnCall> mine = with_.open.OwnCollective(call)) {
    if (mine->descriptor != theirs) {
      Differs(call, from, theirs);
    }
  } else if (notes_.Hear(from, call, theirs) != nullptr) {
    Differs(call, from, theirs);
  }
}

void CallRunner::Meet(const Wiring& call, const Descriptor& mine) {
  if (call.point_to_point) {
    return;
  }
  if (const auto heard = notes_.Meet(IdOf(call), mine)) {
    Differs(IdOf(call), *heard->from, heard->descriptor);
  }
}

void CallRunner::NoteOver(const Wiring& call, const Descriptor& mine) {
  if (!call.point_to_point) {
    notes_.Over({IdOf(call), call.sequence, mine});
  }
}

void CallRunner::Differs(CallId call, const Endpoint& from, const Descriptor& theirs) {
  with_.mismatches.Found(call, with_.peers.RankOf(&from), theirs, VoteLimit());
  shell_.NeedAttention();
}

std::optional<OwnCall> CallRunner::Own(CallId call) const {
  if (const auto open = with_.open.OwnCollective(call)) {
    return open;
  }
  const OwnCall* const over = notes_.OwnThatIsOver(call);
  return over != nullptr ? std::optional(*over) : std::nullopt;
}

Deadline CallRunner::VoteLimit() const {
  return Mismatches::Until(engine_->clock().Now(), with_.peers.SlowestRoundTrip(),
                           with_.open.FirstDeadline());
}

void CallRunner::VoteIsOver() {
  if (vote_end_) {
    std::exchange(vote_end_, {})->Finish(absl::OkStatus());
  }
}

// ---- Reductions of the caller that take long

Deadline CallRunner::next_tick() const {
  const int64_t since = with_.open.RunningFunction().since_ns;
  return since == 0 || since == told_of_ns_ ? Deadline::Never() : Deadline{since + kSecond};
}

void CallRunner::OnTick(int64_t now_ns) {
  const Running running = with_.open.RunningFunction();
  if (running.work != nullptr && running.since_ns != told_of_ns_ &&
      now_ns - running.since_ns >= kSecond) {
    told_of_ns_ = running.since_ns;
    ENTRAIN_LOG(kWarning, with_.config.name, ": ", with_.words.ReductionOf(*running.work),
                " has been running for ", (now_ns - running.since_ns) / kMillisecond,
                " ms; the call waits for it until its deadline");
  }
}

}  // namespace entrain
