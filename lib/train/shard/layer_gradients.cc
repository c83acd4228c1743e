#include "lib/train/shard/layer_gradients.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {

namespace {

// How many sums over the sync group are under way at a time. Two keep a near link busy. Between
// distant sites, sums of so many bytes are under way, because one sum does not fill the link. Still
// more would only use up the time limit of the last one.
constexpr size_t kNearSums = 2;
constexpr int64_t kFarBytes = 64 << 20;

}  // namespace

LayerGradients::LayerGradients(const Slab& slab, BufferPool& pool, Comms comms, DType dtype,
                               int64_t timeout_ns)
    : slab_(slab),
      pool_(pool),
      comms_(std::move(comms)),
      dtype_(dtype),
      timeout_ns_(timeout_ns),
      lent_(static_cast<size_t>(slab.layers())),
      given_(static_cast<size_t>(slab.layers()), nullptr),
      jobs_(static_cast<size_t>(slab.layers()), 0),
      context_starter_(TimeLimit(timeout_ns, {comms_.shard.get()}), GiveUp()),
      sync_starter_(
          TimeLimit(timeout_ns, {comms_.shard.get(), comms_.context.get(), comms_.sync.get()}),
          GiveUp()),
      worker_(TimeLimit(timeout_ns, {comms_.shard.get(), comms_.context.get(), comms_.sync.get()}),
              GiveUp()) {}

absl::AnyInvocable<void(const absl::Status&)> LayerGradients::GiveUp() {
  return [this](const absl::Status& why) { Abandon(Annotate(why, "shard: gradients")); };
}

LayerGradients::~LayerGradients() {
  if (!worker_.IsDone(worker_.last())) {
    Abandon(
        absl::AbortedError("the sharded model was destroyed while gradients were being reduced"));
  }
  worker_.Stop();
  sync_starter_.Stop();
  context_starter_.Stop();
}

absl::Status LayerGradients::SetBuffer(int layer, std::byte* buffer) {
  const auto at = static_cast<size_t>(layer);
  if (jobs_[at] != 0) {
    ENTRAIN_RETURN_IF_ERROR(worker_.Wait(jobs_[at]));
  }
  given_[at] = buffer;
  return absl::OkStatus();
}

absl::StatusOr<void*> LayerGradients::Lend(int layer) {
  const auto at = static_cast<size_t>(layer);
  if (Lent(layer)) {
    return lent_[at].data;
  }
  const int64_t bytes = slab_.layer(layer).padded * SizeOf(dtype_);
  Lending lent;
  lent.data = given_[at];
  if (lent.data != nullptr && jobs_[at] != 0) {
    ENTRAIN_RETURN_IF_ERROR(worker_.Hold(jobs_[at]));
  } else if (lent.data == nullptr) {
    // At least 1, even if the layer has no elements, because an empty buffer would mean "not lent".
    ENTRAIN_ASSIGN_OR_RETURN(lent.buffer, pool_.Take(std::max<int64_t>(bytes, 1)));
    lent.data = lent.buffer.data();
  }
  std::memset(lent.data, 0, static_cast<size_t>(bytes));
  lent_[at] = std::move(lent);
  return lent_[at].data;
}

absl::Status LayerGradients::Reduce(int layer, bool global) {
  if (!Lent(layer)) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer ", layer, " has no gradient buffer to reduce"));
  }
  const auto at = static_cast<size_t>(layer);
  const auto flight = std::make_shared<Flight>();
  flight->layer = layer;
  flight->global = global && comms_.sync != nullptr;
  flight->lent = std::exchange(lent_[at], Lending());
  ENTRAIN_RETURN_IF_ERROR(Annotate(Scatter(*flight), NameOf(*flight)));
  jobs_[at] = PostSums(flight);
  return absl::OkStatus();
}

