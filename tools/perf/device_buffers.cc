#include "tools/perf/device_buffers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/device/device.h"
#include "lib/device/registry.h"

namespace entrain::perf {
namespace {

// Both buffers in two copies: on the device, and page-locked on the host.
class Twins {
 public:
  Twins(Device& device, int64_t bytes) : device_(device), bytes_(bytes) {}
  ~Twins() {
    for (size_t i = 0; i < 2; ++i) {
      device_.Free(there_[i]);
      device_.FreePinned(here_[i]);
    }
    if (stream_ != nullptr) {
      device_.DestroyEvent(event_);
      device_.DestroyStream(stream_);
    }
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  absl::Status Make() {
    ENTRAIN_ASSIGN_OR_RETURN(stream_, device_.CreateStream());
    ENTRAIN_ASSIGN_OR_RETURN(event_, device_.CreateEvent());
    for (size_t i = 0; i < 2; ++i) {
      ENTRAIN_ASSIGN_OR_RETURN(there_[i], device_.Allocate(bytes_));
      ENTRAIN_ASSIGN_OR_RETURN(here_[i], device_.AllocatePinned(bytes_));
    }
    return absl::OkStatus();
  }
  absl::Status Copy(bool to_device) {
    for (size_t i = 0; i < 2; ++i) {
      ENTRAIN_RETURN_IF_ERROR(device_.Copy(to_device ? there_[i] : here_[i],
                                           to_device ? here_[i] : there_[i], bytes_, stream_));
    }
    ENTRAIN_RETURN_IF_ERROR(device_.Record(event_, stream_));
    return device_.Wait(event_, Deadline::After(60 * kSecond));
  }
  void* here(size_t i) const { return here_[i]; }
  void* there(size_t i) const { return there_[i]; }

 private:
  Device& device_;
  const int64_t bytes_;
  StreamHandle stream_ = nullptr;
  EventHandle event_ = nullptr;
  void *there_[2] = {}, *here_[2] = {};
};

}  // namespace

absl::StatusOr<Buffers> AllocateOnDevice(int rank, int64_t bytes, std::string* name) {
  const auto devices = OpenDevices();
  if (!devices.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--memory device: ", devices.status().message()));
  }
  ENTRAIN_ASSIGN_OR_RETURN(Device* const device, (*devices)->At(rank % (*devices)->count()));
  *name = device->name();
  const auto twins = std::make_shared<Twins>(*device, std::max<int64_t>(bytes, 1));
  ENTRAIN_RETURN_IF_ERROR(twins->Make());
  return Buffers(twins->there(0), twins->there(1), [twins] {})
      .SeenAs(twins->here(0), twins->here(1),
              [twins](bool to_device) { return twins->Copy(to_device); });
}

}  // namespace entrain::perf
