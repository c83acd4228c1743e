// The way of a library that does whole collectives. Until it has put a call on the stream, which may take the others'
// coming, nothing else can be handed to it.
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/device_call.h"

namespace entrain {
namespace {

class HandedWay final : public DeviceWay {
 public:
  HandedWay(DeviceCall& call, DeviceOffload& to) : call_(call), to_(to), done_(call.device()) {}

  absl::Status Enqueue() {
    const StreamHandle stream = call_.side().work();
    if (call_.input_ready() != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(call_.device().AwaitEvent(stream, call_.input_ready()));
    }
    absl::MutexLock lock(&to_.mutex);
    return to_.offload->Enqueue(call_.call(), stream, call_.scratch());
  }
  // Whether the call is on the stream; then the caller's waits for it, unless it does so for something else.
  absl::Status Begin() {
    {
      absl::MutexLock lock(&to_.mutex);
      ENTRAIN_ASSIGN_OR_RETURN(begun_, to_.offload->Begun());
    }
    if (!begun_) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(done_.Record(call_.side().work()));
    const CallOptions& options = call_.call().options;
    return options.on_stream && !call_.holds_stream()
               ? call_.device().AwaitEvent(options.stream, done_.event())
               : absl::OkStatus();
  }
  absl::Status AwaitBegin(int64_t patience_ns) {
    const Clock& clock = Clock::Real();
    const int64_t since = clock.Now();
    ENTRAIN_RETURN_IF_ERROR(Begin());
    for (int64_t now = since; !begun_ && now - since < patience_ns; now = clock.Now()) {
      PauseAfter(now - since);
      ENTRAIN_RETURN_IF_ERROR(Begin());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Step(bool* moved) override {
    if (!begun_) {
      ENTRAIN_RETURN_IF_ERROR(Begin());
      *moved |= begun_;
      return false;
    }
    {
      absl::MutexLock lock(&to_.mutex);
      ENTRAIN_RETURN_IF_ERROR(to_.offload->AsyncStatus());
    }
    ENTRAIN_ASSIGN_OR_RETURN(const bool done, done_.Reached());
    *moved |= done;
    return done;
  }
  // What has not begun when it is aborted may have been about to.
  bool Quiet() override { return begun_ ? done_.quiet() : to_.offload->Gone(); }
  const char* WaitsFor() const override {
    return begun_ ? "the collective that was handed over" : "the other ranks to hand over theirs";
  }
  bool settled() const override { return begun_; }

 private:
  DeviceCall& call_;
  DeviceOffload& to_;
  bool begun_ = false;
  DeviceMark done_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWay>> MakeHandedWay(DeviceCall& call, DeviceOffload& to,
                                                         int64_t patience_ns) {
  auto way = std::make_unique<HandedWay>(call, to);
  ENTRAIN_RETURN_IF_ERROR(way->Enqueue());
  ENTRAIN_RETURN_IF_ERROR(way->AwaitBegin(patience_ns));
  return way;
}

}  // namespace entrain
