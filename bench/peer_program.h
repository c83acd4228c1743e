// The common part of the programs that measure other libraries. It parses options, starts ranks as
// processes with a time limit, and runs the loop of entrain-perf over all sizes. A Peer is one
// library, or hand-written code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tools/command_line.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

class Peer {
 public:
  virtual ~Peer() = default;
  virtual const char* name() const = 0;   // "gloo-bench"
  virtual const char* about() const = 0;  // text for --help
  // Adds options to the options that all peers have.
  virtual void AddOptions(CommandLine& /*line*/) {}
  // Returns the algorithms for this collective, each of which is measured separately. Returns none
  // if the peer does not have the collective.
  virtual std::vector<std::string> Algorithms(CallKind collective) const = 0;
  // Returns true if the peer has threads of its own that need the cores. Ranks are then not pinned,
  // and sleep between calls instead of spinning.
  virtual bool HasThreads(const std::string& /*algorithm*/) const { return false; }
  // Called in the starting process before the ranks of one algorithm start.
  virtual void BeforeRanks(int /*ranks*/) {}
  // Returns the command that starts `ranks` copies of the command appended to it. If it is empty,
  // RunPeer forks the ranks.
  virtual std::vector<std::string> Launcher(const std::string& /*algorithm*/, int /*ranks*/) const {
    return {};
  }
  // Returns the number of this rank if the launcher has started this process, otherwise -1.
  virtual int LaunchedRank() const { return -1; }
  // Called in the rank's process. Returns the subject for the loop.
  virtual absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string& algorithm, int rank,
                                                        int ranks) = 0;
};

// The main function of the program. Returns the exit code: 0 if everything was measured and right,
// 124 if the time was up, 2 for wrong options, otherwise 1.
int RunPeer(Peer& peer, int argc, char** argv);

}  // namespace entrain::perf
