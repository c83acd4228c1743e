#include "lib/comm/comm_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/contribution.h"
#include "lib/comm/packed_call.h"

namespace entrain {
namespace {

constexpr int64_t kMaxKeptScratch = 64 << 10;
// Not a call: whoever is asked about it answers that it is there.
constexpr CallId kPing{0xffffffff, 0};

OwnCall OwnCallOf(const Wiring& call, const Descriptor& descriptor) {
  return {{call.user_tag, call.call_number}, call.sequence, descriptor};
}

// Of sums that only the driver changes.
void Add(std::atomic<uint64_t>& sum, int64_t more) {
  sum.store(sum.load(std::memory_order_relaxed) + static_cast<uint64_t>(more),
            std::memory_order_relaxed);
}

std::vector<std::string> HostIds(const std::vector<Member>& members) {
  std::vector<std::string> ids;
  for (const Member& member : members) {
    ids.push_back(member.host_id);
  }
  return ids;
}

// Whether looking at every peer again and again is cheap: in memory it is; of sockets each look is a
// system call, and more of them than this are better left to epoll.
bool ShortWayPays(const Topology& topology, const Paths& paths) {
  constexpr size_t kFewRanks = 8;
  return (topology.hosts == 1 && paths.inside <= Link::kShm) ||
         topology.host_of.size() <= kFewRanks;
}

// Out of place, where that matters.
Call CallLike(CallKind kind, int64_t count, DType dtype) {
  static char in, out;
  Call call;
  call.kind = kind;
  call.in.data = &in;
  call.out.data = &out;
  call.count = count;
  call.dtype = dtype;
  return call;
}

}  // namespace

// ---- CallWork

CallWork::CallWork(std::shared_ptr<CommCore> core, Admitted admitted, const Call& call,
                   OwnedBuffer staged, const Progress& from, int64_t started_ns, RefPtr<Work> whole,
                   const PartGroup* among)
    : Work(&core->engine()),
      core_(std::move(core)),
      among_(among),
      call_(call),
      wiring_(admitted.wiring),
      started_ns_(started_ns),
      from_(from),
      executor_(std::move(admitted.plan), call, admitted.wiring, BestKernels(),
                std::move(admitted.scratch),
                [this] {
                  ready_ = true;
                  core_->NeedAttention();
                }),
      staged_(std::move(staged)),
      whole_(std::move(whole)) {}

int CallWork::WaitingFor() const {
  const int place = executor_.WaitingFor();
  return among_ == nullptr || place < 0 ? place : among_->group.ranks[static_cast<size_t>(place)];
}

void CallWork::Run() {
  core_->StartWork(this);
}

// ---- Any thread

CommCore::CommCore(std::shared_ptr<Engine> engine, BufferPool& pool, CoreConfig config)
    : engine_holder_(std::move(engine)),
      engine_(*engine_holder_),
      pool_(pool),
      config_(std::move(config)),
      topology_(Topology::FromHostIds(HostIds(config_.members))),
      short_way_(ShortWayPays(topology_, config_.paths)),
      planner_(config_.rank, topology_, config_.overrides, config_.tuning, config_.paths,
               config_.determinism),
      next_untagged_message_(2 * config_.members.size()),
      membership_(config_.rank, static_cast<int>(config_.members.size())) {
  for (const Member& member : config_.members) {
    endpoints_.push_back(member.endpoint);
    contexts_.push_back(member.context);
  }
}

Wiring CommCore::Number(const Call& call) {
  Wiring wiring{endpoints_, contexts_, config_.context};
  const bool tagged = call.options.user_tag >= 0;
  wiring.user_tag = tagged ? static_cast<uint32_t>(call.options.user_tag) : Tag::kUntagged;
  wiring.point_to_point = IsMessage(call.kind);
  if (wiring.point_to_point) {
    wiring.sequence =
        tagged
            ? next_message_[{wiring.user_tag, static_cast<uint32_t>(WayOf(call.kind, call.root))}]++
            : NextMessage(call.kind, call.root);
  } else {
    wiring.sequence = tagged ? next_call_[wiring.user_tag]++
                             : next_untagged_.fetch_add(1, std::memory_order_relaxed);
  }
  wiring.call_number = static_cast<uint32_t>(wiring.sequence) & Tag::kCallMask;
  return wiring;
}

absl::StatusOr<OwnedBuffer> CommCore::Stage(Call* call) {
  if (call->in.bytes == 0) {
    return OwnedBuffer();
  }
  ENTRAIN_ASSIGN_OR_RETURN(OwnedBuffer staged, pool_.Take(call->in.bytes));
  Contribute(*call, staged.data(), call->in.data, call->in.bytes / SizeOf(call->dtype));
  call->in.data = staged.data();
  return staged;
}

absl::Status CommCore::Furnish(Planner& planner, const Call& call, Admitted* admitted) {
  if (!status_.ok()) {
    return status_;
  }
  ENTRAIN_ASSIGN_OR_RETURN(admitted->plan, planner.PlanFor(call));
  const Plan& plan = *admitted->plan;
  if (plan.slot_bytes > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(admitted->scratch, pool_.Take(plan.slot_bytes * plan.window));
  }
  return absl::OkStatus();
}

absl::Status CommCore::Admit(const Call& call, Admitted* admitted) {
  // Before the call gets its number: a shortage here harms this call only.
  ENTRAIN_RETURN_IF_ERROR(Furnish(planner_, call, admitted));
  admitted->wiring = Number(call);
  return absl::OkStatus();
}

RefPtr<CallWork> CommCore::Prepare(const Call& call, Admitted admitted, OwnedBuffer staged,
                                   const Progress& from, int64_t now_ns, RefPtr<Work> whole,
                                   const PartGroup* among) {
  const bool is_part = static_cast<bool>(whole);
  auto work = RefPtr<CallWork>::Adopt(new CallWork(shared_from_this(), std::move(admitted), call,
                                                   std::move(staged), from, now_ns,
                                                   std::move(whole), among));
  work->AddRef();  // the engine's, given up in FinishWork
  engine_.CountOpenWork(1);
  calls_.fetch_add(is_part ? 0 : 1, std::memory_order_relaxed);
  return work;
}

void CommCore::SetDeadline(Call* call, int64_t now_ns) const {
  if (call->options.timeout_ns == 0) {
    call->options.timeout_ns = config_.timeout_ns;
  }
  if (call->options.deadline.at_ns == Deadline::Never().at_ns) {
    call->options.deadline = Deadline::From(now_ns, call->options.timeout_ns);
  }
}

absl::StatusOr<RefPtr<Work>> CommCore::Start(Call call, bool kick) {
  if (ended_.load(std::memory_order_acquire)) {
    return status();
  }
  const int64_t now = engine_.clock().Now();
  SetDeadline(&call, now);
  if (PackedCall::Is(call)) {
    ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> whole, StartPacked(call, now));
    if (kick) {
      engine_.Kick();
    }
    return whole;
  }
  OwnedBuffer staged;
  if (ContributionDiffers(call, size())) {
    ENTRAIN_ASSIGN_OR_RETURN(staged, Stage(&call));
  }
  RefPtr<Work> work;
  {
    absl::MutexLock lock(&mutex_);
    Admitted admitted;
    ENTRAIN_RETURN_IF_ERROR(Admit(call, &admitted));
    auto prepared = Prepare(call, std::move(admitted), std::move(staged), {}, now);
    engine_.Submit(prepared.get());
    work = RefPtr<Work>::Adopt(prepared.Leak());
  }
  if (kick) {
    engine_.Kick();
  }
  return work;
}

