#include "lib/train/shard/layer_gather.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "lib/base/callback_scope.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {

LayerGather::LayerGather(const Slab& slab, BufferPool& pool, std::shared_ptr<Communicator> comm,
                         DType dtype, int64_t timeout_ns)
    : slab_(slab),
      pool_(pool),
      comm_(std::move(comm)),
      dtype_(dtype),
      timeout_ns_(timeout_ns),
      given_(static_cast<size_t>(slab.layers()), nullptr),
      slots_(static_cast<size_t>(slab.layers())) {}

LayerGather::~LayerGather() {
  absl::MutexLock lock(&mutex_);
  for (Slot& slot : slots_) {
    if (slot.work && !slot.work->done()) {
      comm_->Abort("the sharded model was destroyed while a layer was being gathered");
      slot.work->Wait(Deadline::Never());  // the call writes to the slot's buffer
    }
  }
}

absl::Status LayerGather::Start(int layer) {
  {
    absl::MutexLock lock(&mutex_);
    if (slot(layer).state != State::kFree) {
      return slot(layer).status;
    }
    slot(layer).state = State::kGated;
    slot(layer).status = absl::OkStatus();
  }
  if (gate_ == nullptr) {
    Begin(layer, absl::OkStatus());
  } else {
    gate_->WhenOpen(layer, [this, layer](const absl::Status& gate) { Begin(layer, gate); });
  }
  absl::MutexLock lock(&mutex_);
  return slot(layer).status;
}

void LayerGather::Begin(int layer, const absl::Status& gate) {
  // While the slot is gated, only this thread uses it. So this thread fills it outside the lock.
  Slot filled;
  filled.status = gate.ok() ? Send(layer, &filled) : gate;
  filled.status = Annotate(filled.status, absl::StrCat("layer ", layer, " gather"));
  filled.state = State::kTravelling;
  std::vector<Worker::Continuation> then;
  {
    absl::MutexLock lock(&mutex_);
    status_.Update(filled.status);
    then.swap(slot(layer).then);
    slot(layer) = std::move(filled);
  }
  for (Worker::Continuation& next : then) {
    WhenArrived(layer, std::move(next));
  }
}

void LayerGather::WhenGathered(int layer, Worker::Continuation then) {
  if (const absl::Status status = Start(layer); !status.ok()) {
    then(status);
    return;
  }
  if (gate_ != nullptr) {
    gate_->Expect(layer);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (slot(layer).state == State::kGated) {
      slot(layer).then.push_back(std::move(then));
      return;
    }
  }
  WhenArrived(layer, std::move(then));
}

void LayerGather::WhenArrived(int layer, Worker::Continuation then) {
  RefPtr<Work> work;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    work = slot(layer).work;
    status = slot(layer).status;
  }
  if (status.ok() && work) {
    work->Then([layer, then = std::move(then)](const absl::Status& over) mutable {
      then(Annotate(over, absl::StrCat("layer ", layer, " gather")));
    });
  } else {
    then(status);
  }
}

absl::Status LayerGather::Send(int layer, Slot* slot) {
  const SlabLayer& l = slab_.layer(layer);
  if (LendsBound(layer)) {
    slot->params = live_->param(layer);  // the contract: the caller only reads
    return absl::OkStatus();
  }
  std::byte* whole = given_[static_cast<size_t>(layer)];
  if (whole == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(slot->buffer, pool_.Take(l.padded * SizeOf(dtype_)));
    whole = slot->buffer.data();
  }
  slot->params = whole;
  BestKernels().cast(whole + l.first * SizeOf(dtype_), dtype_, live_->param(layer), live_->dtype,
                     l.shard);
  if (comm_ == nullptr) {
    return absl::OkStatus();
  }
  Call call = AllGather(l, whole);
  call.options.user_tag = layer;
  ENTRAIN_ASSIGN_OR_RETURN(slot->work, comm_->Start(call));
  return absl::OkStatus();
}

