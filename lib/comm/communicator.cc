#include "lib/comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/bootstrap.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/device_calls.h"
#include "lib/comm/probe.h"
#include "lib/comm/runtime.h"
#include "lib/comm/split_work.h"
#include "lib/store/store.h"

namespace entrain {

// The objects that this rank prepares before it meets the others.
struct Preparation {
  std::vector<Override> overrides;
  std::shared_ptr<const Tuning> tuning;
  Card card;
};

// The record that ranks exchange when they meet: the slowest links to ranks of this host, and to
// ranks of other hosts. `link`: a Link.
struct MeetRecord {
  struct Side {
    uint64_t link;
    LinkSpeed speed;
  };
  Side inside, across;
};

namespace {

BufferView View(const void* data, int64_t bytes) {
  return {const_cast<void*>(data), bytes, MemoryKind::kHost};
}

constexpr absl::string_view kProbe = "probe", kCreating = "creating the communicator";
// Interval at which a connecting rank checks whether another rank has failed.
constexpr int64_t kLookNs = 50 * kMillisecond;
// Time to tell the others that this rank has failed.
constexpr int64_t kTellNs = 2 * kSecond;

Link LinkOf(Medium medium, bool apart) {
  switch (medium) {
    case Medium::kProcess:
      return Link::kInproc;
    case Medium::kHostMemory:
      return Link::kShm;
    case Medium::kFabric:
      return apart ? Link::kFabricAcross : Link::kFabricInside;
    case Medium::kNetwork:
      break;
  }
  return apart ? Link::kTcpAcross : Link::kTcpInside;
}

// The record of a rank without such a link.
constexpr LinkSpeed kFastest{0, 1e9, 1e9};

void Worsen(const MeetRecord::Side& other, MeetRecord::Side* side) {
  side->link = std::max(side->link, other.link);
  side->speed.Worsen(other.speed);
}

bool Known(const MeetRecord::Side& side, Link least, Link most) {
  const LinkSpeed& speed = side.speed;
  return side.link >= static_cast<uint64_t>(least) && side.link <= static_cast<uint64_t>(most) &&
         speed.latency_us >= 0 && speed.latency_us < 1e9 && speed.gbs > 0 && speed.host_gbs > 0;
}

// Checks the texts that travel in a card.
absl::Status CheckTexts(const CommOptions& options) {
  constexpr size_t kMaxText = 1000;
  for (const auto& [name, text] :
       {std::pair("algorithms", &options.algorithms), std::pair("tuning", &options.tuning),
        std::pair("host_id", &options.runtime->host_id())}) {
    if (text->size() > kMaxText) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": longer than ", kMaxText, " bytes"));
    }
  }
  return absl::OkStatus();
}

// On an error no context number was taken.
absl::StatusOr<Preparation> Prepare(const CommOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(CheckTexts(options));
  Preparation prepared;
  auto overrides = ParseOverrides(options.algorithms);
  if (!overrides.ok()) {
    return Annotate(overrides.status(), "algorithms");
  }
  prepared.overrides = *std::move(overrides);
  const bool probe = options.tuning == kProbe;
  ENTRAIN_ASSIGN_OR_RETURN(prepared.tuning, LoadTuning(probe ? "" : options.tuning));
  ENTRAIN_RETURN_IF_ERROR(options.runtime->EnsureStarted(options.store->host(), options.rank));
  Engine& engine = options.runtime->engine();
  Card& card = prepared.card;
  card.rank = options.rank;
  card.id = options.runtime->id();
  card.host_id = options.runtime->host_id();
  card.settings =
      absl::StrCat("algorithms=", options.algorithms, "; determinism=", NameOf(options.determinism),
                   "; tuning=", prepared.tuning->Fingerprint(), probe ? " probed" : "");
  card.tuning = prepared.tuning->source;
  card.cpus = options.cpus;
  for (const auto& transport : engine.transports()) {
    card.addresses.emplace_back(transport->traits().name, transport->address());
  }
  card.context = engine.ReserveContext();
  if (card.context == 0) {
    return absl::ResourceExhaustedError(
        "this process has created 65535 communicators, which is the limit");
  }
  return prepared;
}

