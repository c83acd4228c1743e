// If there is no driver, or no usable one, the reason is reported. Each case is a separate process,
// because a process looks for the driver once.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

#include "lib/device/registry.h"

namespace entrain {
namespace {

// Ends the process with 0 if there are no devices, and prints the reason on standard error.
[[noreturn]] void TryWith(const char* library) {
  setenv("ENTRAIN_CUDA_LIBRARY", library, 1);  // NOLINT(concurrency-mt-unsafe)
  for (int again = 0; again < 2; ++again) {
    const auto devices = OpenDevices();
    if (devices.ok() || !absl::IsUnavailable(devices.status())) {
      std::_Exit(1);
    }
    std::fprintf(stderr, "%s\n", std::string(devices.status().message()).c_str());
  }
  std::_Exit(0);
}

class CudaAbsent : public ::testing::Test {
 protected:
  CudaAbsent() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaAbsent, NoSuchLibraryIsNamed) {
  EXPECT_EXIT(TryWith("/nowhere/libcuda.so.1"), ::testing::ExitedWithCode(0),
              "/nowhere/libcuda.so.1|built without CUDA");
}

TEST_F(CudaAbsent, ALibraryThatIsNoDriverIsNamedWithWhatItLacks) {
  EXPECT_EXIT(TryWith("libc.so.6"), ::testing::ExitedWithCode(0),
              "libc.so.6 is too old: it has no cuInit|built without CUDA");
}

#if defined(FAKE_CUDA_LIBRARY)
TEST_F(CudaAbsent, ADriverWithoutADeviceSaysSo) {
  setenv("FAKE_CUDA_DEVICES", "0", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EXIT(TryWith(FAKE_CUDA_LIBRARY), ::testing::ExitedWithCode(0),
              "cuInit: CUDA_ERROR_NO_DEVICE");
  unsetenv("FAKE_CUDA_DEVICES");  // NOLINT(concurrency-mt-unsafe)
}

// Ends the process with 0 if the device cannot be used, and prints the reason on standard error.
[[noreturn]] void TryDevice() {
  setenv("ENTRAIN_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
  const auto devices = OpenDevices();
  const auto device = devices.ok() ? (*devices)->At(0) : devices.status();
  std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
  std::_Exit(devices.ok() && !device.ok() ? 0 : 1);
}

TEST_F(CudaAbsent, ADeviceThatCannotTakeTheKernelsIsNamedWithTheReason) {
  setenv("FAKE_CUDA_FAIL", "cuModuleLoadData:1:209", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EXIT(TryDevice(), ::testing::ExitedWithCode(0),
              "CUDA device 0: cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU");
  setenv("FAKE_CUDA_FAIL", "cuModuleGetFunction:3:500", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EXIT(TryDevice(), ::testing::ExitedWithCode(0),
              "CUDA device 0: entrain_add_sharpness: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND");
  unsetenv("FAKE_CUDA_FAIL");  // NOLINT(concurrency-mt-unsafe)
}
#endif

}  // namespace
}  // namespace entrain
