// Log lines with levels. They go to standard error, or to a log function of the caller (the sink).
//
//   ENTRAIN_LOG(kWarning, "shm: ", why, ", using tcp");
//
// The environment variable ENTRAIN_LOG sets the threshold: error, warning, info or debug; default
// warning. lib/base/config reads the variable.
//
// Thread safety: any thread. Lines of different threads do not mix. If standard error does not
// accept a line within 100 ms, the line is lost. The sink may block, because it runs on a thread of
// its own. Only FlushLog and SetLogSink wait for the sink. At most 1000 lines wait for the sink.
// Further lines are lost, and their number is logged.
#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace entrain {

enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
// Sets the rank that is printed in each line of this process, as in "entrain[3]". -1: no rank.
void SetLogRank(int rank);
// Sends all further lines to `sink`, or to standard error if `sink` is null. First waits up to one
// second for the earlier sink to take all earlier lines.
//
// The library calls the sink on a single thread. On that thread, most functions of the library
// return an error (CallbackScope).
void SetLogSink(void (*sink)(int32_t level, const char* line, void* user), void* user);
void LogLine(LogLevel level, absl::string_view text);
// Blocks until the sink has handled all lines logged so far. Returns false if `timeout_ns` passes
// first. Returns true at once in a forked child, if no line was logged to a sink, or if the sink
// itself calls this function. The library calls FlushLog at the exit of the process, with a limit
// of one second.
bool FlushLog(int64_t timeout_ns);

}  // namespace entrain

#define ENTRAIN_LOG(level, ...)                                                    \
  do {                                                                             \
    if (::entrain::LogEnabled(::entrain::LogLevel::level)) {                       \
      ::entrain::LogLine(::entrain::LogLevel::level, ::absl::StrCat(__VA_ARGS__)); \
    }                                                                              \
  } while (false)
