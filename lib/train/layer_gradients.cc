#include "lib/train/layer_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/timed_call.h"

namespace entrain {

LayerGradients::LayerGradients(const Slab& slab, BufferPool& pool,
                               std::shared_ptr<Communicator> shard,
                               std::shared_ptr<Communicator> sync, DType dtype, int64_t timeout_ns)
    : slab_(slab),
      pool_(pool),
      shard_(std::move(shard)),
      sync_(std::move(sync)),
      dtype_(dtype),
      timeout_ns_(timeout_ns),
      lent_(static_cast<size_t>(slab.layers())) {}

LayerGradients::~LayerGradients() {
  if (!courier_.idle()) {
    Abandon(
        absl::AbortedError("the sharded model was destroyed while gradients were being reduced"));
  }
  courier_.Stop();
}

absl::StatusOr<void*> LayerGradients::Lend(int layer) {
  OwnedBuffer& lent = lent_[static_cast<size_t>(layer)];
  if (lent.size() == 0) {
    const int64_t bytes = slab_.layer(layer).padded * SizeOf(dtype_);
    // Never empty, which means not lent: a layer may have no elements.
    ENTRAIN_ASSIGN_OR_RETURN(lent, pool_.Take(std::max<int64_t>(bytes, 1)));
    std::memset(lent.data(), 0, static_cast<size_t>(bytes));
  }
  return lent.data();
}

absl::Status LayerGradients::Reduce(int layer, bool global) {
  Flight flight;
  flight.layer = layer;
  flight.global = global && sync_ != nullptr;
  std::swap(flight.buffer, lent_[static_cast<size_t>(layer)]);
  if (flight.buffer.size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer ", layer, " has no gradient buffer to reduce"));
  }
  if (shard_ != nullptr && slab_.layer(layer).padded > 0) {
    ENTRAIN_RETURN_IF_ERROR(Scatter(&flight));
  }
  courier_.Post([this, flight = std::move(flight)]() mutable {
    absl::Status status = Land(flight);
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat("layer ", flight.layer, " gradients"));
      Abandon(status);
    }
    pool_.Give(std::move(flight.buffer));
    return status;
  });
  return absl::OkStatus();
}

// One that is dropped was abandoned before, so this ends soon; until then the call uses the buffer.
LayerGradients::Flight::~Flight() {
  if (scatter) {
    scatter->Wait(Deadline::Never(), true);
  }
}

std::byte* LayerGradients::Own(const Flight& flight) const {
  return flight.buffer.data() + slab_.layer(flight.layer).first * SizeOf(dtype_);
}

absl::Status LayerGradients::Scatter(Flight* flight) {
  const SlabLayer& l = slab_.layer(flight->layer);
  Call call;
  call.kind = CallKind::kReduceScatter;
  call.dtype = dtype_;
  call.count = l.shard;
  call.in = {flight->buffer.data(), l.padded * SizeOf(dtype_)};
  call.out = {Own(*flight), l.shard * SizeOf(dtype_)};
  call.options = TimedCall(timeout_ns_, flight->layer, true);
  auto work = shard_->Start(call);
  if (!work.ok()) {
    return Annotate(work.status(), absl::StrCat("layer ", flight->layer, " gradients"));
  }
  flight->scatter = *std::move(work);
  return absl::OkStatus();
}

absl::Status LayerGradients::Land(Flight& flight) {
  if (flight.scatter) {
    flight.scatter->Wait(Deadline::Never(), true);  // the call has a deadline of its own
    ENTRAIN_RETURN_IF_ERROR(flight.scatter->status());
  }
  std::byte* const own = Own(flight);
  const int64_t valid = slab_.layer(flight.layer).valid;  // the same in all of the sync group
  if (flight.global && valid > 0) {
    ENTRAIN_RETURN_IF_ERROR(sync_->AllReduce(own, own, valid, dtype_, ReduceOp::kSum,
                                             TimedCall(timeout_ns_, flight.layer, true)));
  }
  return AddToSlab(flight, own);
}

absl::Status LayerGradients::AddToSlab(const Flight& flight, const std::byte* own) {
  const SlabLayer& l = slab_.layer(flight.layer);
  if (l.valid == 0) {
    return absl::OkStatus();
  }
  const int ranks = slab_.slots() * (flight.global ? sync_->size() : 1);
  const float share = 1.0f / static_cast<float>(ranks);
  float* const grads = grads_ + l.offset;
  if (dtype_ == DType::kF32) {
    kernels_.axpy(grads, share, reinterpret_cast<const float*>(own), l.valid);
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(OwnedBuffer wide,
                           pool_.Take(l.shard * static_cast<int64_t>(sizeof(float))));
  auto* const values = reinterpret_cast<float*>(wide.data());
  kernels_.cast(values, DType::kF32, own, dtype_, l.valid);
  kernels_.axpy(grads, share, values, l.valid);
  pool_.Give(std::move(wide));
  return absl::OkStatus();
}

// A rank that gives up tells the others of both groups, so that nobody waits for it.
void LayerGradients::Abandon(const absl::Status& why) {
  for (const auto& comm : {shard_, sync_}) {
    if (comm != nullptr) {
      comm->EndWith(why);
    }
  }
}

}  // namespace entrain