absl::StatusOr<std::vector<Wiring>> CommCore::TakeNumbers(const Call& call, size_t count) {
  std::vector<Wiring> numbers;
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) {
    return status_;
  }
  while (numbers.size() < count) {
    numbers.push_back(Number(call));
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  return numbers;
}

absl::StatusOr<RefPtr<Work>> CommCore::StartPacked(const Call& call, int64_t now_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<PackedCall> packed,
                           PackedCall::Make(shared_from_this(), call, now_ns));
  ENTRAIN_ASSIGN_OR_RETURN(std::vector<Wiring> numbers,
                           TakeNumbers(call, PackedCall::PartsOf(call)));
  if (const absl::Status status = packed->Begin(std::move(numbers)); !status.ok()) {
    EndHere(status);  // the others wait for it
    return status;
  }
  return RefPtr<Work>::Adopt(packed.Leak());
}

absl::StatusOr<RefPtr<Work>> CommCore::LaunchPart(const Call& part, const Wiring& number,
                                                  RefPtr<Work> whole, int64_t started_ns,
                                                  PartGroup* among) {
  Admitted admitted;
  {
    absl::MutexLock lock(&mutex_);
    ENTRAIN_RETURN_IF_ERROR(Furnish(among == nullptr ? planner_ : among->planner, part, &admitted));
  }
  admitted.wiring = number;
  if (among != nullptr) {
    admitted.wiring.endpoints = among->endpoints;
    admitted.wiring.contexts = among->contexts;
  }
  auto work = Prepare(part, std::move(admitted), {}, {}, started_ns, std::move(whole), among);
  engine_.Submit(work.get());
  return RefPtr<Work>::Adopt(work.Leak());
}

