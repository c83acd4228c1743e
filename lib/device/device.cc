#include "lib/device/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace entrain {
namespace {

thread_local KernelStream* current = nullptr;

}  // namespace

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
    // As long as a hand-over is quicker than a sleep, then in naps of a tenth of what was waited.
    if (now - begun < 50 * kMicrosecond) {
      std::this_thread::yield();
    } else {
      const int64_t nap = std::clamp((now - begun) / 10, 10 * kMicrosecond, kMillisecond);
      std::this_thread::sleep_for(std::chrono::nanoseconds(nap));
    }
  }
}

KernelStream::KernelStream(Device& device, StreamHandle stream) : device_(device), stream_(stream) {
  current = this;
}

KernelStream::~KernelStream() {
  current = nullptr;
}

KernelStream* KernelStream::Current() {
  return current;
}

void KernelStream::Note(const absl::Status& error) {
  status_.Update(error);
}

}  // namespace entrain
