#include "lib/comm/device_side.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<DeviceSide>> DeviceSide::Open(Device& device, const DeviceWays& ways,
                                                             const std::optional<Islands>& shape) {
  std::unique_ptr<DeviceSide> side(new DeviceSide(device, ways, shape));
  for (StreamHandle& stream : side->streams_) {
    ENTRAIN_ASSIGN_OR_RETURN(stream, device.CreateStream());
  }
  // Before any stream waits for a call.
  ENTRAIN_ASSIGN_OR_RETURN(side->sample_, side->scratch_.Take(1));
  ENTRAIN_ASSIGN_OR_RETURN(uint32_t* const word, side->words_.Take());
  side->words_.Give(word);
  return side;
}

DeviceSide::~DeviceSide() {
  whole_.reset();
  island_.reset();
  for (const Opened& opened : opened_) {
    device_.Close(opened.memory);
  }
  scratch_.Give(sample_);
  for (const StreamHandle stream : streams_) {
    if (stream != nullptr) {
      device_.DestroyStream(stream);
    }
  }
}

void DeviceSide::Met(Ways ways) {
  for (auto& [offload, kept] :
       {std::pair(&ways.whole, &whole_), std::pair(&ways.island, &island_)}) {
    if (*offload != nullptr) {
      kept->reset(new DeviceOffload{std::move(*offload), {}});
    }
  }
  met_ways_ = std::move(ways);
  met_.store(true, std::memory_order_release);
}

void DeviceSide::AbortOffloads() const {
  if (!met()) {
    return;
  }
  for (const auto* const one : {&whole_, &island_}) {
    if (*one != nullptr) {
      (*one)->offload->Abort();
    }
  }
}

absl::StatusOr<std::byte*> DeviceSide::Address(const DeviceExport& memory) {
  const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& one) {
    return one.memory.allocation == memory.allocation;
  });
  if (found != opened_.end()) {
    return found->base + memory.offset;
  }
  ENTRAIN_ASSIGN_OR_RETURN(void* const base, device_.Open(memory));
  opened_.push_back({memory, static_cast<std::byte*>(base)});
  return opened_.back().base + memory.offset;
}

}  // namespace entrain