PartGroup* CommCore::AddGroup(Group group) {
  std::vector<std::string> hosts;
  std::vector<Endpoint*> endpoints;
  std::vector<Context> contexts;
  for (const int rank : group.ranks) {
    hosts.push_back(config_.members[static_cast<size_t>(rank)].host_id);
    endpoints.push_back(endpoints_[static_cast<size_t>(rank)]);
    contexts.push_back(contexts_[static_cast<size_t>(rank)]);
  }
  absl::MutexLock lock(&mutex_);
  Planner planner(group.me, Topology::FromHostIds(hosts), config_.overrides, config_.tuning,
                  planner_.paths(), config_.determinism);
  groups_.push_back(std::make_unique<PartGroup>(
      PartGroup{std::move(group), std::move(endpoints), std::move(contexts), std::move(planner)}));
  return groups_.back().get();
}

absl::Status CommCore::Run(const Call& call) {
  if (!short_way_.load(std::memory_order_relaxed) || call.options.background ||
      ContributionDiffers(call, size()) || PackedCall::Is(call) || !engine_.TakeIfQuiet()) {
    ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work, Start(call, false));
    work->Wait(Deadline::Never(), call.options.background);
    return work->status();
  }
  return RunExpress(call);
}

std::optional<absl::Status> CommCore::RunAgain(const Likeness& like, const void* in, void* out) {
  if (IsMessage(like.kind)) {
    return RunMessage(like, in, out);
  }
  if (!engine_.TakeIfQuiet()) {
    return std::nullopt;
  }
  LastCall& last = LastOf(like.kind);
  // No lock: what is looked at is the driver's, or atomic.
  if (last.plan == nullptr || !last.Is(like) || !last.Serves(in, out) ||
      last.plans_made != plans_made_.load(std::memory_order_acquire) ||
      last.plan->slot_bytes > short_scratch_.size() || ended_.load(std::memory_order_acquire)) {
    engine_.Leave();
    return std::nullopt;
  }
  last.call.in.data = const_cast<void*>(in);
  last.call.out.data = out;
  last.wiring.sequence = next_untagged_.fetch_add(1, std::memory_order_relaxed);
  last.wiring.call_number = static_cast<uint32_t>(last.wiring.sequence) & Tag::kCallMask;
  Express express(*last.plan, last.call, last.descriptor, last.wiring, BestKernels(),
                  short_scratch_.data());
  if (express.Run(engine_)) {
    const absl::Status status = TakeNote(last.descriptor, last.wiring, express.progress());
    engine_.Leave();
    return status;
  }
  return HandOver(last.call, {last.plan, std::move(short_scratch_), last.wiring},
                  express.progress());
}

