// The value that a rank brings to a meeting whose store is a plain map: its entry, and the name of
// its process, by which other processes of the host see whether it still runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/store/gathering.h"

namespace entrain {

// The name of a process for other processes: number space, number, start time.
struct ProcessName {
  std::string space, pid, start;
  static ProcessName Own();
  // Returns whether HasEnded can tell: this process sees the numbers of the other one.
  bool IsHere() const;
  // Reads /proc.
  bool HasEnded() const;
};

struct Brought {
  ProcessName process;
  Entry entry;
};

std::string EncodeBrought(const Brought& brought);
// kDataLoss: malformed. `what` begins the message, for example "store URL: key "x"".
absl::StatusOr<Brought> DecodeBrought(absl::string_view bytes, absl::string_view what);

}  // namespace entrain