absl::Status CheckAgreement(const CommCore& core, int64_t timeout_ns) {
  if (timeout_ns < 0) {
    return absl::InvalidArgumentError(absl::StrCat("timeout_ns ", timeout_ns, " is negative"));
  }
  return core.size() <= Survivors::kMostRanks
             ? absl::OkStatus()
             : absl::UnimplementedError(absl::StrCat(core.size(), " ranks are more than the ",
                                                     Survivors::kMostRanks,
                                                     " that can agree in this version"));
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Runtime> runtime, std::shared_ptr<CommCore> core)
    : runtime_(std::move(runtime)), core_(std::move(core)) {}

Communicator::~Communicator() {
  absl::MutexLock lock(&device_mutex_);
  const size_t open = device_calls_ == nullptr ? 0 : device_calls_->open().size();
  if (open > 0) {
    core_->ending().Abort(absl::StrCat("it destroyed the communicator with ", open,
                                       " unfinished calls on device memory"));
  }
  core_->engine().seat().RunInDriver([this] { core_->Leave("destroyed the communicator"); });
  if (device_calls_ != nullptr) {
    device_calls_->Close();
  }
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Create(const CommOptions& options) {
  if (options.size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: ", options.size, " is not positive"));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", options.rank, " is not in [0, ",
                                                   options.size, "), the world's size"));
  }
  // Count the use before anything can fail on this rank alone, so that a repeated attempt meets the
  // other ranks' repeated attempts.
  const std::string key = absl::StrCat(
      "entrain/", options.name, "#", options.runtime->NextUse(options.store->url(), options.name));
  const Stop stop{Deadline::After(options.timeout_ns)};
  auto prepared = Prepare(options);
  if (!prepared.ok()) {
    const absl::Status told = ForOthers(prepared.status(), options.rank);
    const Stop brief{std::min(stop.deadline, Deadline::After(kTellNs))};
    options.store->Join(key, options.rank, options.size, told, brief).status().IgnoreError();
    return prepared.status();
  }
  const Context context = prepared->card.context;
  auto meeting =
      options.store->Join(key, options.rank, options.size, prepared->card.ToParts(), stop);
  auto comm = meeting.ok() ? Meet(options, *std::move(prepared), **meeting, stop)
                           : absl::StatusOr<std::shared_ptr<Communicator>>(meeting.status());
  if (!meeting.ok()) {
    options.runtime->engine().ReleaseContext(context);
  } else if (comm.ok()) {
    (*meeting)->Finish();
  } else {
    (*meeting)->Fail(ForOthers(comm.status(), options.rank));
  }
  return comm;
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Meet(const CommOptions& options,
                                                                 Preparation prepared,
                                                                 StoreMeeting& meeting,
                                                                 const Stop& stop) {
  const Context context = prepared.card.context;
  const auto cards = ExchangeCards(meeting, stop);
  auto members = cards.ok() ? MembersFromCards(*options.runtime, *cards, options.rank)
                            : absl::StatusOr<std::vector<Member>>(cards.status());
  if (!members.ok()) {
    options.runtime->engine().ReleaseContext(context);
    return members.status();
  }
  auto comm = Open(options.runtime, {options.name, options.rank, context, *std::move(members),
                                     std::move(prepared.overrides), prepared.tuning, Paths(),
                                     options.timeout_ns, options.name, options.determinism});
  // Every pair exchanges a message, so a rank that returns from here can reach all others.
  CallOptions barrier;
  barrier.deadline = stop.deadline;
  barrier.timeout_ns = options.timeout_ns;
  if (const absl::Status met = comm->MeetAll(barrier, meeting); !met.ok()) {
    return absl::StartsWith(met.message(), kCreating) ? met : Annotate(met, kCreating);
  }
  if (options.tuning == kProbe) {
    const CallFunnel& funnel = comm->core_->funnel();
    const auto probed = ProbeLinks(*comm, funnel.model(), funnel.paths(), barrier);
    ENTRAIN_RETURN_IF_ERROR(Annotate(probed.status(), "probing links"));
    comm->core_->SetProbed(*probed);
  }
  return comm;
}

