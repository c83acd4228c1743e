// Where there is no driver, or none that can be used, the reason is said. Each in a process of its
// own, since one looks once.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

#include "transports/registry.h"

namespace entrain {
namespace {

// Ends the process: 0 when there are no devices, its reason on standard error.
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

}  // namespace
}  // namespace entrain
