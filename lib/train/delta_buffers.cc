#include "lib/train/delta_buffers.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

DeltaBuffers::DeltaBuffers(DeviceRoom* room, int64_t most)
    : room_(room), most_(most), pool_(2 * most * kFloat) {}

absl::StatusOr<float*> DeltaBuffers::Reserve(int deltas) {
  while (static_cast<int>(idle_.size()) < deltas) {
    ENTRAIN_ASSIGN_OR_RETURN(std::byte* const delta, room_->Keep(most_ * kFloat));
    idle_.push_back(reinterpret_cast<float*>(delta));
  }
  return idle_.front();
}

absl::StatusOr<DeltaBuffers::Delta> DeltaBuffers::Take(int64_t count) {
  Delta delta;
  if (room_ != nullptr) {
    if (idle_.empty()) {
      return absl::InternalError("more deltas are under way than were reserved");
    }
    delta.data = idle_.back();
    idle_.pop_back();
    return delta;
  }
  ENTRAIN_ASSIGN_OR_RETURN(delta.host, pool_.Take(count * kFloat));
  delta.data = reinterpret_cast<float*>(delta.host.data());
  return delta;
}

void DeltaBuffers::Clear() {
  if (most_ * kFloat >= kLeastFreed) {
    pool_.Clear();
  }
}

void DeltaBuffers::Give(Delta delta) {
  if (room_ != nullptr && delta.data != nullptr) {
    idle_.push_back(delta.data);
  }
  pool_.Give(std::move(delta.host));
}

}  // namespace entrain