std::shared_ptr<Communicator> Communicator::Open(std::shared_ptr<Runtime> runtime,
                                                 CoreConfig config) {
  auto core = CommCore::Make(runtime->shared_engine(), runtime->pool(), std::move(config));
  core->engine().seat().RunInDriver([&] { core->Open(); });
  return std::shared_ptr<Communicator>(new Communicator(std::move(runtime), std::move(core)));
}

MeetRecord Communicator::OwnLinks() const {
  MeetRecord mine{{static_cast<uint64_t>(Link::kInproc), kFastest},
                  {static_cast<uint64_t>(Link::kFabricAcross), kFastest}};
  for (const Member& member : core_->config().members) {
    if (member.endpoint == nullptr) {
      continue;
    }
    const bool apart = member.host_id != runtime_->host_id();
    const Traits traits = core_->engine().transports()[member.transport]->traits();
    Worsen({static_cast<uint64_t>(LinkOf(traits.medium, apart)),
            {static_cast<double>(traits.latency_ns) * 1e-3, traits.bytes_per_second * 1e-9,
             traits.host_bytes_per_second * 1e-9}},
           apart ? &mine.across : &mine.inside);
  }
  return mine;
}

absl::Status Communicator::MeetAll(const CallOptions& options, StoreMeeting& meeting) {
  // The direct all-gather sends one message between every two ranks.
  MeetRecord mine = OwnLinks();
  std::vector<MeetRecord> all(static_cast<size_t>(size()));
  Call call;
  call.kind = CallKind::kCreate;
  call.in = View(&mine, sizeof(mine));
  call.out = View(all.data(), static_cast<int64_t>(all.size() * sizeof(mine)));
  call.count = sizeof(mine);
  call.options = options;
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work, core_->Start(call, /*kick=*/true));
  // If a rank ends before it has connected, there is no path that reports this.
  while (!work->Wait(Deadline::After(kLookNs))) {
    absl::Status failed = meeting.Check();
    if (!failed.ok()) {
      Blame blame = BlameOf(failed);
      if (blame.rank >= 0 && blame.rank < size()) {
        blame.peer_id = core_->config().members[static_cast<size_t>(blame.rank)].id;
      }
      failed = WithBlame(std::move(failed), blame);
      core_->ending().EndWith(failed);
      work->Wait(Deadline::Never());  // ended by the line before
      return failed;
    }
  }
  ENTRAIN_RETURN_IF_ERROR(work->status());
  for (const MeetRecord& one : all) {
    if (!Known(one.inside, Link::kInproc, Link::kTcpInside) ||
        !Known(one.across, Link::kFabricAcross, Link::kTcpAcross)) {
      return absl::DataLossError("a rank tells of paths that this version does not know");
    }
    Worsen(one.inside, &mine.inside);
    Worsen(one.across, &mine.across);
  }
  core_->SetPaths({.inside = static_cast<Link>(mine.inside.link),
                   .cores = core_->funnel().paths().cores,
                   .across = static_cast<Link>(mine.across.link),
                   .inside_speed = mine.inside.speed,
                   .across_speed = mine.across.speed});
  return absl::OkStatus();
}

absl::StatusOr<DeviceCalls*> Communicator::OnDevice() {
  absl::MutexLock lock(&device_mutex_);
  if (device_calls_ == nullptr) {
    auto made = runtime_->MakeDeviceCalls(core_);
    if (!made.ok()) {
      return absl::Status(made.status().code(), absl::StrCat("options.", made.status().message()));
    }
    device_calls_ = *std::move(made);
  }
  return device_calls_.get();
}

absl::StatusOr<RefPtr<Work>> Communicator::Start(const Call& call) {
  return Start(call, true);
}

absl::Status Communicator::Reserve(const Call& call, int at_once) {
  ENTRAIN_ASSIGN_OR_RETURN(DeviceCalls* const calls, OnDevice());
  return calls->Reserve(call, at_once);
}

absl::StatusOr<RefPtr<Work>> Communicator::Start(const Call& call, bool kick) {
  if (!call.options.device && !call.options.on_stream) {
    return core_->Start(call, kick);
  }
  ENTRAIN_ASSIGN_OR_RETURN(DeviceCalls* const calls, OnDevice());
  return calls->Start(call, /*blocks=*/false);
}

