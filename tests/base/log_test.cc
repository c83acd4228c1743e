#include "lib/base/log.h"

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

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

// A pipe that nobody reads.
TEST(Log, AStandardErrorThatTakesNothingHoldsNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int before = dup(STDERR_FILENO);
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  std::thread writer([] {
    for (int i = 0; i < 100; ++i) {
      LogLine(LogLevel::kWarning, std::string(1000, 'x'));
    }
    LogLine(LogLevel::kWarning, std::string(10000, 'y'));
  });
  std::promise<void> joined;
  std::thread watch([&, over = joined.get_future()] {
    if (over.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      std::abort();
    }
  });
  writer.join();
  joined.set_value();
  watch.join();
  ASSERT_EQ(dup2(before, STDERR_FILENO), STDERR_FILENO);
  char some[32] = {};
  EXPECT_GT(read(ends[0], some, sizeof(some) - 1), 0);
  EXPECT_THAT(some, testing::HasSubstr("entrain warning: xxx"));
  for (const int fd : {before, ends[0], ends[1]}) {
    close(fd);
  }
}

}  // namespace
}  // namespace entrain
