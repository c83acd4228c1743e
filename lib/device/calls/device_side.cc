#include "lib/device/calls/device_side.h"

#include <utility>

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<DeviceSide>> DeviceSide::Open(Device& device,
                                                             OffloadLibrary* library) {
  std::unique_ptr<DeviceSide> side(new DeviceSide(device, library));
  for (StreamHandle& stream : side->streams_) {
    ENTRAIN_ASSIGN_OR_RETURN(stream, device.CreateStream());
  }
  // This allocation must precede any wait of a stream for a call.
  ENTRAIN_ASSIGN_OR_RETURN(uint32_t* const word, side->words_.Take());
  side->words_.Give(word);
  return side;
}

DeviceSide::~DeviceSide() {
  offload_.reset();
  for (const StreamHandle stream : streams_) {
    if (stream != nullptr) {
      device_.DestroyStream(stream);
    }
  }
}

void DeviceSide::Met(std::unique_ptr<Offload> offload) {
  if (offload != nullptr) {
    offload_.reset(new DeviceOffload{std::move(offload), {}});
  }
  met_.store(true, std::memory_order_release);
}

void DeviceSide::AbortOffload() const {
  if (met() && offload_ != nullptr) {
    offload_->offload->Abort();
  }
}

}  // namespace entrain
