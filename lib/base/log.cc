#include "lib/base/log.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "lib/base/callback_scope.h"
#include "lib/base/callback_thread.h"
#include "lib/base/clock.h"

namespace entrain {
namespace {

// One threshold for the whole process, because a process has one standard error.
std::atomic<int32_t> threshold{static_cast<int32_t>(LogLevel::kWarning)};
std::atomic<int32_t> log_rank{-1};
constexpr size_t kMostWaiting = 1000;  // lines that may wait for the sink
constexpr int64_t kFlushNs = kSecond;

struct Sink {
  void (*call)(int32_t, const char*, void*) = nullptr;
  void* user = nullptr;
};
absl::Mutex sink_mutex(absl::kConstInit);
Sink log_sink ABSL_GUARDED_BY(sink_mutex);
// Created when the first line is logged to a sink. sink_process is the process that created it.
// Never freed, because lines may be logged until the process ends.
std::shared_ptr<CallbackThread>* sink_thread ABSL_GUARDED_BY(sink_mutex) = nullptr;
pid_t sink_process ABSL_GUARDED_BY(sink_mutex) = 0;
size_t waiting ABSL_GUARDED_BY(sink_mutex) = 0, lost ABSL_GUARDED_BY(sink_mutex) = 0;
thread_local bool on_sink_thread = false;

constexpr const char* kLevelNames[] = {"error", "warning", "info", "debug"};

// How long a line may wait for standard error. Standard error may be a pipe that nobody reads. The
// time is short, because the engine's thread writes lines too.
constexpr int kStuckMs = 100;

void WriteToStandardError(absl::string_view line) {
  // true: the last poll timed out, so the next poll does not wait
  static std::atomic<bool> stuck{false};
  while (!line.empty()) {
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    const bool ready = poll(&room, 1, stuck.load(std::memory_order_relaxed) ? 0 : kStuckMs) > 0;
    stuck.store(!ready, std::memory_order_relaxed);
    // If poll reports room in a pipe, the pipe takes PIPE_BUF bytes without blocking. A line of at
    // most PIPE_BUF bytes is one write, so lines of several processes do not mix.
    const ssize_t put =
        ready ? write(STDERR_FILENO, line.data(), std::min<size_t>(line.size(), PIPE_BUF)) : 0;
    if (put <= 0) {
      return;
    }
    line.remove_prefix(static_cast<size_t>(put));
  }
}

// Runs on the sink's thread.
void GiveToSink(LogLevel level, const std::string& line) {
  on_sink_thread = true;
  Sink sink;
  size_t lines_lost = 0;
  {
    absl::MutexLock lock(&sink_mutex);
    sink = log_sink;
    lines_lost = std::exchange(lost, 0);
  }
  if (sink.call != nullptr) {
    const CallbackScope scope("the log function", Does::kLook);
    if (lines_lost > 0) {
      const std::string told =
          absl::StrCat("entrain warning: ", lines_lost,
                       " lines of the log were lost: the log function is too slow");
      sink.call(static_cast<int32_t>(LogLevel::kWarning), told.c_str(), sink.user);
    }
    sink.call(static_cast<int32_t>(level), line.c_str(), sink.user);
  } else {
    WriteToStandardError(line + "\n");
  }
  absl::MutexLock lock(&sink_mutex);
  --waiting;
}

// Returns null if the system cannot create a thread.
CallbackThread* SinkThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sink_mutex) {
  if (sink_thread == nullptr) {
    const auto started = CallbackThread::Start("entrain-log");
    if (started.ok()) {
      sink_thread = new std::shared_ptr<CallbackThread>(*started);
      sink_process = getpid();
      std::atexit([] { FlushLog(kFlushNs); });
    }
  }
  return sink_thread == nullptr ? nullptr : sink_thread->get();
}

// Returns false if no sink is set, or if its thread cannot be created.
bool PostToSink(LogLevel level, const std::string& line) {
  absl::MutexLock lock(&sink_mutex);
  CallbackThread* const thread = log_sink.call == nullptr ? nullptr : SinkThread();
  if (thread == nullptr) {
    return false;
  }
  if (waiting == kMostWaiting) {
    ++lost;
    return true;
  }
  ++waiting;
  thread->Post([level, line] { GiveToSink(level, line); });
  return true;
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
  FlushLog(kFlushNs);
  absl::MutexLock lock(&sink_mutex);
  log_sink = {sink, user};
}

bool FlushLog(int64_t timeout_ns) {
  const auto over = std::make_shared<absl::Notification>();
  {
    absl::MutexLock lock(&sink_mutex);
    // fork does not copy the sink's thread to the child.
    if (sink_thread == nullptr || sink_process != getpid() || on_sink_thread) {
      return true;
    }
    (*sink_thread)->Post([over] { over->Notify(); });
  }
  return over->WaitForNotificationWithTimeout(absl::Nanoseconds(timeout_ns));
}

void LogLine(LogLevel level, absl::string_view text) {
  const int rank = log_rank.load(std::memory_order_relaxed);
  std::string line = rank < 0 ? std::string("entrain") : absl::StrCat("entrain[", rank, "]");
  absl::StrAppend(&line, " ", kLevelNames[static_cast<size_t>(level)], ": ", text);
  if (!PostToSink(level, line)) {
    line.push_back('\n');
    WriteToStandardError(line);
  }
}

}  // namespace entrain
