// The key of a job that entrain-run starts. It prevents other users of this machine from using the
// job's store and connecting to its ranks.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "lib/net/socket.h"

namespace entrain {

struct JobKey {
  // The value of ENTRAIN_KEY_FILE for the ranks.
  std::string path;
  // Random keys only: the memory file behind `path`. Must stay open while ranks run.
  Fd file;
};

// If ENTRAIN_KEY_FILE is set, checks the file and returns its path. Otherwise makes a random key in
// a sealed memory file of mode 400. Ranks open the file as /proc/PID/fd/N of this process. So a
// program may close inherited descriptors, as Python's subprocess does. No other user can open the
// file. Ranks in a PID namespace of their own cannot open it either: they need ENTRAIN_KEY_FILE.
absl::StatusOr<JobKey> MakeJobKey();

}  // namespace entrain
