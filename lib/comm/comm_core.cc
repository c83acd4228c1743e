#include "lib/comm/comm_core.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/contribution.h"
#include "lib/comm/packed_call.h"

namespace entrain {
namespace {

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

// The members of each host.
std::map<absl::string_view, CpuCrowd> CrowdsOf(const std::vector<Member>& members) {
  std::map<absl::string_view, CpuCrowd> crowds;
  for (const Member& member : members) {
    crowds[member.host_id].Add(member.cpus);
  }
  return crowds;
}
bool Crowded(const CpuCrowd& host) {
  return host.size() > host.Cores();
}
// As Paths::cores.
int FewestCores(const std::map<absl::string_view, CpuCrowd>& crowds) {
  const bool crowded = std::any_of(crowds.begin(), crowds.end(),
                                   [](const auto& host) { return Crowded(host.second); });
  int fewest = std::numeric_limits<int>::max(), most_ranks = 0;
  for (const auto& [id, host] : crowds) {
    fewest = Crowded(host) == crowded ? std::min(fewest, host.Cores()) : fewest;
    most_ranks = std::max(most_ranks, host.size());
  }
  return crowded ? fewest : std::max(fewest, most_ranks);
}

}  // namespace

WorkInfo InfoOf(const CommCore& core, const Call& call, uint64_t number, int64_t started_ns) {
  return {core.config().name, NameOf(call.named().kind), call.options.user_tag, number, started_ns};
}

// ---- Any thread

CommCore::CommCore(std::shared_ptr<Engine> engine, BufferPool& pool, CoreConfig config)
    : engine_holder_(std::move(engine)),
      engine_(*engine_holder_),
      pool_(pool),
      config_(std::move(config)),
      topology_(Topology::FromHostIds(HostIds(config_.members))),
      peers_(config_.name, config_.world, config_.rank, config_.members),
      words_(config_.name, peers_, engine_.clock()),
      funnel_(*this, config_, topology_, peers_, end_, pool_),
      inline_(engine_.seat(), pool_, *this, size(), InlinePath::Pays(topology_, config_.paths)),
      mismatches_(*this, peers_, engine_.clock()),
      inquiry_(*this, peers_, funnel_, open_, words_, engine_.clock()) {}

std::shared_ptr<CommCore> CommCore::Make(std::shared_ptr<Engine> engine, BufferPool& pool,
                                         CoreConfig config) {
  const auto crowds = CrowdsOf(config.members);
  // More ranks on this host than cores: whoever waits should give its core away at once.
  if (Crowded(crowds.at(config.members[static_cast<size_t>(config.rank)].host_id))) {
    engine->seat().SetCrowded(true);
  }
  config.paths.cores = FewestCores(crowds);
  return std::make_shared<CommCore>(std::move(engine), pool, std::move(config));
}

RefPtr<CallWork> CommCore::Prepare(Admitted admitted, CallWork::Begin begin) {
  auto work = RefPtr<CallWork>::Adopt(new CallWork(
      engine_, {shared_from_this(), this}, config_.name, std::move(admitted), std::move(begin)));
  work->AddRef();  // the engine's, given up in FinishWork
  engine_.seat().CountOpenWork(1);
  return work;
}

RefPtr<CallWork> CommCore::Submit(Admitted admitted, CallWork::Begin begin) {
  auto work = Prepare(std::move(admitted), std::move(begin));
  engine_.seat().Submit(work.get());
  return work;
}

absl::StatusOr<RefPtr<Work>> CommCore::Start(Call call, bool kick) {
  if (end_.ended()) {
    return status();
  }
  const int64_t now = engine_.clock().Now();
  funnel_.SetDeadline(&call, now);
  ENTRAIN_ASSIGN_OR_RETURN(
      RefPtr<Work> work, PackedCall::Is(call) ? StartPacked(call, now) : funnel_.Start(call, now));
  if (kick) {
    engine_.seat().Kick();
  }
  return work;
}

absl::StatusOr<RefPtr<Work>> CommCore::StartPacked(const Call& call, int64_t now_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(RefPtr<PackedCall> packed,
                           PackedCall::Make(shared_from_this(), call, now_ns));
  ENTRAIN_ASSIGN_OR_RETURN(std::vector<Wiring> numbers,
                           funnel_.TakeNumbers(call, PackedCall::PartsOf(call)));
  if (const absl::Status status = packed->Begin(std::move(numbers)); !status.ok()) {
    EndHere(status);  // the others wait for it
    return status;
  }
  return RefPtr<Work>::Adopt(packed.Leak());
}

absl::Status CommCore::Run(const Call& call) {
  if (const std::optional<absl::Status> status = inline_.Run(call)) {
    return *status;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work, Start(call, false));
  work->Wait(Deadline::Never(), call.options.background);
  return work->status();
}

// ---- InlineOwner

absl::Status CommCore::Over(const Descriptor& descriptor, const Wiring& wiring) {
  mismatches_.NoteOver(wiring, descriptor);
  mismatches_.Meet(wiring, descriptor);
  if (mismatches_.voting()) {
    const RefPtr<Work> end = mismatches_.End();
    Attend();
    engine_.seat().Stay(*end);
    return status();
  }
  if (engine_.causes().told()) {
    engine_.causes().Succeeded(engine_.clock().Now());
  }
  engine_.seat().Leave();
  return absl::OkStatus();
}

absl::Status CommCore::GoOn(const Call& call, Admitted admitted, const Progress& progress) {
  const int64_t now = engine_.clock().Now();
  Call rest = call;
  funnel_.SetDeadline(&rest, now);
  // A deadline of the call's own counts from when it was made, which was before.
  const CallOptions& options = rest.options;
  const std::shared_ptr<CommCore> keep = shared_from_this();  // its user may leave meanwhile
  const auto work =
      Prepare(std::move(admitted),
              {rest, {}, progress, std::min(now, options.deadline.at_ns - options.timeout_ns)});
  StartWork(work.get());  // at once: jobs that wait for this driver look for the calls under way
  engine_.seat().Stay(*work);
  return work->status();
}

void CommCore::Abort(absl::string_view reason) {
  EndHere(WithBlame(absl::AbortedError(absl::StrCat(config_.name, ": aborted by rank ",
                                                    config_.rank, ": ", reason)),
                    words_.BlameFor(nullptr, config_.rank, Phase::kNone)));
}

void CommCore::EndHere(const absl::Status& why) {
  end_.Set(HasBlame(why) ? why
                         : WithBlame(why, words_.BlameFor(nullptr, config_.rank, Phase::kNone)));
  class EndJob final : public Job {
   public:
    explicit EndJob(std::shared_ptr<CommCore> core) : core_(std::move(core)) {}
    void Run() override {
      core_->Fail(core_->status());
      delete this;
    }

   private:
    const std::shared_ptr<CommCore> core_;
  };
  engine_.seat().Submit(new EndJob(shared_from_this()));
  engine_.seat().Kick();
}

void CommCore::EndWith(const absl::Status& why) {
  const absl::StatusCode code = words_.CodeHere(why);
  // What is no communicator's error was met by this rank alone.
  const bool own = code != why.code() || !HasBlame(why);
  end_.Set(WithBlame(
      absl::Status(
          code, absl::StrCat(config_.name, ": ended by rank ", config_.rank, ": ", why.message())),
      own ? words_.BlameFor(nullptr, config_.rank, Phase::kNone) : words_.BlameHere(why)));
  engine_.seat().RunInDriver([this] {
    Fail(status());
    engine_.Flush();
  });
}

std::string CommCore::UserOf(ConstBytes bytes) const {
  const CallWork* const user = open_.UserOf(bytes);
  return user == nullptr ? "" : absl::StrCat(user->Name(), " on ", config_.name);
}

absl::StatusOr<std::string> CommCore::Explain(CallKind kind, int64_t count, DType dtype) {
  ENTRAIN_ASSIGN_OR_RETURN(std::string text, funnel_.Explain(kind, count, dtype));
  std::set<std::string> paths;
  engine_.seat().RunInDriver([&] {
    for (const Endpoint* const endpoint : peers_.endpoints()) {
      paths.insert(endpoint == nullptr ? "" : endpoint->Explain());
    }
  });
  paths.erase("");
  for (const std::string& path : paths) {
    absl::StrAppend(&text, "\n", path);
  }
  return text;
}

void CommCore::SetPaths(const Paths& paths) {
  inline_.SetPays(InlinePath::Pays(topology_, paths));
  funnel_.SetPaths(paths);
  inline_.Forget();
}

void CommCore::SetProbed(const CostModel& model) {
  funnel_.SetProbed(model);
  inline_.Forget();
}

CommStats CommCore::stats() const {
  uint64_t inlined = 0;  // with those that an executor has finished
  for (size_t end = 0; end < kInlineEnds.size(); ++end) {
    inlined += inline_.count(static_cast<InlineEnd>(end));
  }
  return {funnel_.calls() + inlined,
          bytes_sent_.load(std::memory_order_relaxed) + inline_.bytes_sent(),
          bytes_received_.load(std::memory_order_relaxed) + inline_.bytes_received()};
}

bool CommCore::Drain(Deadline give_up) {
  std::vector<RefPtr<Work>> works;
  engine_.seat().RunInDriver([&] {
    for (CallWork* work : open_.works()) {
      works.push_back(work->whole() ? work->whole() : RefPtr<Work>::Share(work));
    }
  });
  return std::all_of(works.begin(), works.end(), [&](auto& work) { return work->Wait(give_up); });
}

// ---- [driver] Calls

void CommCore::Open() {
  opened_ns_ = engine_.clock().Now();
  engine_.OpenContext(config_.context, shared_from_this());
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint != nullptr && !engine_.PathStatus(endpoint).ok()) {
      OnLost(*endpoint, engine_.PathStatus(endpoint));
      return;
    }
  }
}

