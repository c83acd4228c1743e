// The value that a rank writes to a store that is a plain map, when it joins a meeting. The value
// has the rank's entry and the name of the rank's process. By this name, other processes of the
// same host find out whether the process still runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/gathering.h"

namespace entrain {

// A name that identifies a process to other processes: PID namespace, PID, start time.
struct ProcessName {
  std::string space, pid, start;
  static ProcessName Own();
  // Returns true if the named process is in the PID namespace of the calling process. If it is not,
  // the result of HasEnded has no meaning.
  bool IsHere() const;
  // Returns true if the named process has ended. Reads /proc.
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
