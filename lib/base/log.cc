#include "lib/base/log.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <string>

#include <poll.h>
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

// How long a line waits for standard error, which may be a pipe that nobody reads: the engine's thread writes lines too.
constexpr int kPatienceMs = 100;

void WriteToStandardError(absl::string_view line) {
  static std::atomic<bool> stuck{false};  // the last line was not taken: the next one does not wait
  while (!line.empty()) {
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    const bool ready = poll(&room, 1, stuck.load(std::memory_order_relaxed) ? 0 : kPatienceMs) > 0;
    stuck.store(!ready, std::memory_order_relaxed);
    // A pipe that has room takes so much without waiting. In one write, so that lines of several processes do not mix.
    const ssize_t put =
        ready ? write(STDERR_FILENO, line.data(), std::min<size_t>(line.size(), PIPE_BUF)) : 0;
    if (put <= 0) {
      return;
    }
    line.remove_prefix(static_cast<size_t>(put));
  }
}

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
  WriteToStandardError(line);
}

}  // namespace entrain
