#include "lib/device/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

thread_local KernelStream* current = nullptr;

}  // namespace

void PauseAfter(int64_t waited_ns) {
  if (waited_ns < 50 * kMicrosecond) {
    std::this_thread::yield();
  } else {
    const int64_t nap = std::clamp(waited_ns / 10, 10 * kMicrosecond, kMillisecond);
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap));
  }
}

absl::Status Device::Wait(EventHandle event, Deadline give_up) {
  const Clock& clock = Clock::Real();
  const int64_t begun = clock.Now();
  for (;;) {
    const auto reached = Reached(event);
    if (!reached.ok() || *reached) {
      return reached.status();
    }
    const int64_t now = clock.Now();
    if (give_up.Passed(now)) {
      return absl::DeadlineExceededError("the device has not come so far");
    }
    PauseAfter(now - begun);
  }
}

absl::Status DeviceMark::Record(StreamHandle stream) {
  if (event_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(event_, device_.CreateEvent());
  }
  return device_.Record(event_, stream);
}

absl::StatusOr<bool> DeviceMark::Reached() const {
  return event_ == nullptr ? absl::StatusOr<bool>(true) : device_.Reached(event_);
}

bool DeviceMark::quiet() const {
  const auto reached = Reached();
  return !reached.ok() || *reached;
}

KernelStream::KernelStream(Device& device, StreamHandle stream, int64_t limit_ns)
    : device_(device), stream_(stream), limit_ns_(limit_ns) {
  current = this;
}

KernelStream::~KernelStream() {
  current = nullptr;
}

KernelStream* KernelStream::Current() {
  return current;
}

const Kernels& CurrentKernels() {
  return current == nullptr ? SharedKernels() : current->device().kernels();
}

void CopyArray(void* dst, const void* src, int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  if (current == nullptr) {
    CopyShared(dst, src, bytes);
  } else {
    current->Note(current->device().Copy(dst, src, bytes, current->stream()));
  }
}

void KernelStream::Note(const absl::Status& error) {
  status_.Update(error);
}

}  // namespace entrain