absl::Status CommCore::RunExpress(const Call& call) {
  const uint64_t plans_made = plans_made_.load(std::memory_order_acquire);
  Admitted admitted;
  pool_.Give(std::move(short_scratch_));
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Admit(call, &admitted); !status.ok()) {
      engine_.Leave();
      return status;
    }
  }
  if (!admitted.plan->express) {
    return HandOver(call, std::move(admitted), {});
  }
  const Descriptor descriptor = call.descriptor();
  Express express(*admitted.plan, call, descriptor, admitted.wiring, BestKernels(),
                  admitted.scratch.data());
  if (!express.Run(engine_)) {
    return HandOver(call, std::move(admitted), express.progress());
  }
  if (admitted.scratch.size() <= kMaxKeptScratch) {
    short_scratch_ = std::move(admitted.scratch);
  } else {
    pool_.Give(std::move(admitted.scratch));
  }
  const absl::Status status = TakeNote(descriptor, admitted.wiring, express.progress());
  if (LastCall::MayRepeat(call)) {
    LastOf(call.kind) =
        LastCall(call, descriptor, admitted.wiring, plans_made, std::move(admitted.plan));
  }
  engine_.Leave();
  return status;
}

absl::Status CommCore::TakeNote(const Descriptor& descriptor, const Wiring& wiring,
                                const Progress& progress) {
  NoteOver(wiring, descriptor);
  CheckEarly(wiring, descriptor);
  if (mismatch_) {
    Attend();
    return status();
  }
  Add(express_calls_, 1);
  Add(bytes_sent_, progress.bytes_sent);
  Add(bytes_received_, progress.bytes_received);
  return absl::OkStatus();
}

absl::Status CommCore::HandOver(const Call& call, Admitted admitted, const Progress& progress) {
  const int64_t now = engine_.clock().Now();
  Call rest = call;
  SetDeadline(&rest, now);
  // A deadline of the call's own counts from when it was made, which was before.
  const CallOptions& options = rest.options;
  const auto work = Prepare(rest, std::move(admitted), {}, progress,
                            std::min(now, options.deadline.at_ns - options.timeout_ns));
  StartWork(work.get());  // at once: jobs that wait for this driver look for the calls under way
  engine_.Stay(*work);
  return work->status();
}

absl::Status CommCore::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void CommCore::SetStatus(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) {
    status_ = status;
  }
  ended_.store(true, std::memory_order_release);
}

bool CommCore::HasStarted(CallId call) const {
  if (call == kPing) {
    return true;
  }
  absl::MutexLock lock(&mutex_);
  const auto found = next_call_.find(call.user_tag);
  const uint64_t next = call.user_tag == Tag::kUntagged
                            ? next_untagged_.load(std::memory_order_relaxed)
                        : found == next_call_.end() ? 0
                                                    : found->second;
  // Modular: the number is behind ours, by no more than ranks can run ahead of each other.
  return next > 0 &&
         ((static_cast<uint32_t>(next) - 1 - call.number) & Tag::kCallMask) <= Tag::kCallMask / 2;
}

void CommCore::Abort(absl::string_view reason) {
  Blame blame;
  blame.rank = config_.rank;
  SetStatus(WithBlame(absl::AbortedError(absl::StrCat(config_.name, ": aborted by rank ",
                                                      config_.rank, ": ", reason)),
                      blame));
  EndHere(status());
}

void CommCore::EndHere(const absl::Status& why) {
  SetStatus(why);
  class EndJob final : public Job {
   public:
    explicit EndJob(std::shared_ptr<CommCore> core) : core_(std::move(core)) {}
    void Run() override {
      core_->Fail(core_->status(), true);
      delete this;
    }

   private:
    const std::shared_ptr<CommCore> core_;
  };
  engine_.Submit(new EndJob(shared_from_this()));
  engine_.Kick();
}

