// The processes that entrain-run starts: one a rank, each the leader of a process group of its own,
// so that whatever a rank starts is ended with it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "absl/status/statusor.h"

#include "lib/net/socket.h"

namespace entrain {

struct RankProcess {
  pid_t pid = -1;
  Fd out, err;         // ends to read its standard output and error from
  bool ended = false;  // reaped; `code` and `signal` are valid
  int code = 0;        // exit code
  int signal = 0;      // the signal that killed it, or 0

  bool Failed() const { return ended && (code != 0 || signal != 0); }
};

using Variables = std::vector<std::pair<std::string, std::string>>;

// Starts `program` (searched in PATH) with these variables added to the environment, standard input
// empty and no signals blocked. It is killed when the calling thread dies. kFailedPrecondition when
// it cannot be run, saying why.
absl::StatusOr<RankProcess> StartRank(const std::vector<std::string>& program,
                                      const Variables& variables);

// Sends `signal` to everything in the rank's group that still runs.
void SignalRank(const RankProcess& rank, int signal);

// Notes it when the rank has ended, and then kills what is left of its group. True when it ended by
// this call.
bool ReapRank(RankProcess* rank);

// "exited with code 3", "was killed by SIGKILL (Killed)".
std::string HowItEnded(const RankProcess& rank);

// A process that outlives this one by a moment: when this one dies, however, it kills the groups
// that were handed to it. Covers what a rank's own parent-death signal does not: processes that the
// rank started.
class Guardian {
 public:
  static absl::StatusOr<Guardian> Start();
  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = delete;
  ~Guardian();
  void Watch(pid_t group) const;
  void Forget(pid_t group) const;

 private:
  Guardian(pid_t pid, Fd line) : pid_(pid), line_(std::move(line)) {}
  pid_t pid_;
  Fd line_;
};

}  // namespace entrain
