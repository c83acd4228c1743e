// The processes that entrain-run starts, one per rank. Each is the leader of a process group of its
// own, so processes that a rank starts end with the rank.
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
  Fd out, err;         // ends from which to read its standard output and error
  bool ended = false;  // reaped; `code` and `signal` are valid
  int code = 0;        // exit code
  int signal = 0;      // the signal that killed it, or 0

  bool Failed() const { return ended && (code != 0 || signal != 0); }
};

using Variables = std::vector<std::pair<std::string, std::string>>;

// Starts `program` (searched in PATH) with an empty standard input and no blocked signals, and adds
// `variables` to its environment. The kernel kills the process when the calling thread dies.
// kFailedPrecondition: the program cannot be run; the message has the reason.
absl::StatusOr<RankProcess> StartRank(const std::vector<std::string>& program,
                                      const Variables& variables);

// Sends `signal` to all running processes of the rank's group.
void SignalRank(const RankProcess& rank, int signal);

// Checks whether the rank has ended, and if so kills the rest of its group. Returns true if this
// call has detected the end.
bool ReapRank(RankProcess* rank);

// Returns "SIGTERM", for example, or "signal 40" for a signal without a name.
std::string SignalName(int signal);

// Returns "exited with code 3" or "was killed by SIGKILL (Killed)", for example.
std::string HowItEnded(const RankProcess& rank);

// A process that outlives this one by a moment. When this process dies, however it dies, the
// guardian kills the process groups in its list (Watch). A rank's own parent-death signal does not
// reach the processes that the rank started.
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