// Returns an in-place all-gather. This rank's part must already be in `buffer`.
Call LayerGather::AllGather(const SlabLayer& layer, std::byte* buffer) const {
  const int64_t element = SizeOf(dtype_);
  Call call;
  call.kind = CallKind::kAllGather;
  call.dtype = dtype_;
  call.count = layer.shard;
  call.in = {buffer + layer.first * element, layer.shard * element};
  call.out = {buffer, layer.padded * element};
  call.options = TimedCall(timeout_ns_, -1, false);
  return call;
}

absl::Status LayerGather::CheckMayWait(int layer) const {
  absl::MutexLock lock(&mutex_);
  const Slot& slot = slots_[static_cast<size_t>(layer)];
  const bool arrived = slot.state == State::kHeld ||
                       (slot.state == State::kTravelling && (!slot.work || slot.work->done()));
  return arrived ? absl::OkStatus() : CallbackScope::Check(Does::kWait);
}

absl::StatusOr<void*> LayerGather::Wait(int layer, uint64_t* wait_ns) {
  ENTRAIN_RETURN_IF_ERROR(CheckMayWait(layer));
  ENTRAIN_RETURN_IF_ERROR(Start(layer));
  if (gate_ != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(gate_->WaitOpen(layer));
  }
  const int64_t start = Clock::Real().Now();
  ENTRAIN_RETURN_IF_ERROR(AwaitBegun(layer));
  RefPtr<Work> work;
  {
    absl::MutexLock lock(&mutex_);
    work = slot(layer).work;
  }
  if (work) {
    work->Wait(Deadline::Never());  // the call has a deadline of its own
  }
  *wait_ns += static_cast<uint64_t>(Clock::Real().Now() - start);
  absl::MutexLock lock(&mutex_);
  Slot& slot = this->slot(layer);
  slot.state = State::kHeld;
  if (work && slot.status.ok()) {
    slot.status = Annotate(work->status(), absl::StrCat("layer ", layer, " gather"));
    status_.Update(slot.status);
  }
  ENTRAIN_RETURN_IF_ERROR(slot.status);
  return slot.params;
}

// Blocks until Begin has started the gather of the layer. The gate is open, but the thread that has
// opened the gate may not have called Begin yet.
absl::Status LayerGather::AwaitBegun(int layer) {
  const int64_t limit_ns = TimeLimit(timeout_ns_, {comm_.get()});
  {
    absl::MutexLock lock(&mutex_);
    const auto begun = [this, layer]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return slot(layer).state != State::kGated;
    };
    if (mutex_.AwaitWithTimeout(absl::Condition(&begun), absl::Nanoseconds(limit_ns))) {
      return absl::OkStatus();
    }
  }
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("layer ", layer, " gather: its exchange is over, but it has not begun after ",
                   limit_ns / kMillisecond, " ms"));
  if (comm_ != nullptr) {
    comm_->EndWith(late);
  }
  return late;
}

absl::Status LayerGather::Release(int layer) {
  State state;
  {
    absl::MutexLock lock(&mutex_);
    state = slot(layer).state;
  }
  if (state == State::kFree) {
    return absl::FailedPreconditionError(absl::StrCat("layer ", layer, " is not gathered"));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckMayWait(layer));
  uint64_t unused = 0;
  const absl::Status status =
      state == State::kHeld ? absl::OkStatus() : Wait(layer, &unused).status();
  absl::MutexLock lock(&mutex_);
  Slot& slot = this->slot(layer);
  pool_.Give(std::move(slot.buffer));
  slot = Slot();
  return status;
}

bool LayerGather::IsFree(int layer) const {
  absl::MutexLock lock(&mutex_);
  return slots_[static_cast<size_t>(layer)].state == State::kFree;
}

int LayerGather::FirstHeld() const {
  absl::MutexLock lock(&mutex_);
  for (size_t l = 0; l < slots_.size(); ++l) {
    if (slots_[l].state != State::kFree) {
      return static_cast<int>(l);
    }
  }
  return -1;
}

absl::Status LayerGather::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace entrain