void CommCore::EndWith(const absl::Status& why) {
  Blame blame = BlameOf(why);
  blame.rank = -1;
  for (size_t r = 0; r < config_.members.size() && blame.peer_id != PeerId{}; ++r) {
    blame.rank = config_.members[r].id == blame.peer_id ? static_cast<int>(r) : blame.rank;
  }
  const bool ends =
      absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || absl::IsDataLoss(why);
  SetStatus(WithBlame(absl::Status(ends ? why.code() : absl::StatusCode::kAborted,
                                   absl::StrCat(config_.name, ": ended by rank ", config_.rank,
                                                ": ", why.message())),
                      blame));
  engine_.RunInDriver([this] {
    Fail(status(), true);
    engine_.Flush();
  });
}

absl::StatusOr<const char*> CommCore::AlgorithmFor(CallKind kind, int64_t count, DType dtype) {
  absl::MutexLock lock(&mutex_);
  ENTRAIN_ASSIGN_OR_RETURN(const auto plan, planner_.PlanFor(CallLike(kind, count, dtype)));
  return plan->algorithm;
}

absl::StatusOr<std::string> CommCore::Explain(CallKind kind, int64_t count, DType dtype) {
  absl::MutexLock lock(&mutex_);
  return planner_.Explain(CallLike(kind, count, dtype));
}

void CommCore::SetPaths(const Paths& paths) {
  short_way_.store(ShortWayPays(topology_, paths), std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  planner_.SetPaths(paths);
  plans_made_.fetch_add(1, std::memory_order_release);
}

void CommCore::SetProbed(const CostModel& model) {
  absl::MutexLock lock(&mutex_);
  planner_.SetProbed(model);
  plans_made_.fetch_add(1, std::memory_order_release);
}

CostModel CommCore::model() const {
  absl::MutexLock lock(&mutex_);
  return planner_.model();
}

Paths CommCore::paths() const {
  absl::MutexLock lock(&mutex_);
  return planner_.paths();
}

CommStats CommCore::stats() const {
  return {calls_.load(std::memory_order_relaxed) + express_calls_.load(std::memory_order_relaxed),
          bytes_sent_.load(std::memory_order_relaxed),
          bytes_received_.load(std::memory_order_relaxed)};
}

bool CommCore::Drain(Deadline give_up) {
  std::vector<RefPtr<Work>> works;
  engine_.RunInDriver([&] {
    for (CallWork* work : open_) {
      works.push_back(work->whole_ ? work->whole_ : RefPtr<Work>::Share(work));
    }
  });
  return std::all_of(works.begin(), works.end(), [&](auto& work) { return work->Wait(give_up); });
}

// ---- [driver] Calls

void CommCore::Open() {
  engine_.OpenContext(config_.context, shared_from_this());
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = endpoints_[static_cast<size_t>(r)];
    if (endpoint != nullptr && !engine_.PathStatus(endpoint).ok()) {
      OnLost(*endpoint, engine_.PathStatus(endpoint));
      return;
    }
  }
}

void CommCore::StartWork(CallWork* work) {
  open_.push_back(work);
  if (ended_.load(std::memory_order_acquire)) {
    if (!work->from_.lent.empty()) {
      Fail(status(), true);  // the peers must not take what the caller is about to have back
    }
    if (std::find(open_.begin(), open_.end(), work) != open_.end()) {
      FinishWork(work, status());
    }
    return;
  }
  CheckEarly(work->wiring_, work->call_.descriptor());
  work->executor_.Start(work->from_);
  work->ready_ = true;  // it may be over already
  NeedAttention();
}

void CommCore::NeedAttention() {
  if (!attending_) {
    attending_ = true;
    engine_.NeedAttention(this);
  }
}

