// What a process publishes: "MAJOR.MINOR/PID@NAME/PIDS/SCOPE/WORKER/HOST". PIDS stands for what PID
// is a number in; SCOPE is "net" or, of a process that others of its host alone can reach, "host";
// WORKER is UCX's address of the worker in base64.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain::ucx {

struct UcxAddress {
  std::string version;  // UCX's: releases differ in what they put on the wire
  int pid = 0;
  std::string name;  // of the host, for messages
  std::string pids;  // the machine's boot and the PID namespace
  bool net = false;
  std::string worker;
  std::string host;  // TransportConfig::host_id

  static absl::StatusOr<UcxAddress> Parse(absl::string_view text);
  std::string ToString() const;
  std::string process() const;  // "812@node7"
  // The same answer on both sides.
  bool Reaches(const UcxAddress& other) const;
};

// UcxAddress::pids of this process.
std::string PidsOfThisProcess();

}  // namespace entrain::ucx
