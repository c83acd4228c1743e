// The value that a rank brings to a meeting whose store is a plain map: its entry, and the name of
// its process. By this name other processes of the host see whether the process still runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/gathering.h"

namespace entrain {

// The name of a process for other processes: PID namespace, PID, start time.
struct ProcessName {
  std::string space, pid, start;
  static ProcessName Own();
  // Returns true if HasEnded gives an answer, because this process sees the PIDs of the other
  // process's namespace.
  bool IsHere() const;
  // Reads /proc.
  bool HasEnded() const;
};

struct Brought {
  ProcessName process;
  Entry entry;
};

std::string EncodeBrought(const Brought& brought);
// Returns kDataLoss if the bytes are malformed. `what` begins the message, for example "store URL:
// key "x"".
absl::StatusOr<Brought> DecodeBrought(absl::string_view bytes, absl::string_view what);

}  // namespace entrain