void CommCore::Attend() {
  const std::shared_ptr<CommCore> keep = shared_from_this();
  attending_ = false;
  if (mismatch_) {
    Fail(*mismatch_, true);
  }
  CompleteReady();
  for (size_t i = 0; i < draining_.size();) {
    CallWork* const work = draining_[i];
    if (work->executor_.pending() > 0) {
      ++i;
      continue;
    }
    draining_[i] = draining_.back();
    draining_.pop_back();
    TakeBuffersBack(work);
    work->Release();
  }
}

void CommCore::TakeBuffersBack(CallWork* work) {
  pool_.Give(work->executor_.TakeScratch());
  pool_.Give(std::move(work->staged_));
}

void CommCore::CompleteReady() {
  // Finishing and failing change open_, so look again from the start after each.
  for (size_t i = 0; i < open_.size();) {
    CallWork* const work = open_[i];
    if (!work->ready_) {
      ++i;
      continue;
    }
    work->ready_ = false;
    if (!work->executor_.Advance()) {
      ++i;
      continue;
    }
    if (work->executor_.status().ok()) {
      FinishWork(work, absl::OkStatus());
      continue;
    }
    const absl::Status& cause = work->executor_.status();
    const int peer = work->WaitingFor();
    const bool gone = cause.code() == absl::StatusCode::kUnavailable ||
                      cause.code() == absl::StatusCode::kAborted;
    if (gone && peer >= 0 && !membership_.left(peer)) {
      OnLost(*endpoints_[static_cast<size_t>(peer)], cause);  // the verdict ends the call
      ++i;
      continue;
    }
    Fail(Explain(*work, cause), true);
    return;
  }
}

void CommCore::FinishWork(CallWork* work, const absl::Status& status) {
  open_.erase(std::find(open_.begin(), open_.end(), work));
  Add(bytes_sent_, work->executor_.bytes_sent());
  Add(bytes_received_, work->executor_.bytes_received());
  if (work->inquired_) {
    membership_.OnFinished();
  }
  if (status.ok()) {
    NoteOver(work->wiring_, work->call_.descriptor());
  }
  engine_.CountOpenWork(-1);
  if (work->executor_.pending() > 0) {
    draining_.push_back(work);
    work->Finish(status);
    return;
  }
  TakeBuffersBack(work);
  work->Finish(status);
  work->Release();
}

// ---- [driver] Endings

void CommCore::Fail(const absl::Status& why, bool tell) {
  const std::shared_ptr<CommCore> keep = shared_from_this();
  SetStatus(why);
  const absl::Status first = status();
  if (!engine_.Accepts(config_.context)) {
    return;  // ended before
  }
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = endpoints_[static_cast<size_t>(r)];
    if (endpoint == nullptr) {
      continue;
    }
    endpoint->Revoke(config_.context, contexts_[static_cast<size_t>(r)], first);
    if (tell && !membership_.left(r)) {
      endpoint->SendControl(Control(r, ControlKind::kAbort, EncodeStatus(first)));
    }
  }
  engine_.CloseContext(config_.context);
  engine_.NeedFlush();
  if (!open_.empty()) {
    ENTRAIN_LOG(kInfo, first.message());
  }
  while (!open_.empty()) {
    CallWork* const work = open_.back();
    work->executor_.Stop(first);
    FinishWork(work, ForCall(first, *work));
  }
  notes_.Clear();
}

void CommCore::Leave() {
  if (!engine_.Accepts(config_.context)) {
    return;
  }
  if (!open_.empty()) {
    Blame blame;
    blame.rank = config_.rank;
    Fail(WithBlame(absl::AbortedError(absl::StrCat(
                       config_.name, ": rank ", config_.rank, " destroyed the communicator with ",
                       open_.size(), " unfinished calls, first ", CallName(*open_.front()))),
                   blame),
         true);
    return;
  }
  const absl::Status why =
      absl::AbortedError(absl::StrCat(config_.name, ": the communicator was destroyed"));
  SetStatus(why);
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = endpoints_[static_cast<size_t>(r)];
    if (endpoint != nullptr) {
      endpoint->SendControl(Control(r, ControlKind::kLeave, {}));
      endpoint->Revoke(config_.context, contexts_[static_cast<size_t>(r)], why);
    }
  }
  engine_.CloseContext(config_.context);
}

