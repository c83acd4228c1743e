#include "lib/base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
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

#include "lib/base/callback_scope.h"
#include "lib/base/clock.h"

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
  ASSERT_TRUE(FlushLog(kSecond));
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
  ASSERT_TRUE(FlushLog(kSecond));
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
  ASSERT_TRUE(FlushLog(kSecond));
  EXPECT_EQ(lines_.lines.size(), 400u);
}

// A sink that waits for a lock which the logging thread may hold.
struct LockedSink : Lines {
  static void Sink(int32_t level, const char* line, void* user) {
    auto* const self = static_cast<LockedSink*>(user);
    self->came = true;
    absl::MutexLock lock(&self->held);
    EXPECT_TRUE(absl::IsFailedPrecondition(CallbackScope::Check(Does::kStart)));
    EXPECT_TRUE(FlushLog(kSecond));  // inside the sink: returns at once
    Lines::Sink(level, line, static_cast<Lines*>(self));
  }
  absl::Mutex held;
  std::atomic<bool> came{false};
};

TEST(Log, ASinkThatBlocksHoldsNobody) {
  LockedSink sink;
  SetLogSink(LockedSink::Sink, &sink);
  {
    absl::MutexLock held(&sink.held);
    for (int i = 0; i < 1500; ++i) {
      ENTRAIN_LOG(kError, "line ", i);
      while (!sink.came) {  // so that the sink's thread looks for lost lines before there are any
        std::this_thread::yield();
      }
    }
    EXPECT_FALSE(FlushLog(10 * kMillisecond));
  }
  EXPECT_TRUE(FlushLog(10 * kSecond));
  ENTRAIN_LOG(kError, "last");
  SetLogSink(nullptr, nullptr);
  ASSERT_EQ(sink.lines.size(), 1002u);
  EXPECT_THAT(sink.lines,
              testing::Contains("entrain warning: 500 lines of the log were lost: the log "
                                "function is too slow"));
  EXPECT_EQ(sink.lines[1000], "entrain error: line 999");
  EXPECT_EQ(sink.lines.back(), "entrain error: last");
}

TEST(LogDeathTest, WhatIsLoggedLastReachesTheSinkUnlessItBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        SetLogSink([](int32_t, const char* line, void*) { fprintf(stderr, "got %s", line); },
                   nullptr);
        ENTRAIN_LOG(kError, "the end");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "got entrain error: the end");
  EXPECT_EXIT(
      {
        static absl::Mutex never_given;
        never_given.Lock();
        SetLogSink([](int32_t, const char*, void*) { absl::MutexLock lock(&never_given); },
                   nullptr);
        ENTRAIN_LOG(kError, "the end");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

// A pipe without a reader.
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