namespace {

// A work that is over when all its parts are over.
class BatchWork final : public Work {
 public:
  // One reference is for the caller. The other is kept until the last part is over.
  BatchWork(Engine* engine, std::string comm, int64_t now_ns, size_t parts)
      : Work(engine),
        comm_(std::move(comm)),
        started_ns_(now_ns),
        status_of_(parts),
        left_(parts + 1) {
    AddRef();
  }
  WorkInfo Info() const override {
    WorkInfo info;
    info.comm = comm_;
    info.operation = "batch";
    info.started_ns = started_ns_;
    return info;
  }
  void PartIsOver(size_t part, const absl::Status& status) {
    status_of_[part] = status;
    Count();
  }
  // Called once, when all parts were started.
  void AllStarted() { Count(); }

 private:
  // Acquire-release: the last one sees the status of all others.
  void Count() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) {
      return;
    }
    const auto failed = std::find_if(status_of_.begin(), status_of_.end(),
                                     [](const absl::Status& status) { return !status.ok(); });
    Finish(failed == status_of_.end() ? absl::OkStatus() : *failed);
    Release();
  }

  const std::string comm_;
  const int64_t started_ns_;
  std::vector<absl::Status> status_of_;
  std::atomic<size_t> left_;
};

}  // namespace

RefPtr<Work> Communicator::StartAll(absl::Span<const Call> calls) {
  auto batch = RefPtr<BatchWork>::Adopt(
      new BatchWork(&core_->engine(), name(), core_->engine().clock().Now(), calls.size()));
  for (size_t i = 0; i < calls.size(); ++i) {
    auto part = Start(calls[i], /*kick=*/false);
    if (!part.ok()) {
      batch->PartIsOver(i, part.status());
      continue;
    }
    (*part)->Then(
        [whole = batch.get(), i](const absl::Status& status) { whole->PartIsOver(i, status); });
  }
  core_->engine().seat().Kick();
  batch->AllStarted();
  return RefPtr<Work>::Adopt(batch.Leak());
}

absl::Status Communicator::Run(const Call& call) {
  if (!call.options.device && !call.options.on_stream) {
    const std::shared_ptr<CommCore> core = core_;
    return core->Run(call);
  }
  ENTRAIN_ASSIGN_OR_RETURN(DeviceCalls* const calls, OnDevice());
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> work, calls->Start(call, /*blocks=*/true));
  work->Wait(Deadline::Never(), call.options.background);
  return work->status();
}

absl::Status Communicator::RunOrRefuse(const Call& call) {
  const std::shared_ptr<CommCore> core = core_;
  const absl::Status status = Run(call);
  if (!status.ok()) {
    core->Refused(call, Annotate(status, NameOf(call.kind)));
  }
  return status;
}

std::optional<absl::Status> Communicator::RunAgain(const CallKey& key, const void* in, void* out) {
  return core_->inline_path().RunAgain(key, in, out);
}

absl::Status Communicator::AllReduce(const void* in, void* out, int64_t count, DType dtype,
                                     ReduceOp op, const CallOptions& o) {
  const int64_t bytes = count * SizeOf(dtype);
  Call call;
  call.kind = CallKind::kAllReduce;
  call.reduction.op = op;
  call.dtype = dtype;
  call.in = View(in, bytes);
  call.out = View(out, bytes);
  call.count = count;
  call.options = o;
  return Run(call);
}

absl::Status Communicator::AllGather(const void* in, void* out, int64_t count, DType dtype,
                                     const CallOptions& o) {
  const int64_t bytes = count * SizeOf(dtype);
  Call call;
  call.kind = CallKind::kAllGather;
  call.dtype = dtype;
  call.in = View(in, bytes);
  call.out = View(out, bytes * size());
  call.count = count;
  call.options = o;
  return Run(call);
}

absl::Status Communicator::Broadcast(void* buffer, int64_t count, DType dtype, int root,
                                     const CallOptions& o) {
  Call call;
  call.kind = CallKind::kBroadcast;
  call.dtype = dtype;
  call.in = call.out = View(buffer, count * SizeOf(dtype));
  call.count = count;
  call.root = root;
  call.options = o;
  return Run(call);
}