void CommCore::StartWork(CallWork* work) {
  work->started = true;
  open_.Add(work);
  if (end_.ended()) {
    if (!work->from().lent.empty()) {
      Fail(status());  // the peers must not take what the caller is about to have back
    }
    if (open_.Has(work)) {
      FinishWork(work, status());
    }
    return;
  }
  if (work->waits()) {
    NeedAttention();
    return;
  }
  mismatches_.Meet(work->wiring(), work->call().descriptor());
  if (work->call().reduction.op == ReduceOp::kCustom) {
    work->executor().CombineBy({engine_holder_, funnel_.Reductions(),
                                std::make_shared<const std::string>(words_.ReductionOf(*work))});
  }
  work->executor().Start(work->from());
  work->ready = true;  // it may be over already
  NeedAttention();
}

int CommCore::SenderTo(uint32_t tag) {
  for (int i = 1; i <= size(); ++i) {
    const int r = (last_source_ + i) % size();  // no peer's messages hold up another's for ever
    const Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint != nullptr &&
        endpoint->HasEarly(
            Tag(config_.context, tag, funnel_.NextFrom(tag, r), Tag::kPointToPoint))) {
      return last_source_ = r;
    }
  }
  return -1;
}

int CommCore::LastOfAllGone() const {
  int last = -1;
  for (int r = 0; r < size(); ++r) {
    const Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    if (!inquiry_.left(r) || engine_.PathStatus(endpoint).ok()) {
      return -1;
    }
    last = r;
  }
  return last;
}

