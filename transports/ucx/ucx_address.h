// The published address of a process: "MAJOR.MINOR/PID@NAME/PIDS/SCOPE/WORKER/HOST". PIDS denotes
// the PID namespace of PID. SCOPE is "net". It is "host" if only processes of the same host can
// reach this process. WORKER is UCX's address of the worker in base64.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain::ucx {

struct UcxAddress {
  std::string version;  // version of UCX, because wire formats differ between releases
  int pid = 0;
  std::string name;  // name of the host, for messages
  std::string pids;  // the machine's boot and the PID namespace
  bool net = false;
  std::string worker;
  std::string host;  // TransportConfig::host_id

  static absl::StatusOr<UcxAddress> Parse(absl::string_view text);
  std::string ToString() const;
  std::string process() const;  // "812@node7"
  // Returns true if processes with these two addresses can have a path. The two sides get the same
  // answer.
  bool Reaches(const UcxAddress& other) const;
};

// Returns UcxAddress::pids for this process.
std::string PidsOfThisProcess();

}  // namespace entrain::ucx