// The sum over a group starts as soon as the sum before it is over. So it does not wait until
// earlier layers have been added. On one host no sum over the sync group waits for a network: there
// the worker that adds starts this sum, so that ranks that share cores need one thread less.
uint64_t LayerGradients::PostSums(const std::shared_ptr<Flight>& flight) {
  Worker* starter = nullptr;
  uint64_t started = 0;
  const auto post = [&](Worker& next, Sum sum) {
    started = next.Post([this, flight, sum, starter, started]() -> absl::Status {
      if (starter != nullptr) {
        ENTRAIN_RETURN_IF_ERROR(starter->Wait(started));
      }
      return Ended(*flight, StartSum(*flight, sum));
    });
    starter = &next;
  };
  if (comms_.context != nullptr) {
    post(context_starter_, kContext);
  }
  const bool far = flight->global && (comms_.sync->spans_hosts() || comms_.sync->spans_sites());
  const bool last = flight->global && !far;
  if (far) {
    post(sync_starter_, kSync);
  }
  return worker_.Post([this, flight, last, starter, started]() -> absl::Status {
    if (starter != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(starter->Wait(started));
    }
    if (last) {
      ENTRAIN_RETURN_IF_ERROR(Ended(*flight, StartSum(*flight, kSync)));
    }
    ENTRAIN_RETURN_IF_ERROR(Ended(*flight, Await(*flight)));
    ENTRAIN_RETURN_IF_ERROR(Ended(*flight, AddToBound(*flight, Own(*flight))));
    pool_.Give(std::move(flight->lent.buffer));
    return absl::OkStatus();
  });
}

// Adds the layer's name to an error, and tells the other ranks.
absl::Status LayerGradients::Ended(const Flight& flight, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  const absl::Status why = Annotate(status, NameOf(flight));
  Abandon(why);
  return why;
}

std::string LayerGradients::NameOf(const Flight& flight) {
  return absl::StrCat("layer ", flight.layer, " gradients");
}

// Waits for the calls, because they use the buffer. If the job was dropped after an error, Abandon
// has ended the communicators, so the calls end soon.
LayerGradients::Flight::~Flight() {
  for (const RefPtr<Work>& work : sums) {
    if (work) {
      work->Wait(Deadline::Never(), true);
    }
  }
}

std::byte* LayerGradients::Own(const Flight& flight) const {
  return flight.data() + slab_.layer(flight.layer).first * SizeOf(dtype_);
}

// Returns a reduce-scatter that writes to this rank's part of `buffer`.
Call LayerGradients::ReduceScatter(const SlabLayer& layer, std::byte* buffer) const {
  Call call;
  call.kind = CallKind::kReduceScatter;
  call.dtype = dtype_;
  call.count = layer.shard;
  call.in = {buffer, layer.padded * SizeOf(dtype_)};
  call.out = {buffer + layer.first * SizeOf(dtype_), layer.shard * SizeOf(dtype_)};
  call.options = TimedCall(timeout_ns_, -1, true);
  return call;
}

Call LayerGradients::AllReduce(int64_t count, std::byte* own) const {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = dtype_;
  call.count = count;
  call.in = call.out = {own, count * SizeOf(dtype_)};
  call.options = TimedCall(timeout_ns_, -1, true);
  if (comms_.context != nullptr) {
    call.options.determinism = Determinism::kRankOrder;
  }
  return call;
}

absl::Status LayerGradients::Scatter(Flight& flight) {
  const SlabLayer& l = slab_.layer(flight.layer);
  if (comms_.shard == nullptr || l.padded == 0) {
    return absl::OkStatus();
  }
  Call call = ReduceScatter(l, flight.data());
  call.options.user_tag = flight.layer;
  ENTRAIN_ASSIGN_OR_RETURN(flight.sums[kShard], comms_.shard->Start(call));
  return absl::OkStatus();
}

// Waits for the sums that have started.
absl::Status LayerGradients::Await(const Flight& flight) {
  constexpr const char* kOver[kSums] = {"within the replica", "over the context axis",
                                        "over replicas"};
  for (size_t sum = 0; sum < kSums; ++sum) {
    if (const RefPtr<Work>& work = flight.sums[sum]; work) {
      Worker::Doing(absl::StrCat(NameOf(flight), ": the sum ", kOver[sum]));
      work->Wait(Deadline::Never(), true);  // the call has a deadline of its own
      ENTRAIN_RETURN_IF_ERROR(work->status());
    }
  }
  return absl::OkStatus();
}

