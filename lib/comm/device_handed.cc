// The way of a library that does whole collectives.
#include "lib/base/status.h"
#include "lib/comm/device_call.h"

namespace entrain {
namespace {

class HandedWay final : public DeviceWay {
 public:
  explicit HandedWay(DeviceCall& call) : call_(call), done_(call.device()) {}

  absl::Status Enqueue() {
    DeviceSide& side = call_.side();
    const CallOptions& options = call_.call().options;
    if (call_.input_ready() != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(call_.device().AwaitEvent(side.work(), call_.input_ready()));
    }
    {
      absl::MutexLock lock(&side.offload_mutex());
      ENTRAIN_RETURN_IF_ERROR(side.offload()->Enqueue(call_.call(), side.work()));
    }
    ENTRAIN_RETURN_IF_ERROR(done_.Record(side.work()));
    return options.on_stream && !call_.holds_stream()
               ? call_.device().AwaitEvent(options.stream, done_.event())
               : absl::OkStatus();
  }

  absl::StatusOr<bool> Step(bool* moved) override {
    {
      absl::MutexLock lock(&call_.side().offload_mutex());
      ENTRAIN_RETURN_IF_ERROR(call_.side().offload()->AsyncStatus());
    }
    ENTRAIN_ASSIGN_OR_RETURN(const bool done, done_.Reached());
    *moved |= done;
    return done;
  }
  bool Quiet() override { return done_.quiet(); }
  const char* WaitsFor() const override { return "the collective that was handed over"; }

 private:
  DeviceCall& call_;
  DeviceMark done_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWay>> MakeHandedWay(DeviceCall& call) {
  auto way = std::make_unique<HandedWay>(call);
  ENTRAIN_RETURN_IF_ERROR(way->Enqueue());
  return way;
}

}  // namespace entrain
