#include "lib/base/log.h"

#include <atomic>
#include <string>

#include <unistd.h>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"

namespace entrain {
namespace {

// Process-wide, since a process has one standard error.
std::atomic<int32_t> threshold{static_cast<int32_t>(LogLevel::kWarning)};
std::atomic<int32_t> log_rank{-1};
absl::Mutex sink_mutex(absl::kConstInit);
void (*log_sink)(int32_t, const char*, void*) = nullptr;
void* log_user = nullptr;

constexpr const char* kLevelNames[] = {"error", "warning", "info", "debug"};

}  // namespace

void SetLogLevel(LogLevel level) {
  threshold.store(static_cast<int32_t>(level), std::memory_order_relaxed);
}
bool LogEnabled(LogLevel level) {
  return static_cast<int32_t>(level) <= threshold.load(std::memory_order_relaxed);
}
void SetLogRank(int rank) {
  log_rank.store(rank, std::memory_order_relaxed);
}

void SetLogSink(void (*sink)(int32_t, const char*, void*), void* user) {
  absl::MutexLock lock(&sink_mutex);
  log_sink = sink;
  log_user = user;
}

void LogLine(LogLevel level, absl::string_view text) {
  const int rank = log_rank.load(std::memory_order_relaxed);
  std::string line = rank < 0 ? std::string("entrain") : absl::StrCat("entrain[", rank, "]");
  absl::StrAppend(&line, " ", kLevelNames[static_cast<size_t>(level)], ": ", text);
  void (*sink)(int32_t, const char*, void*) = nullptr;
  void* user = nullptr;
  {
    absl::MutexLock lock(&sink_mutex);
    sink = log_sink;
    user = log_user;
  }
  if (sink != nullptr) {
    sink(static_cast<int32_t>(level), line.c_str(), user);
    return;
  }
  line.push_back('\n');
  // One write, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace entrain