std::string CommCore::UserOf(ConstBytes bytes) const {
  const auto touches = [&](const BufferView& buffer) {
    const auto* const data = static_cast<const std::byte*>(buffer.data);
    return buffer.bytes > 0 && data < bytes.data() + bytes.size() &&
           data + buffer.bytes > bytes.data();
  };
  for (const CallWork* work : open_) {
    if (touches(work->call_.named().in) || touches(work->call_.named().out)) {
      return absl::StrCat(CallName(*work), " on ", config_.name);
    }
  }
  return "";
}

void CommCore::OnShutdown() {
  if (!open_.empty()) {
    Fail(absl::AbortedError(absl::StrCat(config_.name, ": the runtime was destroyed")), true);
  } else {
    Leave();
  }
}

void CommCore::OnLost(Endpoint& from, const absl::Status& why) {
  const int rank = RankOf(&from);
  if (rank < 0 || membership_.left(rank)) {
    return;  // what still waits for it fails by its completions
  }
  if (!membership_.losing()) {
    lost_why_ = why;
  }
  membership_.OnLost(rank, engine_.clock().Now());
}

void CommCore::OnControl(Endpoint& from, absl::string_view message) {
  const int rank = RankOf(&from);
  Reader reader(message);
  const auto kind = reader.Get<ControlKind>();
  if (rank < 0 || !reader.ok()) {
    return;
  }
  if (kind == ControlKind::kAbort) {
    const std::optional<absl::Status> why = DecodeStatus(message.substr(1));
    Fail(why && !why->ok()
             ? *why
             : absl::AbortedError(absl::StrCat(config_.name, ": ", RankName(rank), " ended it")),
         true);  // passed on: whoever told us may be gone before it has told everybody
  } else if (kind == ControlKind::kLeave) {
    membership_.OnLeft(rank);
  } else if (kind == ControlKind::kQuery) {
    const auto nonce = reader.Get<uint32_t>();
    const CallId call{reader.Get<uint32_t>(), reader.Get<uint32_t>()};
    const auto theirs = reader.Get<Descriptor>();
    if (!reader.Finished()) {
      return;
    }
    if (call != kPing) {
      Compare(from, call, theirs);  // ranks that called different things may wait for each other
    }
    if (!mismatch_) {
      const uint8_t started = HasStarted(call) ? 1 : 0;
      from.SendControl(
          Control(rank, ControlKind::kAnswer, Writer().Put(nonce).Put(started).Take()));
      engine_.NeedFlush();
    }
  } else if (kind == ControlKind::kAnswer) {
    const auto nonce = reader.Get<uint32_t>();
    const auto started = reader.Get<uint8_t>();
    if (reader.Finished()) {
      membership_.OnAnswer(rank, nonce, started != 0);
      if (membership_.next_tick().Passed(engine_.clock().Now())) {
        OnTick(engine_.clock().Now());
      }
    }
  }
}

// ---- [driver] Deadlines

Deadline CommCore::next_tick() const {
  Deadline next = membership_.next_tick();
  if (membership_.inquiring()) {
    return next;  // calls that expire now are asked about afterwards
  }
  for (const CallWork* work : open_) {
    if (!work->inquired_) {
      next = std::min(next, work->call_.options.deadline);
    }
  }
  return next;
}

void CommCore::OnTick(int64_t now_ns) {
  for (size_t i = 0; i < open_.size(); ++i) {
    if (!open_[i]->inquired_ && open_[i]->call_.options.deadline.Passed(now_ns)) {
      Expire(open_[i], now_ns);
      if (ended_.load(std::memory_order_acquire)) {
        return;
      }
    }
  }
  if (const auto verdict = membership_.OnTick(now_ns)) {
    TakeVerdict(*verdict, now_ns);
  }
}

