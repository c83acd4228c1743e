// The memory of exchanges, on the host and on a device, and what else is different there.
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/train/exchange.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

// On a device deltas have the same order on all ranks, so that their calls may go any way; and
// nothing but the call waits for them, so they need no stream. Those that travel packed go one way
// only, and what they owe is kept by tag.
CallOptions Exchange::OptionsOfDelta(int layer) const {
  CallOptions options = Options(room_ == nullptr || options_.merging().Packs() ? layer : -1);
  options.device = room_ != nullptr;
  if (groups_.copies > 1 || (groups_.tensor > 1 && slab_.layer(layer).replicated)) {
    // The same bits in every sync group, whatever algorithm it uses: copies stay copies.
    options.determinism = Determinism::kRankOrder;
  }
  return options;
}

// That what has been enqueued is that.
absl::Status Exchange::CheckDevice() const {
  return room_ == nullptr ? absl::OkStatus() : KernelStream::Current()->status();
}

absl::StatusOr<Exchange::Wide> Exchange::MakeWide() {
  const int64_t most = slab_.largest().shard;
  const int64_t bytes = most * (2 * kFloat + SizeOf(live_.dtype));
  Wide wide;
  std::byte* memory = nullptr;
  if (room_ != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(memory, room_->Keep(bytes));
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(wide.host, OwnedBuffer::Allocate(bytes));
    memory = wide.host.data();
  }
  wide.theta = reinterpret_cast<float*>(memory);
  wide.anchor = wide.theta + most;
  wide.rounded = memory + 2 * most * kFloat;
  return wide;
}

absl::Status Exchange::Reserve() {
  if (live_.dtype != DType::kF32) {
    ENTRAIN_ASSIGN_OR_RETURN(wide_, MakeWide());
    if (options_.overlap_steps > 0) {
      ENTRAIN_ASSIGN_OR_RETURN(merging_, MakeWide());
    }
  }
  return room_ == nullptr ? absl::OkStatus() : ReserveOnDevice();
}

absl::Status Exchange::ReserveOnDevice() {
  const int64_t most = slab_.largest().shard;
  for (int i = 0; i < options_.in_flight(); ++i) {
    ENTRAIN_ASSIGN_OR_RETURN(std::byte* const delta, room_->Keep(most * kFloat));
    idle_deltas_.push_back(reinterpret_cast<float*>(delta));
  }
  if (!options_.plain()) {
    ENTRAIN_RETURN_IF_ERROR(anchors_.Reserve(outer_.arrays()));
  }
  if (options_.overlap_steps > 0) {
    ENTRAIN_RETURN_IF_ERROR(ReserveSnapshots());
  }
  if (groups_.sync == nullptr) {
    return absl::OkStatus();
  }
  const auto replicas = static_cast<size_t>(groups_.sync->size());
  const std::vector<double> weights(replicas, 1.0 / static_cast<double>(replicas));
  const Call call = reducer_->AllReduce(
      weights, absl::MakeSpan(idle_deltas_[0], static_cast<size_t>(most)), OptionsOfDelta(0));
  return groups_.sync->Reserve(call, options_.in_flight());
}

void Exchange::SealAnchors() {
  if (anchors_.exist()) {
    anchors_.SealAll();
  }
}

absl::Status Exchange::TakeDelta(int64_t count, Flight* flight) {
  if (room_ != nullptr) {  // as many as are ever under way were reserved
    flight->delta = idle_deltas_.back();
    idle_deltas_.pop_back();
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(flight->buffer, pool_.Take(count * kFloat));
  flight->delta = reinterpret_cast<float*>(flight->buffer.data());
  return absl::OkStatus();
}

// Whoever takes it next, on a device, uses it behind what has been enqueued so far.
void Exchange::GiveDelta(Flight flight) {
  if (room_ != nullptr && flight.delta != nullptr) {
    idle_deltas_.push_back(flight.delta);
  }
  pool_.Give(std::move(flight.buffer));
}

}  // namespace entrain