void CommCore::TendLines() {
  const std::vector<CallWork*> begun =
      funnel_.TakeTurns([this](uint32_t tag) { return SenderTo(tag); });
  open_.LeftLine(begun.size());
  for (CallWork* work : begun) {
    work->executor().Start();
    work->ready = true;
  }
  // What has begun may have come before its sender went.
  if (const int gone = begun.empty() && open_.in_line() > 0 ? LastOfAllGone() : -1; gone >= 0) {
    Fail(inquiry_.Loss(gone, engine_.PathStatus(peers_.endpoint(gone))));
  }
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
  mismatches_.Attend();
  if (open_.in_line() > 0) {
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
    work->GiveBuffers(pool_);
    work->Release();
  }
}

void CommCore::CompleteReady() {
  // Finishing and failing change open_, so look again from the start after each.
  for (size_t i = 0; i < open_.size();) {
    CallWork* const work = open_[i];
    if (!work->ready) {
      ++i;
      continue;
    }
    work->ready = false;
    if (!work->executor().Advance()) {
      ++i;
      continue;
    }
    if (work->executor().reduction_failed() != 0) {
      Fail(words_.ReductionFailed(*work));
      return;
    }
    if (work->executor().status().ok()) {
      FinishWork(work, absl::OkStatus());
      continue;
    }
    const absl::Status& cause = work->executor().status();
    const int peer = work->WaitingFor();
    const bool gone = cause.code() == absl::StatusCode::kUnavailable ||
                      cause.code() == absl::StatusCode::kAborted;
    if (gone && peer >= 0) {
      if (inquiry_.left(peer)) {
        Fail(inquiry_.Loss(peer, cause));
        return;
      }
      OnLost(*peers_.endpoint(peer), cause);  // the verdict ends the call
      ++i;
      continue;
    }
    if (cause.code() == absl::StatusCode::kDataLoss && !work->wiring().point_to_point) {
      mismatches_.FoundBetweenTwo({work->wiring().user_tag, work->wiring().call_number},
                                  words_.Explain(*work, cause));
      ++i;
      continue;
    }
    Fail(words_.Explain(*work, cause));
    return;
  }
}

void CommCore::FinishWork(CallWork* work, const absl::Status& status) {
  open_.Remove(work);
  if (work->waits()) {
    funnel_.LeaveLine(work);
  }
  if (status.ok() && work->call().source != nullptr) {
    *work->call().source = work->peer();
  }
  Add(bytes_sent_, work->executor().bytes_sent());
  Add(bytes_received_, work->executor().bytes_received());
  inquiry_.OnFinished(work);
  if (status.ok()) {
    mismatches_.NoteOver(work->wiring(), work->call().descriptor());
    engine_.causes().Succeeded(work->started_ns());
  }
  engine_.seat().CountOpenWork(-1);
  if (work->executor().pending() > 0) {
    draining_.push_back(work);
    work->Finish(status);
    return;
  }
  work->GiveBuffers(pool_);
  work->Finish(status);
  work->Release();
}

}  // namespace entrain
