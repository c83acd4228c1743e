#include "lib/comm/communicator.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/create/runtime.h"
#include "lib/comm/create/split_work.h"
#include "lib/comm/device_calls.h"

namespace entrain {
namespace {

BufferView View(const void* data, int64_t bytes) {
  return {const_cast<void*>(data), bytes, MemoryKind::kHost};
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
    core_->Abort(absl::StrCat("it destroyed the communicator with ", open,
                              " unfinished calls on device memory"));
  }
  core_->engine().seat().RunInDriver([this] { core_->Leave("destroyed the communicator"); });
  if (device_calls_ != nullptr) {
    device_calls_->Close();
  }
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

absl::StatusOr<RefPtr<Work>> Communicator::Start(const Call& call, bool kick) {
  if (!call.options.device && !call.options.on_stream) {
    return core_->Start(call, kick);
  }
  ENTRAIN_ASSIGN_OR_RETURN(DeviceCalls* const calls, OnDevice());
  return calls->Start(call, /*blocks=*/false);
}

namespace {

// A work that is over when all of its calls are over.
class BatchWork final : public Work {
 public:
  // Makes a work with two references. One reference belongs to the caller. The work releases the
  // other reference when the last call is over.
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
  // Must be called once, after all calls were started.
  void AllStarted() { Count(); }

 private:
  // Counts down. The thread that reaches 0 finishes the work. Acquire-release: this thread sees the
  // statuses that the other threads have stored.
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
  return core_->runner().RunAgain(key, in, out);
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
  return std::make_shared<Communicator>(std::move(runtime), std::move(part));
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
  return std::make_shared<Communicator>(runtime, work->TakeNext());
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

void Communicator::Abort(absl::string_view reason) {
  core_->Abort(reason);
}
void Communicator::EndWith(const absl::Status& why) {
  core_->EndWith(why);
}
void Communicator::LeaveWith(const absl::Status& why) {
  EndWith(why);
  core_->engine().seat().RunInDriver([this] {
    core_->Leave("gave up");
    core_->engine().Flush();
  });
}
std::shared_ptr<void> Communicator::EndToo(const Communicator& part) {
  return core_->EndToo(part.core_);
}
void Communicator::Refused(const Call& call, const absl::Status& why) {
  core_->Refused(call, Annotate(why, NameOf(call.kind)));
}
void Communicator::NoteFunction(const void* who, absl::string_view name) {
  runtime_->engine().functions().Note(who, name);
}
absl::Status Communicator::status() const {
  return core_->end().status();
}
bool Communicator::ended_here() const {
  return core_->end().here();
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
bool Communicator::spans_hosts() const {
  const std::vector<Member>& members = core_->config().members;
  const auto elsewhere = [&](const Member& member) {
    return member.host_id != members.front().host_id;
  };
  return std::any_of(members.begin(), members.end(), elsewhere);
}
bool Communicator::spans_sites() const {
  return core_->funnel().paths().round_trip_ns > 0;
}
int Communicator::cores() const {
  const std::vector<Member>& members = core_->config().members;
  const Member& own = members[static_cast<size_t>(core_->rank())];
  CpuCrowd alone, host;
  alone.Add(own.cpus);
  for (const Member& member : members) {
    if (member.host_id == own.host_id) {
      host.Add(member.cpus);
    }
  }
  return std::clamp(host.Cores() / host.size(), 1, alone.Cores());
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

int64_t Communicator::silence_ns() const {
  return core_->inquiry().silence_ns();
}

void Communicator::SetSilence(int64_t silence_ns) {
  core_->inquiry().SetSilence(silence_ns);
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