absl::Status LayerGradients::StartSum(Flight& flight, Sum sum) {
  ENTRAIN_RETURN_IF_ERROR(Await(flight));
  const int64_t valid = slab_.layer(flight.layer).valid;  // the same on all ranks of both groups
  if (valid == 0) {
    return absl::OkStatus();
  }
  if (sum == kSync) {
    Worker::Doing(absl::StrCat(NameOf(flight), ": the sums of earlier layers over replicas"));
    while (!HasRoom(Bytes(flight))) {
      in_flight_.front().first->Wait(Deadline::Never(), true);
    }
  }
  Call call = AllReduce(valid, Own(flight));
  call.options.user_tag = flight.layer;
  Communicator& comm = sum == kSync ? *comms_.sync : *comms_.context;
  ENTRAIN_ASSIGN_OR_RETURN(flight.sums[sum], comm.Start(call));
  if (sum == kSync) {
    in_flight_.emplace_back(flight.sums[sum], Bytes(flight));
  }
  return absl::OkStatus();
}

// Returns true if a sum of `bytes` bytes may start over the sync group.
bool LayerGradients::HasRoom(int64_t bytes) {
  while (!in_flight_.empty() && in_flight_.front().first->done()) {
    in_flight_.pop_front();
  }
  const auto add = [](int64_t sum, const auto& one) { return sum + one.second; };
  return in_flight_.size() < kNearSums ||
         (comms_.sync->spans_sites() &&
          std::accumulate(in_flight_.begin(), in_flight_.end(), bytes, add) <= kFarBytes);
}

absl::Status LayerGradients::AddToBound(const Flight& flight, const std::byte* own) {
  const SlabLayer& l = slab_.layer(flight.layer);
  if (l.valid == 0) {
    return absl::OkStatus();
  }
  const int ranks = slab_.slots() * (comms_.context == nullptr ? 1 : comms_.context->size()) *
                    (flight.global ? comms_.sync->size() : 1);
  const float share = 1.0f / static_cast<float>(ranks);
  const Kernels& kernels = SharedKernels();
  OwnedBuffer wide_own, wide_sums;
  const auto* values = reinterpret_cast<const float*>(own);
  if (dtype_ != DType::kF32) {
    ENTRAIN_ASSIGN_OR_RETURN(float* const floats, RoomForFloats(l.shard, &wide_own));
    kernels.cast(floats, DType::kF32, own, dtype_, l.valid);
    values = floats;
  }
  std::byte* const bound = live_->grad(flight.layer);
  if (live_->dtype == DType::kF32) {
    kernels.axpy(reinterpret_cast<float*>(bound), share, values, l.valid);
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(float* const sums, RoomForFloats(l.shard, &wide_sums));
    kernels.cast(sums, DType::kF32, bound, live_->dtype, l.valid);
    kernels.axpy(sums, share, values, l.valid);
    kernels.cast(bound, live_->dtype, sums, DType::kF32, l.valid);
  }
  pool_.Give(std::move(wide_own));
  pool_.Give(std::move(wide_sums));
  return absl::OkStatus();
}

// Takes memory from the pool into `buffer`, and returns this memory.
absl::StatusOr<float*> LayerGradients::RoomForFloats(int64_t count, OwnedBuffer* buffer) {
  ENTRAIN_ASSIGN_OR_RETURN(*buffer, pool_.Take(count * static_cast<int64_t>(sizeof(float))));
  return reinterpret_cast<float*>(buffer->data());
}

// Ends the communicators of all groups with the error `why`, so that no rank waits for this rank.
void LayerGradients::Abandon(const absl::Status& why) {
  for (const auto& comm : {comms_.shard, comms_.context, comms_.sync}) {
    if (comm != nullptr) {
      comm->EndWith(why);
    }
  }
}

}  // namespace entrain
