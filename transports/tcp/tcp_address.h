// What a process publishes about its listener: "HOST:PORT", and for a loopback address "#" and a
// mark of the host and its network namespace, as 127.0.0.1 elsewhere is another machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/socket.h"

namespace entrain {

struct TcpAddress {
  Address address;
  std::string mark;  // empty unless loopback

  static absl::StatusOr<TcpAddress> Parse(absl::string_view text);
  // Adds this host's mark if need be.
  static TcpAddress OfListener(const Address& address);
  std::string ToString() const;
  // The same answer on both sides: both loopback of one host, or neither; and of one family.
  bool Reaches(const TcpAddress& other) const;
};

}  // namespace entrain