void CommCore::Expire(CallWork* work, int64_t now_ns) {
  // Of messages nobody but the peer knows; the others are asked only whether they are there.
  const CallId call = work->wiring_.point_to_point
                          ? kPing
                          : CallId{work->wiring_.user_tag, work->wiring_.call_number};
  const auto query = membership_.OnExpired(call, now_ns);
  if (!query) {
    return;  // one inquiry at a time; asked again when that one is over
  }
  work->inquired_ = true;
  const Descriptor mine = work->call_.descriptor();
  SendToAll(Writer()
                .Put(ControlKind::kQuery)
                .Put(query->nonce)
                .Put(query->call.user_tag)
                .Put(query->call.number)
                .PutRaw(&mine, sizeof(mine))
                .Take());
}

void CommCore::TakeVerdict(const Membership::Verdict& verdict, int64_t now_ns) {
  if (verdict.lost) {
    Fail(Loss(verdict.guilty), true);
    return;
  }
  for (const CallWork* work : open_) {
    if (!work->inquired_) {
      continue;
    }
    if (work->wiring_.point_to_point && verdict.guilty < 0) {
      Fail(TimedOut(*work, work->call_.root, "it has not made the matching call", now_ns), true);
    } else {
      Fail(TimedOut(*work, verdict.guilty, verdict.reason, now_ns), true);
    }
    return;
  }
}

// ---- [driver] Mismatches

void CommCore::OnEarly(Endpoint& from, const Envelope& envelope) {
  if (envelope.tag.lane() != Tag::kPointToPoint) {
    Compare(from, {envelope.tag.user_tag(), envelope.tag.call()}, envelope.descriptor);
  }
}

void CommCore::Compare(const Endpoint& from, CallId call, const Descriptor& theirs) {
  if (mismatch_) {
    return;
  }
  for (const CallWork* work : open_) {
    if (!work->wiring_.point_to_point && work->wiring_.user_tag == call.user_tag &&
        work->wiring_.call_number == call.number) {
      const Descriptor mine = work->call_.descriptor();
      if (mine != theirs) {
        FoundMismatch(from, theirs, OwnCallOf(work->wiring_, mine));
      }
      return;
    }
  }
  if (const OwnCall* const over = notes_.Hear(from, call, theirs)) {
    FoundMismatch(from, theirs, *over);
  }
}

void CommCore::CheckEarly(const Wiring& call, const Descriptor& mine) {
  if (call.point_to_point) {
    return;
  }
  const auto heard = notes_.Meet({call.user_tag, call.call_number}, mine);
  if (heard && !mismatch_) {
    FoundMismatch(*heard->from, heard->descriptor, OwnCallOf(call, mine));
  }
}

void CommCore::NoteOver(const Wiring& call, const Descriptor& mine) {
  if (!call.point_to_point) {
    notes_.Over(OwnCallOf(call, mine));
  }
}

void CommCore::FoundMismatch(const Endpoint& from, const Descriptor& theirs, const OwnCall& mine) {
  mismatch_ = Disagreement(RankOf(&from), theirs, mine);
  NeedAttention();
}

// ---- [driver] Messages

int CommCore::RankOf(const Endpoint* endpoint) const {
  const auto found = std::find(endpoints_.begin(), endpoints_.end(), endpoint);
  return found == endpoints_.end() ? -1 : static_cast<int>(found - endpoints_.begin());
}

std::string CommCore::Control(int to, ControlKind kind, absl::string_view body) const {
  return Writer()
      .Put(contexts_[static_cast<size_t>(to)])
      .Put(kind)
      .PutRaw(body.data(), body.size())
      .Take();
}

void CommCore::SendToAll(const std::string& body) {
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = endpoints_[static_cast<size_t>(r)];
    if (endpoint != nullptr && !membership_.left(r)) {
      endpoint->SendControl(
          Writer().Put(contexts_[static_cast<size_t>(r)]).PutRaw(body.data(), body.size()).Take());
    }
  }
}

}  // namespace entrain
