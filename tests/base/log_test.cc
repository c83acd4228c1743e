#include "lib/base/log.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::ElementsAre;

struct Lines {
  absl::Mutex mutex;
  std::vector<std::string> lines;
  std::vector<int32_t> levels;
  static void Sink(int32_t level, const char* line, void* user) {
    auto* const self = static_cast<Lines*>(user);
    absl::MutexLock lock(&self->mutex);
    self->lines.emplace_back(line);
    self->levels.push_back(level);
  }
};

class LogTest : public ::testing::Test {
 protected:
  LogTest() { SetLogSink(Lines::Sink, &lines_); }
  ~LogTest() override {
    SetLogSink(nullptr, nullptr);
    SetLogLevel(LogLevel::kWarning);
    SetLogRank(-1);
  }
  Lines lines_;
};

TEST_F(LogTest, WarningsPassAndInformationDoesNot) {
  ENTRAIN_LOG(kWarning, "shm: ", 3, " failed");
  ENTRAIN_LOG(kInfo, "not to be seen");
  EXPECT_THAT(lines_.lines, ElementsAre("entrain warning: shm: 3 failed"));
  EXPECT_THAT(lines_.levels, ElementsAre(1));
}

TEST_F(LogTest, ThresholdMoves) {
  SetLogLevel(LogLevel::kError);
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  SetLogLevel(LogLevel::kDebug);
  EXPECT_TRUE(LogEnabled(LogLevel::kDebug));
}

TEST_F(LogTest, ArgumentsBelowTheThresholdAreNotEvaluated) {
  int evaluated = 0;
  const auto count = [&evaluated] { return ++evaluated; };
  ENTRAIN_LOG(kDebug, count());
  EXPECT_EQ(evaluated, 0);
  ENTRAIN_LOG(kError, count());
  EXPECT_EQ(evaluated, 1);
}

TEST_F(LogTest, RankIsPrinted) {
  SetLogRank(3);
  ENTRAIN_LOG(kError, "x");
  EXPECT_THAT(lines_.lines, ElementsAre("entrain[3] error: x"));
}

TEST_F(LogTest, WithoutASinkALineGoesToStandardErrorWhole) {
  SetLogSink(nullptr, nullptr);
  ::testing::internal::CaptureStderr();
  ENTRAIN_LOG(kWarning, "to the terminal");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "entrain warning: to the terminal\n");
}

TEST_F(LogTest, ManyThreadsLogAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) {
        ENTRAIN_LOG(kWarning, "line ", i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(lines_.lines.size(), 400u);
}

}  // namespace
}  // namespace entrain
