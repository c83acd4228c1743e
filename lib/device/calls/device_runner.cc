#include "lib/device/calls/device_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "lib/base/library_thread.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/device/calls/device_call.h"
#include "lib/device/registry.h"

namespace entrain {
namespace {

// Returns the library, or null if the names of transports do not allow it or if there is none.
OffloadLibrary* LibraryOf(absl::Span<const std::string> transports) {
  if (std::find(transports.begin(), transports.end(), "nccl") == transports.end()) {
    return nullptr;
  }
  return OpenOffloadLibrary().value_or(nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCalls>> MakeDeviceCalls(
    std::shared_ptr<CommCore> core, absl::Span<const std::string> transports) {
  ENTRAIN_ASSIGN_OR_RETURN(Devices* const devices, ProcessDevices());
  return std::unique_ptr<DeviceCalls>(
      std::make_unique<DeviceRunner>(std::move(core), *devices, LibraryOf(transports)));
}

DeviceRunner::DeviceRunner(std::shared_ptr<CommCore> core, Devices& devices,
                           OffloadLibrary* library)
    : core_(std::move(core)), devices_(devices), library_(library) {}

DeviceRunner::~DeviceRunner() = default;

absl::StatusOr<Device*> DeviceRunner::DeviceOf(const Call& call) const {
  Device* device = nullptr;
  for (const auto& [name, buffer] : {std::pair("in", &call.in), std::pair("out", &call.out)}) {
    if (buffer->bytes == 0) {
      continue;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Devices::Place place, devices_.PlaceOf(buffer->data));
    const MemoryKind said = call.options.device ? MemoryKind::kDevice : MemoryKind::kHostPinned;
    if (place.kind != said) {
      constexpr const char* kWords[] = {"ordinary host memory", "device memory",
                                        "page-locked host memory"};
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %p is %s, but options.memory %d says %s", name, buffer->data,
                          kWords[static_cast<int>(place.kind)], static_cast<int>(said),
                          kWords[static_cast<int>(said)]));
    }
    if (device != nullptr && place.device != device) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "in is memory of device %d, out of %d", device->ordinal(), place.device->ordinal()));
    }
    device = place.device;
  }
  return device;
}

absl::Status DeviceRunner::EnsureSide(Device* device, StreamHandle stream) {
  if (side_ != nullptr) {
    return device == nullptr || device == &side_->device()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrFormat(
                     "the buffers are on device %d, but the first call's on this communicator "
                     "were on %d",
                     device->ordinal(), side_->device().ordinal()));
  }
  if (device == nullptr) {
    const auto found = devices_.OfStream(stream);
    ENTRAIN_RETURN_IF_ERROR(Annotate(found.status(), "options.stream"));
    device = *found;
  }
  ENTRAIN_ASSIGN_OR_RETURN(side_, DeviceSide::Open(*device, library_));
  return absl::OkStatus();
}

bool DeviceRunner::AllSettled() const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(calls_.begin(), calls_.end(),
                     [](const auto& call) { return call->settled(); });
}

absl::StatusOr<RefPtr<Work>> DeviceRunner::Start(Call call, bool blocks) {
  ENTRAIN_RETURN_IF_ERROR(core_->end().status());
  ENTRAIN_ASSIGN_OR_RETURN(Device* const device, DeviceOf(call));
  const int64_t now = core_->engine().clock().Now();
  core_->funnel().SetDeadline(&call, now);
  absl::MutexLock starting(&starting_);
  ENTRAIN_RETURN_IF_ERROR(EnsureSide(device, call.options.stream));
  auto started = RefPtr<DeviceCall>::Adopt(new DeviceCall(core_, *side_, call, now, !blocks));
  ENTRAIN_RETURN_IF_ERROR(started->Reserve());
  ENTRAIN_RETURN_IF_ERROR(started->MarkInput());
  const bool with_meeting = !meeting_ordered_ && DeviceCall::MayChoose(call);
  ENTRAIN_ASSIGN_OR_RETURN(
      std::vector<Wiring> numbers,
      core_->funnel().TakeNumbers(call, DeviceCall::NumbersFor(call, core_->size(), with_meeting)));
  meeting_ordered_ |= with_meeting;
  started->SetNumbers(std::move(numbers), with_meeting);
  if (const absl::Status status =
          started->OffloadOrHold(DeviceCall::MayChoose(call) && AllSettled());
      !status.ok()) {
    // The other ranks wait for this rank, so the communicator must end. The device may have begun
    // the call, so the runner must wait for the end of the call.
    core_->EndHere(status);
  }
  absl::MutexLock lock(&mutex_);
  calls_.push_back(started);
  ++started_;
  if (!runner_.joinable()) {
    runner_ = LibraryThread([this] { Run(); });
  }
  return RefPtr<Work>::Adopt(started.Leak());
}

std::vector<RefPtr<Work>> DeviceRunner::open() const {
  absl::MutexLock lock(&mutex_);
  std::vector<RefPtr<Work>> works;
  for (const auto& call : calls_) {
    if (!call->over()) {  // the runner may not have removed it yet
      works.push_back(RefPtr<Work>::Share(call.get()));
    }
  }
  return works;
}

void DeviceRunner::Close() {
  std::thread runner;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    runner = std::move(runner_);
  }
  if (runner.joinable()) {
    runner.join();
  }
}

bool DeviceRunner::Look() {
  std::vector<RefPtr<DeviceCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls.assign(calls_.begin(), calls_.end());
  }
  const int64_t now = core_->engine().clock().Now();
  bool moved = false;
  // True if all earlier calls are settled. Only then may the next call choose its method.
  bool turn = true;
  for (const auto& call : calls) {
    if (!call->settled() && !turn && core_->end().status().ok() &&
        !call->call().options.deadline.Passed(now)) {
      continue;
    }
    if (call->Step(now, &moved)) {
      moved = true;
      absl::MutexLock lock(&mutex_);
      calls_.erase(std::find_if(calls_.begin(), calls_.end(),
                                [&](const auto& one) { return one.get() == call.get(); }));
    } else {
      turn &= call->settled();
    }
  }
  return moved;
}

void DeviceRunner::Run() {
  uint64_t known = 0;    // started_ at the last look
  int64_t since_ns = 0;  // the time of the last event: a step of a call, or the start of a call
  for (;;) {
    uint64_t started = 0;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return !calls_.empty() || closing_;
      };
      mutex_.Await(absl::Condition(&wanted));
      if (calls_.empty()) {
        return;
      }
      started = started_;
    }
    const int64_t now = core_->engine().clock().Now();
    // The start of a call counts as an event: the time before it must not make its naps long.
    const bool moved = Look();
    if (std::exchange(known, started) != started || moved) {
      since_ns = now;
    } else {
      PauseAfter(now - since_ns);
    }
  }
}

}  // namespace entrain
