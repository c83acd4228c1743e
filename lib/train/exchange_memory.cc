// The memory of exchanges, on the host and on a device, and other differences between the two.
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/train/exchange.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

absl::StatusOr<WideShard> MakeWide(DeviceRoom* room, int64_t most, DType type) {
  const int64_t bytes = most * (2 * kFloat + SizeOf(type));
  WideShard wide;
  std::byte* memory = nullptr;
  if (room != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(memory, room->Keep(bytes));
  } else {
    ENTRAIN_ASSIGN_OR_RETURN(wide.host, OwnedBuffer::Allocate(bytes));
    memory = wide.host.data();
  }
  wide.theta = reinterpret_cast<float*>(memory);
  wide.anchor = wide.theta + most;
  wide.rounded = memory + 2 * most * kFloat;
  return wide;
}

}  // namespace

// On a device all ranks handle deltas in the same order, so the calls for deltas need no tags and
// may use every path. The worker itself waits before such a call and after it, so the call needs no
// stream. Packed calls have tags, because they use one path only and their debts are kept by tag.
CallOptions Exchange::OptionsOfDelta(int layer) const {
  CallOptions options = Options(room_ == nullptr || options_.merging().Packs() ? layer : -1);
  options.device = room_ != nullptr;
  if (groups_.copies > 1 || (groups_.tensor > 1 && slab_.layer(layer).replicated)) {
    // Gives the same bits in every sync group, whatever algorithm a group uses, so that copies stay
    // equal.
    options.determinism = Determinism::kRankOrder;
  }
  return options;
}

absl::Status Exchange::Reserve() {
  if (live_.dtype != DType::kF32) {
    ENTRAIN_ASSIGN_OR_RETURN(wide_, MakeWide(room_, slab_.largest().shard, live_.dtype));
    if (options_.overlap_steps > 0 || options_.carries()) {
      ENTRAIN_ASSIGN_OR_RETURN(merging_, MakeWide(room_, slab_.largest().shard, live_.dtype));
    }
  }
  if (options_.keeps_means()) {
    ENTRAIN_ASSIGN_OR_RETURN(means_, OwnedBuffer::Allocate(slab_.count() * kFloat));
    ZeroArray(means_.data(), slab_.count() * kFloat);
  }
  return room_ == nullptr ? absl::OkStatus() : ReserveOnDevice();
}

absl::Status Exchange::ReserveOnDevice() {
  const int64_t most = slab_.largest().shard;
  ENTRAIN_ASSIGN_OR_RETURN(float* const delta, deltas_.Reserve(options_.in_flight()));
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
  const Call call = reducer_->AllReduce(weights, absl::MakeSpan(delta, static_cast<size_t>(most)),
                                        OptionsOfDelta(0));
  return groups_.sync->Reserve(call, options_.in_flight());
}

void Exchange::SealAnchors() {
  if (anchors_.exist()) {
    anchors_.SealAll();
  }
}

}  // namespace entrain
