// The offloaded method: a library does the whole collective. The library takes no other call until
// it has put this call on the stream. Before that it may have to wait until the other ranks make
// the call too.
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/device/calls/device_call.h"

namespace entrain {
namespace {

class OffloadWay final : public DeviceWay {
 public:
  OffloadWay(DeviceCall& call, DeviceOffload& to) : call_(call), to_(to), done_(call.device()) {}

  absl::StatusOr<bool> Step(bool* moved) override {
    if (!given_) {
      ENTRAIN_RETURN_IF_ERROR(Give());
    }
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
  // The library may have begun the last call after the last Begun and before the abort. So the
  // stream is marked once more, behind that call.
  bool Quiet() override {
    if (given_ && !begun_ && to_.offload->Gone()) {
      begun_ = true;
      done_.Record(call_.side().work()).IgnoreError();  // the device is lost
    }
    return !given_ || (begun_ && done_.quiet());
  }
  const char* WaitsFor() const override {
    return begun_ ? "the collective that was handed over" : "the other ranks to hand over theirs";
  }
  bool settled() const override { return begun_; }

 private:
  absl::Status Give() {
    const StreamHandle stream = call_.side().work();
    if (call_.input_ready() != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(call_.device().AwaitEvent(stream, call_.input_ready()));
    }
    absl::MutexLock lock(&to_.mutex);
    given_ = true;
    return to_.offload->Enqueue(call_.call(), stream, call_.scratch());
  }
  // Checks whether the call is on the library's stream. If it is, and must_hold() is true, makes
  // the caller's stream wait for the call.
  absl::Status Begin() {
    {
      absl::MutexLock lock(&to_.mutex);
      ENTRAIN_ASSIGN_OR_RETURN(const bool begun, to_.offload->Begun());
      if (!begun) {
        return absl::OkStatus();
      }
    }
    ENTRAIN_RETURN_IF_ERROR(done_.Record(call_.side().work()));
    begun_ = true;
    return call_.must_hold() ? call_.device().AwaitEvent(call_.call().options.stream, done_.event())
                             : absl::OkStatus();
  }

  DeviceCall& call_;
  DeviceOffload& to_;
  bool given_ = false;  // given to the library
  bool begun_ = false;  // the call is on the stream, with a mark behind it
  DeviceMark done_;
};

}  // namespace

std::unique_ptr<DeviceWay> MakeOffloadWay(DeviceCall& call, DeviceOffload& to) {
  return std::make_unique<OffloadWay>(call, to);
}

}  // namespace entrain
