#include "lib/comm/call_funnel.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/kernels/merge.h"

namespace entrain {

bool ContributionDiffers(const Call& call, int size) {
  return (call.reduction.op == ReduceOp::kPreMultipliedSum && call.reduction.factor != 1) ||
         (call.reduction.merging != nullptr && !call.reduction.merging->Packs() && size == 1);
}

void Contribute(const Call& call, void* dst, const void* src, int64_t count) {
  if (call.reduction.merging != nullptr) {
    Merge(BestKernels(), *call.reduction.merging, call.dtype, dst, {&src, 1}, count);
  } else {
    BestKernels().scale_any(call.dtype, dst, src, count, call.reduction.factor);
  }
}

bool IsPacked(const Call& call) {
  return call.reduction.merging != nullptr && call.reduction.merging->Packs();
}
namespace {

// Returns a call of this shape. Input and output are different buffers, because an all_to_all in
// place has another plan.
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

CallFunnel::CallFunnel(CommShell& shell, const CoreConfig& config, const Topology& topology,
                       const Peers& peers, const CommEnd& end, BufferPool& pool)
    : shell_(shell),
      config_(config),
      peers_(peers),
      end_(end),
      pool_(pool),
      timeout_ns_(config.timeout_ns),
      numbers_(peers.size()),
      planner_(config.rank, topology, config.overrides, config.tuning, config.paths,
               config.determinism) {}

// ---- Calls

void CallFunnel::SetDeadline(Call* call, int64_t now_ns) const {
  if (call->options.timeout_ns == 0) {
    call->options.timeout_ns = timeout_ns();
  }
  if (call->options.deadline.at_ns == Deadline::Never().at_ns) {
    call->options.deadline = Deadline::From(now_ns, call->options.timeout_ns);
  }
}

absl::StatusOr<OwnedBuffer> CallFunnel::Stage(Call* call) {
  if (call->in.bytes == 0) {
    return OwnedBuffer();
  }
  ENTRAIN_ASSIGN_OR_RETURN(OwnedBuffer staged, pool_.Take(call->in.bytes));
  Contribute(*call, staged.data(), call->in.data, call->in.bytes / SizeOf(call->dtype));
  call->in.data = staged.data();
  return staged;
}

absl::Status CallFunnel::Furnish(const Call& call, Admitted* admitted) {
  if (end_.ended()) {
    return end_.status();
  }
  ENTRAIN_ASSIGN_OR_RETURN(admitted->plan, planner_.PlanFor(call));
  const Plan& plan = *admitted->plan;
  if (const int64_t bytes = plan.SlotBytes(call.reduction); bytes > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(admitted->scratch, pool_.Take(bytes * plan.window));
  }
  if (call.reduction.op == ReduceOp::kCustom && reductions_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(reductions_, CallbackThread::Start("entrain-reduce"));
  }
  return absl::OkStatus();
}

absl::Status CallFunnel::AdmitLocked(const Call& call, Admitted* admitted) {
  // Furnish may fail for lack of memory, so it runs before the call takes a number. A failed call
  // then uses up no number, and later calls of this rank still match those of the other ranks.
  ENTRAIN_RETURN_IF_ERROR(Furnish(call, admitted));
  admitted->waits = MustWait(call);
  admitted->wiring = admitted->waits ? Unnumbered(call) : Numbered(call);
  return absl::OkStatus();
}

absl::StatusOr<RefPtr<Work>> CallFunnel::Start(Call call, int64_t now_ns) {
  OwnedBuffer staged;
  if (ContributionDiffers(call, peers_.size())) {
    ENTRAIN_ASSIGN_OR_RETURN(staged, Stage(&call));
  }
  absl::MutexLock lock(&mutex_);
  Admitted admitted;
  ENTRAIN_RETURN_IF_ERROR(AdmitLocked(call, &admitted));
  calls_.fetch_add(1, std::memory_order_relaxed);
  RefPtr<CallWork> work =
      shell_.Submit(std::move(admitted), {call, std::move(staged), {}, now_ns, {}});
  if (work->waits()) {
    // The driver may start the work before this thread puts it in its line. The driver cannot miss
    // the work, because TakeTurns needs the lock that this thread holds.
    lines_[CallNumbers::TagOf(call)].push_back(work.get());
  }
  return RefPtr<Work>::Adopt(work.Leak());
}

absl::Status CallFunnel::Admit(const Call& call, Admitted* admitted) {
  absl::MutexLock lock(&mutex_);
  if (MustWait(call)) {  // another thread has just started a receive from any peer
    admitted->waits = true;
    return absl::OkStatus();
  }
  return AdmitLocked(call, admitted);
}

absl::StatusOr<std::vector<Wiring>> CallFunnel::TakeNumbers(const Call& call, size_t count) {
  std::vector<Wiring> numbers;
  absl::MutexLock lock(&mutex_);
  if (end_.ended()) {
    return end_.status();
  }
  while (numbers.size() < count) {
    numbers.push_back(Numbered(call));
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  return numbers;
}

absl::StatusOr<RefPtr<Work>> CallFunnel::LaunchPart(const Call& part, const Wiring& number,
                                                    RefPtr<Work> whole, int64_t started_ns) {
  Admitted admitted;
  {
    absl::MutexLock lock(&mutex_);
    ENTRAIN_RETURN_IF_ERROR(Furnish(part, &admitted));
  }
  admitted.wiring = number;
  return RefPtr<Work>::Adopt(
      shell_.Submit(std::move(admitted), {part, {}, {}, started_ns, std::move(whole)}).Leak());
}

// ---- Numbers

Wiring CallFunnel::Unnumbered(const Call& call) const {
  Wiring wiring{peers_.endpoints(), peers_.contexts(), config_.context};
  wiring.user_tag = CallNumbers::TagOf(call);
  wiring.point_to_point = IsMessage(call.kind);
  return wiring;
}

void CallFunnel::Number(CallNumbers::Series series, Wiring* wiring) {
  wiring->sequence = numbers_.Take(series);
  wiring->call_number = CallNumbers::OnWire(wiring->sequence);
}

Wiring CallFunnel::Numbered(const Call& call) {
  Wiring wiring = Unnumbered(call);
  Number(CallNumbers::Of(call), &wiring);
  return wiring;
}

uint32_t CallFunnel::NextFrom(uint32_t tag, int peer) const {
  return CallNumbers::OnWire(numbers_.Next(CallNumbers::Messages(tag, CallKind::kRecv, peer)));
}

CallId CallFunnel::CallIdWith(const CallWork& work, int peer) const {
  const uint32_t tag = work.wiring().user_tag;
  return {tag, work.waits() ? NextFrom(tag, peer) : work.wiring().call_number};
}

bool CallFunnel::HasStarted(CallId call) const {
  return call == kPing ||
         CallNumbers::IsBefore(call.number, numbers_.Next(CallNumbers::Collectives(call.user_tag)));
}

bool CallFunnel::HasMade(int peer, Asked asked, CallId call) const {
  if (asked == Asked::kCollective) {
    return HasStarted(call);
  }
  absl::MutexLock lock(&mutex_);
  uint64_t next = numbers_.Next(CallNumbers::Messages(
      call.user_tag, asked == Asked::kSend ? CallKind::kSend : CallKind::kRecv, peer));
  const auto line = lines_.find(call.user_tag);
  if (asked == Asked::kRecv && line != lines_.end()) {
    // Receives in a line have no numbers yet. A receive that can take a message from the peer
    // counts as if it had a number.
    next += static_cast<uint64_t>(std::count_if(
        line->second.begin(), line->second.end(),
        [peer](const CallWork* work) { return work->peer() < 0 || work->peer() == peer; }));
  }
  return CallNumbers::IsBefore(call.number, next);
}

std::optional<Refusal> CallFunnel::Refuse(const Call& call, absl::string_view why) {
  Refusal refusal{Asked::kCollective, {}, std::string(why)};
  absl::MutexLock lock(&mutex_);
  if (end_.ended()) {
    return std::nullopt;
  }
  if (IsMessage(call.kind)) {
    if (call.root < 0 || call.root >= peers_.size() || call.root == peers_.rank()) {
      return std::nullopt;  // the peer is invalid, so no rank waits for the call
    }
    refusal.kind = call.kind == CallKind::kSend ? Asked::kSend : Asked::kRecv;
  }
  refusal.call = {CallNumbers::TagOf(call),
                  CallNumbers::OnWire(numbers_.Next(CallNumbers::Of(call)))};
  if (last_refused_ == refusal) {
    return std::nullopt;  // the caller has only repeated the attempt
  }
  last_refused_ = refusal;
  return refusal;
}

// ---- Receives in line

bool CallFunnel::MustWait(const Call& call) const {
  return call.kind == CallKind::kRecvAny ||
         (call.kind == CallKind::kRecv && lines_.contains(CallNumbers::TagOf(call)));
}

std::vector<CallWork*> CallFunnel::TakeTurns(absl::FunctionRef<int(uint32_t)> sender) {
  std::vector<CallWork*> begun;
  absl::MutexLock lock(&mutex_);
  for (auto line = lines_.begin(); line != lines_.end() && !end_.ended();) {
    std::deque<CallWork*>& works = line->second;
    while (!works.empty() && works.front()->started) {
      CallWork* const work = works.front();
      Call call = work->call();
      call.kind = CallKind::kRecv;
      call.root = work->peer() >= 0 ? work->peer() : sender(line->first);
      Admitted admitted;
      if (call.root < 0 || !Furnish(call, &admitted).ok()) {
        break;
      }
      admitted.wiring = Numbered(call);
      work->Take(std::move(admitted), call.root);
      works.pop_front();
      begun.push_back(work);
    }
    if (const auto here = line++; works.empty()) {
      lines_.erase(here);
    }
  }
  return begun;
}

void CallFunnel::LeaveLine(CallWork* work) {
  absl::MutexLock lock(&mutex_);
  const auto line = lines_.find(CallNumbers::TagOf(work->call()));
  std::deque<CallWork*>& works = line->second;
  works.erase(std::find(works.begin(), works.end(), work));
  if (works.empty()) {
    lines_.erase(line);
  }
}

std::shared_ptr<CallbackThread> CallFunnel::Reductions() const {
  absl::MutexLock lock(&mutex_);
  return reductions_;
}

// ---- Plans

absl::StatusOr<const char*> CallFunnel::AlgorithmFor(CallKind kind, int64_t count, DType dtype) {
  absl::MutexLock lock(&mutex_);
  ENTRAIN_ASSIGN_OR_RETURN(const auto plan, planner_.PlanFor(CallLike(kind, count, dtype)));
  return plan->algorithm;
}

absl::StatusOr<std::string> CallFunnel::Explain(CallKind kind, int64_t count, DType dtype) {
  absl::MutexLock lock(&mutex_);
  return planner_.Explain(CallLike(kind, count, dtype));
}

void CallFunnel::SetPaths(const Paths& paths) {
  absl::MutexLock lock(&mutex_);
  planner_.SetPaths(paths);
}

void CallFunnel::SetProbed(const CostModel& model) {
  absl::MutexLock lock(&mutex_);
  planner_.SetProbed(model);
}

CostModel CallFunnel::model() const {
  absl::MutexLock lock(&mutex_);
  return planner_.model();
}

Paths CallFunnel::paths() const {
  absl::MutexLock lock(&mutex_);
  return planner_.paths();
}

}  // namespace entrain
