// Log lines with levels, on standard error or to the caller's sink. Uses no library and no streams.
//
// Thread safety: any thread; a line is written whole. If standard error does not take a line within
// 100 ms, the line is lost. A sink may block: it runs on a thread of its own, and only FlushLog
// waits for it. At most 1000 lines wait for the sink; further ones are lost and counted.
//
//   ENTRAIN_LOG(kWarning, "shm: ", why, ", using tcp");
//
// The threshold comes from ENTRAIN_LOG (error, warning, info, debug; default warning), which
// lib/base/config reads.
#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace entrain {

enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
// Sets the rank that is printed before each line of this process ("entrain[3]"); -1: none.
void SetLogRank(int rank);
// Sends lines to `sink` instead of standard error; null restores standard error. Lines logged
// earlier go to the earlier sink, if it accepts them within a second. The library calls the sink on
// one thread. On this thread most functions of the library return an error (CallbackScope).
void SetLogSink(void (*sink)(int32_t level, const char* line, void* user), void* user);
void LogLine(LogLevel level, absl::string_view text);
// Blocks until the sink has handled all lines logged so far. Returns false if `timeout_ns` passes
// before that. Called inside the sink, returns at once. At the exit of the process, the library
// calls FlushLog with one second.
bool FlushLog(int64_t timeout_ns);

}  // namespace entrain

#define ENTRAIN_LOG(level, ...)                                                    \
  do {                                                                             \
    if (::entrain::LogEnabled(::entrain::LogLevel::level)) {                       \
      ::entrain::LogLine(::entrain::LogLevel::level, ::absl::StrCat(__VA_ARGS__)); \
    }                                                                              \
  } while (false)
