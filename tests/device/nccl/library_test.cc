// Finding NCCL, and the reason if there is none.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/device/nccl/nccl_functions.h"
#include "lib/device/nccl/nccl_library.h"

namespace entrain::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclLibrary, WithoutItTheReasonIsGiven) {
  const auto library = LoadNccl("/nowhere/libnccl.so.2");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(library.status().message()),
              AllOf(HasSubstr("no NCCL"), HasSubstr("/nowhere/libnccl.so.2")));
}

TEST(NcclLibrary, AnotherLibraryIsNone) {
  const auto library = LoadNccl("libm.so.6");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(library.status().message()),
              AllOf(HasSubstr("libm.so.6 has no nccl"), HasSubstr("2.19.0 or later")));
}

TEST(NcclLibrary, VersionsAreWrittenAsUsual) {
  EXPECT_EQ(VersionText(21903), "2.19.3");
  EXPECT_EQ(VersionText(22707), "2.27.7");
}

}  // namespace
}  // namespace entrain::nccl
