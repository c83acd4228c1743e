// Calls on device memory: a communicator gives them to the runtime's DeviceCalls, or refuses them.
#include "lib/comm/device_calls.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The requests that the recorder has got, in order.
std::vector<std::string>& Asked() {
  static auto* const asked = new std::vector<std::string>();
  return *asked;
}

class Recorder final : public DeviceCalls {
 public:
  absl::StatusOr<RefPtr<Work>> Start(Call, bool blocks) override {
    Asked().push_back(blocks ? "run" : "start");
    return absl::FailedPreconditionError("recorded");
  }
  std::vector<RefPtr<Work>> open() const override { return {}; }
  void Close() override { Asked().push_back("close"); }
};

absl::StatusOr<std::unique_ptr<DeviceCalls>> MakeRecorder(std::shared_ptr<CommCore>,
                                                          absl::Span<const std::string> names) {
  Asked().push_back("make with " + std::to_string(names.size()));
  return std::unique_ptr<DeviceCalls>(std::make_unique<Recorder>());
}

absl::StatusOr<std::shared_ptr<Communicator>> Alone(DeviceCallsFactory device_calls) {
  RuntimeOptions runtime_options;
  runtime_options.transports = "inproc,nccl";
  runtime_options.device_calls = device_calls;
  const auto runtime = Runtime::Create(runtime_options);
  auto store = OpenStore("mem:device_calls_test", "", {Deadline::After(5 * kSecond)});
  if (!runtime.ok() || !store.ok()) {
    return absl::UnavailableError("no runtime or no store");
  }
  CommOptions options;
  options.runtime = *runtime;
  options.store = *std::move(store);
  return Communicator::Create(options);
}

Call OnDeviceMemory() {
  static float x[4];
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = 4;
  call.in = call.out = {x, sizeof(x), MemoryKind::kDevice};
  call.options.device = true;
  return call;
}

TEST(CommWithoutDeviceCalls, RefusesThemAndNamesTheBuildOption) {
  const auto comm = Alone(nullptr);
  ASSERT_TRUE(comm.ok()) << comm.status();
  for (const absl::Status& refused :
       {(*comm)->Run(OnDeviceMemory()), (*comm)->Start(OnDeviceMemory()).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("options.memory 1 (of a device): "));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("ENTRAIN_DEVICE"));
  }
  EXPECT_EQ((*comm)->Barrier(), absl::OkStatus());
}

TEST(CommWithDeviceCalls, MakesThemOnceAndGivesThemEveryCallAndTheEnd) {
  Asked().clear();
  {
    const auto comm = Alone(MakeRecorder);
    ASSERT_TRUE(comm.ok()) << comm.status();
    EXPECT_EQ((*comm)->Barrier(), absl::OkStatus());
    EXPECT_TRUE(Asked().empty());
    EXPECT_EQ((*comm)->Run(OnDeviceMemory()).message(), "recorded");
    EXPECT_EQ((*comm)->Start(OnDeviceMemory()).status().message(), "recorded");
  }
  EXPECT_THAT(Asked(), ElementsAre("make with 2", "run", "start", "close"));
}

}  // namespace
}  // namespace entrain
