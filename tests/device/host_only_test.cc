// The host's path in a build without the device side (ENTRAIN_DEVICE=OFF): everything but
// lib/device/{cuda,nccl,calls}, with the code that refuses device memory. Another test checks the
// symbols of this program: it must need no symbol of these three folders.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/device/calls/device_runner.h"
#include "lib/device/registry.h"
#include "lib/store/store.h"

namespace entrain {
namespace {

using testing::HasSubstr;

TEST(HostOnly, HasNoDevicesAndNamesTheBuildOption) {
  for (const absl::Status& absent : {OpenDevices().status(), OpenOffloadLibrary().status()}) {
    EXPECT_EQ(absent.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(absent.message()), HasSubstr("ENTRAIN_DEVICE"));
  }
  const absl::Status refused = ProcessDevices().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("memory 1 (of a device): "));
  EXPECT_EQ(kDeviceCalls, nullptr);
}

TEST(HostOnly, MakesCallsOnHostMemory) {
  RuntimeOptions runtime_options;
  runtime_options.transports = "inproc";
  runtime_options.device_calls = kDeviceCalls;
  CommOptions options;
  options.runtime = *Runtime::Create(runtime_options);
  options.store = *OpenStore("mem:host_only_test", "", {Deadline::After(5 * kSecond)});
  const auto comm = Communicator::Create(options);
  ASSERT_TRUE(comm.ok()) << comm.status();
  const float in = 3;
  float out = 0;
  EXPECT_EQ((*comm)->AllReduce(&in, &out, 1, DType::kF32, ReduceOp::kSum), absl::OkStatus());
  EXPECT_EQ(out, 3);
}

}  // namespace
}  // namespace entrain