absl::Status Communicator::Barrier(const CallOptions& o) {
  Call call;
  call.kind = CallKind::kBarrier;
  call.options = o;
  return Run(call);
}

absl::StatusOr<RefPtr<Work>> Communicator::StartSplit(int color, int key) {
  if (color < -1) {
    return absl::InvalidArgumentError(absl::StrCat("color: ", color, " is negative and not -1"));
  }
  return SplitWork::Start(core_, runtime_, color, key);
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::FinishSplit(Work& split) {
  if (split.yields() != SplitWork::kYields) {
    return absl::InvalidArgumentError(
        absl::StrCat("work is of ", split.Info().Name(), ", not of a split or duplicate"));
  }
  auto& work = static_cast<SplitWork&>(split);
  std::shared_ptr<Runtime> runtime = work.runtime();
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<CommCore> part, work.Take());
  if (part == nullptr) {
    return nullptr;
  }
  if (runtime == nullptr) {
    return absl::AbortedError("the runtime was destroyed before the part was taken");
  }
  return std::shared_ptr<Communicator>(new Communicator(std::move(runtime), std::move(part)));
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Split(int color, int key) {
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> split, StartSplit(color, key));
  split->Wait(Deadline::Never());  // the call's deadline ends the wait
  return FinishSplit(*split);
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Shrink(const ShrinkOptions& options) {
  for (const int rank : options.exclude) {
    if (rank < 0 || rank >= size() || rank == this->rank()) {
      return absl::InvalidArgumentError(
          rank == this->rank() ? absl::StrCat("exclude: ", rank, " is this rank")
                               : absl::StrCat("exclude: ", rank, " is not in [0, ", size(), ")"));
    }
  }
  const std::shared_ptr<CommCore> core = core_;
  const std::shared_ptr<Runtime> runtime = runtime_;
  ENTRAIN_RETURN_IF_ERROR(CheckAgreement(*core, options.timeout_ns));
  Survivors::Wish wish;
  wish.kind = Survivors::Kind::kShrink;
  wish.any = options.partition == Partition::kAny;
  wish.exclude = options.exclude;
  const RefPtr<SurvivorWork> work =
      core->StartAgreement(std::move(wish), options.timeout_ns, options.name);
  work->Wait(Deadline::Never());  // the call's deadline ends the wait
  ENTRAIN_RETURN_IF_ERROR(work->status());
  return std::shared_ptr<Communicator>(new Communicator(runtime, work->TakeNext()));
}

absl::Status Communicator::Agree(uint32_t* flag, int64_t timeout_ns) {
  const std::shared_ptr<CommCore> core = core_;
  ENTRAIN_RETURN_IF_ERROR(CheckAgreement(*core, timeout_ns));
  Survivors::Wish wish;
  wish.kind = Survivors::Kind::kAgree;
  wish.flag = *flag;
  const RefPtr<SurvivorWork> work = core->StartAgreement(std::move(wish), timeout_ns, "");
  work->Wait(Deadline::Never());  // the call's deadline ends the wait
  ENTRAIN_RETURN_IF_ERROR(work->status());
  *flag = work->flag();
  return absl::OkStatus();
}

std::vector<MemberReport> Communicator::Members() const {
  std::vector<MemberReport> reports;
  core_->engine().seat().RunInDriver([&] { reports = core_->Members(); });
  return reports;
}

absl::StatusOr<void*> Communicator::AllocateMemory(int64_t bytes, SealedMemory::Pages pages) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto region, runtime_->regions().Allocate(bytes, pages));
  return region->memory.data();
}

absl::Status Communicator::FreeMemory(void* memory) {
  return TakeBack(memory, false).status();
}

absl::StatusOr<int64_t> Communicator::RegisterMemory(Bytes memory) {
  absl::Status unused;
  runtime_->engine().seat().RunInDriver([&] { unused = runtime_->engine().CheckUnused(memory); });
  ENTRAIN_RETURN_IF_ERROR(Annotate(unused, absl::StrFormat("memory %p", memory.data())));
  const auto region = runtime_->regions().Register(memory);
  ENTRAIN_RETURN_IF_ERROR(Annotate(region.status(), absl::StrFormat("memory %p", memory.data())));
  return (*region)->memory.size();
}

