// What the programs that measure others have in common: options, ranks as processes with a time
// limit, every size by the loop of entrain-perf. A library, or bare hand-written code, is one Peer.
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
  virtual const char* about() const = 0;  // for --help
  // Beside those that all have.
  virtual void AddOptions(CommandLine& /*line*/) {}
  // The ways in which it can do this, each measured for itself; none: it cannot.
  virtual std::vector<std::string> Algorithms(CallKind collective) const = 0;
  // Whether it has threads of its own, which want the cores: then ranks are not pinned, and sleep
  // between calls instead of spinning.
  virtual bool HasThreads(const std::string& /*algorithm*/) const { return false; }
  // In the starting process, before the ranks of one algorithm are.
  virtual void BeforeRanks(int /*ranks*/) {}
  // The command that starts `ranks` times what follows it; none: ranks are forked.
  virtual std::vector<std::string> Launcher(const std::string& /*algorithm*/, int /*ranks*/) const {
    return {};
  }
  // Of a rank that the launcher started.
  virtual int LaunchedRank() const { return -1; }
  // In the rank's process.
  virtual absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string& algorithm, int rank,
                                                        int ranks) = 0;
};

// The program's main. Exit code: 0 when all was measured and right, 124 when the time was up, 2 for
// wrong options, otherwise 1.
int RunPeer(Peer& peer, int argc, char** argv);

}  // namespace entrain::perf
