// The key of a job that entrain-run starts: what keeps other users of this machine out of its store and from its ranks.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "lib/net/socket.h"

namespace entrain {

struct JobKey {
  std::string key;
  // What ENTRAIN_KEY_FILE tells the ranks.
  std::string path;
  // Random keys: the memory file behind `path`. Must stay open while ranks run.
  Fd file;
};

// The key in the file that ENTRAIN_KEY_FILE names; else a random one. A random key is in a sealed memory file of mode 400,
// which ranks open as /proc/PID/fd/N of this process. So it survives programs that close the descriptors that they
// inherit, as Python's subprocess does, and no other user can open it. Ranks in a PID namespace of their own cannot
// either; they need ENTRAIN_KEY_FILE.
absl::StatusOr<JobKey> MakeJobKey();

}  // namespace entrain