absl::Status Communicator::DeregisterMemory(void* memory) {
  ENTRAIN_ASSIGN_OR_RETURN(const auto region, TakeBack(memory, true));
  return Annotate(region->memory.GiveBack(), absl::StrFormat("memory %p", memory));
}

absl::StatusOr<std::shared_ptr<SharedRegion>> Communicator::TakeBack(void* memory,
                                                                     bool registered) {
  absl::Status status;
  std::shared_ptr<SharedRegion> taken;
  runtime_->engine().seat().RunInDriver([&] {
    const auto region = runtime_->regions().At(memory);
    if (region == nullptr || region->registered != registered) {
      status = absl::InvalidArgumentError(absl::StrFormat(
          "memory: %p %s", memory,
          registered ? "is not registered for communicators of this runtime"
                     : "was not allocated for communicators of this runtime, or has been freed"));
      return;
    }
    if (registered) {
      status = Annotate(runtime_->engine().Retire(*region), absl::StrFormat("memory %p", memory));
    } else {
      runtime_->engine().RetireWhenUnused(region);
    }
    if (status.ok()) {
      taken = runtime_->regions().Remove(*region);
    }
  });
  ENTRAIN_RETURN_IF_ERROR(status);
  return taken;
}

void Communicator::Abort(absl::string_view reason) {
  core_->ending().Abort(reason);
}
void Communicator::EndWith(const absl::Status& why) {
  core_->ending().EndWith(why);
}
void Communicator::Refused(const Call& call, const absl::Status& why) {
  core_->Refused(call, Annotate(why, NameOf(call.kind)));
}
void Communicator::NoteFunction(const void* who, absl::string_view name) {
  runtime_->engine().functions().Note(who, name);
}
absl::Status Communicator::status() const {
  return core_->ending().status();
}
bool Communicator::Drain(Deadline give_up) {
  std::vector<RefPtr<Work>> works;
  {
    absl::MutexLock lock(&device_mutex_);
    works = device_calls_ == nullptr ? works : device_calls_->open();
  }
  const std::shared_ptr<CommCore> core = core_;
  return std::all_of(works.begin(), works.end(), [&](auto& work) { return work->Wait(give_up); }) &&
         core->Drain(give_up);
}
int Communicator::rank() const {
  return core_->rank();
}
int Communicator::size() const {
  return core_->size();
}
const std::string& Communicator::name() const {
  return core_->config().name;
}
uint64_t Communicator::generation() const {
  return core_->config().generation;
}
int64_t Communicator::timeout_ns() const {
  return core_->funnel().timeout_ns();
}
void Communicator::SetTimeout(int64_t timeout_ns) {
  core_->funnel().SetTimeout(timeout_ns);
}
uint64_t Communicator::last_sequence() const {
  return core_->funnel().last_sequence();
}
const Topology& Communicator::topology() const {
  return core_->topology();
}
CommStats Communicator::stats() const {
  return core_->stats();
}
Runtime& Communicator::runtime() const {
  return *runtime_;
}

absl::StatusOr<const char*> Communicator::TransportTo(int peer) const {
  if (peer < 0 || peer >= size()) {
    return absl::InvalidArgumentError(absl::StrCat("peer: ", peer, " is not in [0, ", size(), ")"));
  }
  return peer == rank()
             ? "self"
             : core_->engine()
                   .transports()[core_->config().members[static_cast<size_t>(peer)].transport]
                   ->traits()
                   .name;
}

absl::StatusOr<const char*> Communicator::AlgorithmFor(CallKind kind, int64_t count,
                                                       DType dtype) const {
  return core_->funnel().AlgorithmFor(kind, count, dtype);
}

absl::StatusOr<std::string> Communicator::Explain(CallKind kind, int64_t count, DType dtype) const {
  return entrain::Explain(*core_, kind, count, dtype);
}

}  // namespace entrain
