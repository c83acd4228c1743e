#include "lib/device/calls/device_side.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"

namespace entrain {
namespace {

bool Same(const DeviceExport& a, const DeviceExport& b) {
  return a.allocation == b.allocation;
}

// Returns true if two allocations of one process cannot have existed at the same time.
bool Excludes(const DeviceExport& a, const DeviceExport& b) {
  return !Same(a, b) && a.begin < b.begin + static_cast<uint64_t>(b.bytes) &&
         b.begin < a.begin + static_cast<uint64_t>(a.bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSide>> DeviceSide::Open(
    Device& device, const DeviceWays& ways, const std::optional<NodeGroups>& shape) {
  std::unique_ptr<DeviceSide> side(new DeviceSide(device, ways, shape));
  for (StreamHandle& stream : side->streams_) {
    ENTRAIN_ASSIGN_OR_RETURN(stream, device.CreateStream());
  }
  // This allocation must precede any wait of a stream for a call.
  ENTRAIN_ASSIGN_OR_RETURN(side->sample_, side->scratch_.Take(1));
  ENTRAIN_ASSIGN_OR_RETURN(uint32_t* const word, side->words_.Take());
  side->words_.Give(word);
  return side;
}

DeviceSide::~DeviceSide() {
  offload_.reset();
  for (const Opened& opened : opened_) {
    device_.Close(opened.memory);
  }
  for (const DeviceExport& memory : stale_) {
    device_.Close(memory);
  }
  scratch_.Give(sample_);
  for (const StreamHandle stream : streams_) {
    if (stream != nullptr) {
      device_.DestroyStream(stream);
    }
  }
}

void DeviceSide::Met(Ways ways) {
  if (ways.offload != nullptr) {
    offload_.reset(new DeviceOffload{std::move(ways.offload), {}});
  }
  met_ways_ = std::move(ways);
  met_.store(true, std::memory_order_release);
}

void DeviceSide::AbortOffload() const {
  if (met() && offload_ != nullptr) {
    offload_->offload->Abort();
  }
}

absl::StatusOr<std::byte*> DeviceSide::Address(int rank, const DeviceExport& memory) {
  const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& one) {
    return one.rank == rank && Same(one.memory, memory);
  });
  if (found != opened_.end()) {
    return found->base + memory.offset;
  }
  for (auto one = opened_.begin(); one != opened_.end();) {
    if (one->rank == rank && Excludes(one->memory, memory)) {
      absl::MutexLock lock(&mutex_);
      stale_.push_back(one->memory);
      one = opened_.erase(one);
    } else {
      ++one;
    }
  }
  ENTRAIN_ASSIGN_OR_RETURN(void* const base, device_.Open(memory));
  opened_.push_back({rank, memory, static_cast<std::byte*>(base)});
  return opened_.back().base + memory.offset;
}

void DeviceSide::CloseStale() {
  if (!met() || std::count(met_ways_.here.begin(), met_ways_.here.end(), true) > 1) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  for (const DeviceExport& memory : stale_) {
    device_.Close(memory);
  }
  stale_.clear();
}

}  // namespace entrain
