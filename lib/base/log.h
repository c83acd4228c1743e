// Levelled lines on standard error, or to a sink of the caller's. No libraries, no streams.
// Thread safety: everything may be called from any thread; a line is written whole. Lines that standard error does not take within
// 100 ms are lost. A sink may block: it is called on a thread of its own, and nobody waits for it but FlushLog. Of the lines that
// wait for it the last 1000 are lost and counted.
//
//   ENTRAIN_LOG(kWarning, "shm: ", why, ", using tcp");
//
// The threshold comes from ENTRAIN_LOG (error, warning, info, debug; default warning), read by
// lib/base/config.
#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace entrain {

enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
// The rank printed before each line of this process ("entrain[3]"); -1: none.
void SetLogRank(int rank);
// Lines go to `sink` instead of standard error; null restores that. Lines logged before go to the sink before, if it takes them
// within a second. The sink is called on one thread, where most calls of the library are refused (CallbackScope).
void SetLogSink(void (*sink)(int32_t level, const char* line, void* user), void* user);
void LogLine(LogLevel level, absl::string_view text);
// Blocks until the sink has returned from all lines so far; false: the time is up. The process does so for a second when it
// exits. Returns at once inside the sink.
bool FlushLog(int64_t timeout_ns);

}  // namespace entrain

#define ENTRAIN_LOG(level, ...)                                                    \
  do {                                                                             \
    if (::entrain::LogEnabled(::entrain::LogLevel::level)) {                       \
      ::entrain::LogLine(::entrain::LogLevel::level, ::absl::StrCat(__VA_ARGS__)); \
    }                                                                              \
  } while (false)
