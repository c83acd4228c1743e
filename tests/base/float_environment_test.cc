#include "lib/base/float_environment.h"

#include <cfenv>
#include <thread>

#include "gtest/gtest.h"

#include "lib/base/callback_scope.h"
#include "lib/base/library_thread.h"

namespace entrain {
namespace {

#if defined(__SSE__) || defined(__aarch64__)

TEST(FloatEnvironment, IsSetWithinTheScopeAndRestoredBehindIt) {
  ASSERT_TRUE(FloatEnvironment::IsSet());
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  EXPECT_FALSE(FloatEnvironment::IsSet());
  {
    const FloatEnvironment outer;
    EXPECT_TRUE(FloatEnvironment::IsSet());
    const FloatEnvironment inner;
    EXPECT_TRUE(FloatEnvironment::IsSet());
  }
  EXPECT_FALSE(FloatEnvironment::IsSet());
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(FloatEnvironment::IsSet());
}

TEST(FloatEnvironment, AThreadOfTheLibraryDoesNotInheritTheCallers) {
  std::fesetround(FE_DOWNWARD);
  bool plain = true, librarys = false;
  std::thread([&] { plain = FloatEnvironment::IsSet(); }).join();
  LibraryThread([&] { librarys = FloatEnvironment::IsSet(); }).join();
  std::fesetround(FE_TONEAREST);
  EXPECT_FALSE(plain);
  EXPECT_TRUE(librarys);
}

TEST(FloatEnvironment, IsSetAgainAfterACallback) {
  {
    const CallbackScope scope("a function", Does::kLook);
    std::fesetround(FE_TOWARDZERO);
  }
  EXPECT_TRUE(FloatEnvironment::IsSet());
  std::fesetround(FE_TONEAREST);
}

#endif

}  // namespace
}  // namespace entrain
